"""Whether there is time left: the question that everything asks which may take longer than a caller can wait."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

HasTime = Callable[[], bool]
"""Asked often and cheap; once it has denied, it denies."""

Item = TypeVar("Item")


class InterruptedStepError(Exception):
    """A step was left half-way since time is over; nothing is known of what it would have shown."""


def always() -> bool:
    """Always True: a clock without a limit."""
    return True


def require_time(has_time: HasTime) -> None:
    """Raise InterruptedStepError unless there is time."""
    if not has_time():
        raise InterruptedStepError


def while_time(items: Iterable[Item], *, has_time: HasTime) -> Iterator[Item]:
    """The items that are made before time is over."""
    source = iter(items)
    while has_time():
        try:
            yield next(source)
        except StopIteration:
            return
