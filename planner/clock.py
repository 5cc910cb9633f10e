"""Whether there is time left: the question that everything asks which may take longer than a caller can wait."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

HasTime = Callable[[], bool]
"""Asked often and cheap; once it has denied, it denies."""

Item = TypeVar("Item")


def always() -> bool:
    """There is time."""
    return True


def while_time(items: Iterable[Item], *, has_time: HasTime) -> Iterator[Item]:
    """The items that are made before time is over."""
    source = iter(items)
    while has_time():
        try:
            yield next(source)
        except StopIteration:
            return
