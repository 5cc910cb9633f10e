"""What a choice of layers needs."""

from typing import Protocol


class _Options(Protocol):
    @property
    def recompute(self) -> bool:
        """Whether stages may recompute at all."""


PART = "layer recomputation"
"""The name of its part of the search."""

ONE_SIZE_ONLY = False
"""Microbatches may be of any sizes."""


def refuse(options: _Options) -> None:
    """ValueError if no stage may recompute."""
    if not options.recompute:
        raise ValueError(
            "options: recompute_layers = true, but recompute = false; set recompute to true as well, or leave "
            "recompute_layers out"
        )
