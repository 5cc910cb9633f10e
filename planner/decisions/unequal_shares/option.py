"""What unequal shares exclude."""

from typing import Protocol


class _Options(Protocol):
    @property
    def order(self) -> str:
        """`looped` or any."""


PART = "unequal shares"
"""The name of its part of the search."""

ONE_SIZE_ONLY = True
"""They are only for microbatches of one size."""


def refuse(options: _Options) -> None:
    """ValueError if another option excludes them."""
    if options.order == "looped":
        raise ValueError(
            "options: order = looped with unequal_shares = true; programs that run stages in a loop cut every "
            "microbatch evenly: set unequal_shares to false"
        )
