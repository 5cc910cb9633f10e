"""W on a second stream of an accelerator, beside what the plan has next on the first (out-of-order backprop's regions).

The plan says where W stands among the other actions; on one stream that is all it can say. On a second one W begins
when everything before it in the plan has ended, and whatever follows it, I of the next layers or F of the next
microbatch, runs side by side with it.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from planner.execute.table.layout import Layout


class WeightStream:
    """The second stream of one process."""

    def __init__(self, device: torch.device, streams: Any = torch.cuda) -> None:
        """`streams`: has `Stream`, `current_stream` and `stream` as `torch.cuda` has them."""
        self.device, self._streams = device, streams
        self._stream = streams.Stream(device)

    @contextmanager
    def running(self, tensors: Iterable[Any]) -> Iterator[None]:
        """Meanwhile work goes to the second stream, behind all that the first was given; `tensors`: made on the first,
        read on the second: their memory must not be given away before.
        """
        self._stream.wait_stream(self._streams.current_stream(self.device))
        for tensor in tensors:
            tensor.record_stream(self._stream)
        with self._streams.stream(self._stream):
            yield

    def settle(self) -> None:
        """What the first stream is given from now on begins when the second has done all that it was given."""
        self._streams.current_stream(self.device).wait_stream(self._stream)


def require_second_stream(device: torch.device, *, layout: Layout) -> None:
    """Raise ValueError where W cannot run on a second stream."""
    if device.type != "cuda":
        raise ValueError(f"--weight-stream needs CUDA, but this process runs on {device.type}; leave it out")
    if layout.parts:
        raise ValueError("--weight-stream excludes split placement; plan with split_placement = false")
