"""The traces of a job's ranks, one document for each, on one clock: tests of profiles/importers/rank_traces.py."""

from pathlib import Path
from typing import Any

import pytest

from profiles.importers.rank_steps import read_run_steps
from tests.profiles.importers.test_rank_messages import marked
from tests.profiles.importers.test_rank_steps import as_profiled, own


def one_stage(stage: int, *, count: int = 1) -> list[list[Any]]:
    return [[f"{stage}F{m}", m, m + 1] for m in range(count)] + [[f"{stage}B{m}", 9 + m, 10 + m] for m in range(count)]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[["0F0", 0, 1], ["0B0", 1, 2], ["1F0", 2, 3]], one_stage(0)], "a device ran stages 0, another 0, 1"),
        ([[["0F0", 0, 1], ["0W0", 2, 3]]], "only a part; give a trace that is not cut off"),
        ([[["0F0", 0, 1], ["0I0", 1, 2], ["0W0", 2, 3], ["0W0", 3, 4]]], "only a part"),
        ([one_stage(0), one_stage(1), one_stage(1)], "which of 3 ranks form a pipeline of 2 stages"),
        ([one_stage(0, count=2), one_stage(1)], "stage 1 ran other microbatches than the first"),
    ],
)
def test_what_is_no_whole_pipeline_is_refused(tmp_path: Path, rows: list[list[list[Any]]], message: str):
    """Tests that stages shared in part, lost or doubled halves, odd ranks and lost actions are refused by name."""
    with pytest.raises(ValueError, match=message):
        read_run_steps([own(tmp_path, *rows)])


def test_pipelines_without_messages_are_refused(tmp_path: Path):
    """Tests that marked traces of two pipelines without a message are refused, and a log, which has no order."""
    for rank in range(4):
        events = [marked(f"PP:{rank % 2}F0", 10.0 * rank, 5), marked(f"PP:{rank % 2}B0", 50 - 10.0 * rank, 5)]
        (tmp_path / f"{rank}.json").write_text(as_profiled(events, rank))
    with pytest.raises(ValueError, match="which of 4 ranks form a pipeline of 2 stages"):
        read_run_steps([tmp_path])
    with pytest.raises(ValueError, match="a log states neither order nor transfers"):
        read_run_steps([tmp_path / "train.log"])
