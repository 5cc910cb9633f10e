"""Tests of planner/execute/stage/batch_copies.py."""

from unittest import mock

import pytest

from tests.planner.execute.table.test_message_queues import CPU, CUDA

torch = pytest.importorskip("torch")
from planner.execute.stage.batch_copies import ready_to_copy, to_device  # noqa: E402


def test_samples_are_copied_without_waiting():
    """Tests that a batch in ordinary memory is brought where the device fetches it, a microbatch when it is needed."""
    tensor, pinned, there = (mock.Mock(device=device) for device in (CPU, CPU, CUDA))
    tensor.is_pinned.return_value, pinned.is_pinned.return_value = False, True
    assert ready_to_copy(tensor, device=CUDA) is tensor.contiguous().pin_memory()
    assert ready_to_copy(pinned, device=CUDA) is pinned
    assert ready_to_copy(there, device=CUDA) is there
    host = torch.ones(2)
    assert ready_to_copy(host, device=CPU) is host
    assert to_device(host, device=CPU) is host
    to_device(tensor, device=CUDA)
    tensor.to.assert_called_once_with(CUDA, non_blocking=True)
