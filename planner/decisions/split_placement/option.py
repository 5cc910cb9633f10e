"""What split placement excludes."""

from typing import Protocol


class _Options(Protocol):
    @property
    def keep_workspace(self) -> bool:
        """Whether I keeps its workspace until its W has ended."""


PART = "split placement"
"""The name of its part of the search."""

ONE_SIZE_ONLY = True
"""It is only for microbatches of one size."""


def refuse(options: _Options) -> None:
    """ValueError if another option excludes it."""
    if options.keep_workspace:
        raise ValueError(
            "options: keep_workspace = true and split_placement = true exclude each other, since no device then "
            "has both gradients; drop one of the two"
        )
