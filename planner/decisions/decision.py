"""What a decision says of itself, once, for all who have to know: options, bounds, searches, programs, the screen."""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple


def text_of(value: object) -> str:
    """A value of an option as it stands in messages."""
    return str(value).lower() if isinstance(value, bool) else str(value)


class Excluded(NamedTuple):
    """A value of another option under which nobody can ask for the decision."""

    option: str
    """The name of the other option, such as `order`."""
    value: object
    """The value that is refused, as the other option states it."""
    instead: object
    """The value that the message proposes."""
    why: str
    """Why, as the message has it behind the two values: begins with a comma or a semicolon."""
    is_implied: bool = False
    """Whether the command line sets the other option, too, where nobody states it."""


class Switch(NamedTuple):
    """An option of the command line that asks for the decision, and what screens say of it."""

    help: str
    """A sentence for `--help`."""
    says: str | Mapping[object, str]
    """The decision as a phrase: with {} for a number, or one per value."""
    metavar: str | None = None
    """What stands for a value; None: it is on or off."""
    values: tuple[str, ...] = ()
    """The values, where it is a choice."""
    least: int | None = None
    """The least number."""


class Decision(NamedTuple):
    """What `option.py` of a decision states."""

    bounds: frozenset[str] | None
    """The kinds of lower bounds that hold where it is allowed; None: all."""
    left: Callable[[Any, list[int]], list[int]] | None = None
    """What F may leave of a layer for its backward where it makes use of it, by the layer's bytes at a width and what
    each kind of recomputation leaves."""
    least_stash: Callable[[Any], list[int]] | None = None
    """The least that is there of every layer while a backward runs, by least costs (`planner.bounds.minimum_costs`)."""
    is_freedom: bool = True
    """Whether plans may be what they are not without it, so that a program must know of it."""
    is_demand: bool = False
    """Whether no plan is made for a program that does not know it, instead of one without it."""
    matters: Callable[[Any], bool] = bool
    """Whether any plan of a problem that asks for it can make use of it; `bool` is always true of a problem."""
    in_complete_model: bool = False
    """Whether the complete model covers it."""
    is_enumerated: bool = False
    """Whether the exact search sees all plans that it allows."""
    is_refined: bool = False
    """Whether the search begins with what bounds tell of plans without it."""
    one_size_only: bool = False
    """Whether all microbatches must have one size."""
    has_one_clock: bool = False
    """Whether it has no rule for hosts that take time to ask."""
    excludes: tuple[Excluded, ...] = ()
    """What cannot be asked for beside it."""
    sent_beside: str = ""
    """What happens while others compute, where devices have to compute while they send."""
    require: Callable[[Any], None] | None = None
    """Raises ValueError if a cluster lacks what else it needs."""
    use: Callable[[Any], str] | None = None
    """What a stage of a plan does that makes use of it, as messages have it after `stage 3`; empty where it does not.
    Programs refuse such a plan. None: each program says for itself what it knows of it."""
    opened: Callable[[Any], object] | None = None
    """What `--decide-all` sets the option to, by the profile; a closed value where it states no costs for it."""
    switch: Switch | None = None
    """How the command line asks for it."""
    part: str = ""
    """The name of its part of the search; empty: the joint search decides."""


class OpenDecision(NamedTuple):
    """A decision that some options ask for."""

    option: str
    """The option's name."""
    value: object
    """The value that some options give it."""
    closed: object
    """The value that leaves the decision out."""
    decision: Decision
    """Refusals, bounds and searches, as its folder states them."""

    @property
    def stated(self) -> str:
        """Option and value, as messages have them."""
        return f"{self.option} = {text_of(self.value)}"

    @property
    def remedy(self) -> str:
        """Words that say how to leave the decision out."""
        return "leave it out" if self.closed is None else f"set it to {text_of(self.closed)}"

    def refuse(self, options: object) -> None:
        """ValueError if another option excludes it."""
        for other, value, instead, why, _ in self.decision.excludes:
            if getattr(options, other) == value:
                raise ValueError(
                    f"options: {self.stated} with {other} = {text_of(value)}{why}: set {other} to {text_of(instead)}, "
                    f"or leave {self.option} out"
                )


QUICK_BOUNDS = frozenset({"work", "layer", "path"})
"""Kinds that add up layers alone, wherever they are."""

NEEDS_RECOMPUTATION = Excluded("recompute", False, True, ", where nothing may recompute", is_implied=True)
"""What it takes to choose what recomputes."""

RECOMPUTES = attrgetter("states_recomputation")
"""Opened where the profile states what recomputation takes."""
