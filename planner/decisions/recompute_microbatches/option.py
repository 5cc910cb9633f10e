"""What a choice of microbatches needs, and what excludes it."""

from typing import Protocol


class _Options(Protocol):
    @property
    def recompute(self) -> bool:
        """Whether stages may recompute at all."""

    @property
    def order(self) -> str:
        """`looped` or any."""


PART = "microbatch recomputation"
"""The name of its part of the search."""

ONE_SIZE_ONLY = True
"""It is only for microbatches of one size."""


def refuse(options: _Options) -> None:
    """ValueError if no stage may recompute, or if another option excludes it."""
    if not options.recompute:
        raise ValueError(
            "options: recompute_microbatches = true, but recompute = false; set recompute to true as well, or leave "
            "recompute_microbatches out"
        )
    if options.order == "looped":
        raise ValueError(
            "options: order = looped with recompute_microbatches = true; programs that run stages in a loop "
            "recompute every microbatch alike: set recompute_microbatches to false"
        )
