"""What follows when a process of torchrun's fails."""

from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from planner.execute.run import agent


@pytest.mark.parametrize(("code", "expected", "is_told"), [(2, 2, False), (1, 1, True), (3, 3, True), (-9, 1, True)])
def test_refusals_are_not_followed_by_a_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: int, expected: int, is_told: bool
):
    """Tests that the agent ends as the process that failed first, and reports it unless it refused to begin."""

    def fail() -> Any:
        failure = ProcessFailure(local_rank=0, pid=1, exitcode=code, error_file="<N/A>")
        raise ChildFailedError("train.py", {0: failure})

    monkeypatch.setattr(agent, "main", fail)
    with pytest.raises(SystemExit) as left:
        agent.run_agent()
    assert left.value.code == expected
    assert ("train.py FAILED" in capsys.readouterr().err) is is_told
