"""One process of a planned run: tests of planner/execute/session.py."""

from pathlib import Path
from unittest import mock

import pytest

from planner.document import render_plan
from tests.planner.execute.orders import make_random_plan
from tests.planner.execute.table.test_message_queues import CUDA

torch = pytest.importorskip("torch")
from planner.execute import session  # noqa: E402


def test_nccl_is_not_told_to_share_one_queue():
    """Tests that the processes meet without a bound device, which makes NCCL put all messages in one communicator."""
    job = mock.Mock(device=CUDA, timeout_s=1.0, choices=mock.Mock())
    with mock.patch.object(session.distributed, "init_process_group") as begun:
        session._meet(job)
    assert begun.call_args.kwargs.get("device_id") is None


@pytest.mark.parametrize(("stated", "expected"), [({}, 1), ({"OMP_NUM_THREADS": "2"}, 2)])
def test_a_process_has_as_many_threads_as_layers_were_timed_with(
    stated: dict[str, str], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Tests that a process alone on a host computes on one thread, as one of several does, unless others are stated."""
    (tmp_path / "plan.json").write_text(render_plan(make_random_plan("0", num_microbatches=1)), encoding="utf-8")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name, value in ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"} | stated).items():
        monkeypatch.setenv(name, value)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with mock.patch.object(session, "settle_on_host"):
            session.make_job(tmp_path / "plan.json", session.Choices(device="cpu"))
        assert torch.get_num_threads() == expected
    finally:
        torch.set_num_threads(before)
