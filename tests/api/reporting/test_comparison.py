"""Plans side by side: tests of api/reporting/comparison.py."""

from pathlib import Path

import pytest

from api.failures import InputError
from api.reporting.comparison import read_contenders
from planner.document import render_plan
from tests.planner.export.chains import make_chain, make_plan


def test_plans_without_their_workload_are_told_where_it_goes(tmp_path: Path):
    """Tests that two plans alone are answered with what is missing behind them, and with a workload as before."""
    plan = make_plan(
        make_chain("ww", num_devices=2, num_microbatches=1), "d0: 0F0 0B0\nd1: 1F0 1B0", stages="0@d0 1@d1"
    )
    file = tmp_path / "plan.json"
    file.write_text(render_plan(plan), encoding="utf-8")
    told = r"plan\.json: format = .* give the plans' workload behind them, or --workload WORKLOAD"
    with pytest.raises(InputError, match=told):
        read_contenders([str(file), str(file)], workload=None)
    with pytest.raises(InputError, match=r"plan\.json: format = ") as refused:
        read_contenders([str(file)], workload=str(file))
    assert "behind them" not in str(refused.value)
