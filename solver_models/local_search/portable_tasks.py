"""Tasks that other machines can do, and what a search knows of those machines."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class PortableTask:
    """A call of a method that reads nothing but its arguments and what its owner was made of.

    Owner, arguments and result can be pickled. The owner is sent once to each machine.
    """

    owner: object
    method: str
    given: tuple[Any, ...] = ()

    def __call__(self) -> Any:
        """Do it here."""
        return getattr(self.owner, self.method)(*self.given)


class Workers(Protocol):
    """Processes, here or on other machines, that do portable tasks."""

    @property
    def num_workers(self) -> int:
        """Tasks that can be done at once."""

    @property
    def num_tasks(self) -> int:
        """Tasks that were done so far."""

    def submit(
        self, task: PortableTask, *, may_start: Callable[[], bool], is_over: Callable[[], bool]
    ) -> "Future[tuple[Any, float] | None]":
        """What the task finds, and the seconds that it takes.

        None if `may_start` denies it once its turn comes, or `is_over` says that nobody waits any more.
        """
