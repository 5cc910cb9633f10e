"""One process of a planned run: tests of planner/execute/session.py."""

from unittest import mock

import pytest

from tests.planner.execute.table.test_message_queues import CUDA

torch = pytest.importorskip("torch")
from planner.execute import session  # noqa: E402


def test_nccl_is_not_told_to_share_one_queue():
    """Tests that the processes meet without a bound device, which makes NCCL put all messages in one communicator."""
    job = mock.Mock(device=CUDA, timeout_s=1.0, choices=mock.Mock())
    with mock.patch.object(session.distributed, "init_process_group") as begun:
        session._meet(job)
    assert begun.call_args.kwargs.get("device_id") is None
