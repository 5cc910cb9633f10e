"""What effort goes into looking for a bound: it decides how large a bound is found, never whether it holds.

Constants that say what a certificate proves (how often windows are narrowed, how large a table may be) are no
parameters: who checks a certificate has to do the same.
"""

from dataclasses import dataclass
from typing import Annotated, get_args, get_type_hints


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundParams:
    """Effort of `planner.certificate.make_bound`, which is counted rather than timed."""

    min_s: Annotated[float, (0.0, 10.0**6)] = 1.0
    """Seconds that the bound over all plans may take, roughly and at least. Not measured."""
    max_s: Annotated[float, (0.0, 10.0**6)] = 6.0
    """The same at most. Not measured."""
    limit_parts: Annotated[int, (1, 10**6)] = 10
    """Between these, one part in so many of the time limit. Not measured."""
    share: Annotated[float, (0.0, 1.0)] = 0.3
    """Part of the time left after which no further step of the bound begins. Not measured."""
    climb_s: Annotated[float, (0.0, 10.0**6)] = 2.0
    """Seconds, roughly, that the pipeline bound may take; more rarely show more. Not measured."""
    entries_per_s: Annotated[int, (1, 10**12)] = 10_000_000
    """Table entries of the pipeline and the classes bound that a slow machine fills in a second. Not measured."""
    steps: Annotated[int, (1, 62)] = 16
    """Steps of the search for the largest pipeline or windows bound; each halves what is open. Not measured."""
    classes_steps: Annotated[int, (1, 10**6)] = 48
    """Deadlines that are tried for the classes bound. Not measured."""
    probe_steps: Annotated[int, (1, 10**6)] = 5
    """Values for which pairs of actions are tried in both orders, for the windows bound. Not measured."""
    probes_per_s: Annotated[int, (1, 10**12)] = 500
    """Pairs that are tried in a second, for one lane; with more, as many times fewer. Not measured."""
    packing_per_s: Annotated[int, (1, 10**12)] = 1_500_000
    """Loads of devices that the packing bound rates in a second, about. Not measured."""
    packing_steps: Annotated[int, (1, 10**6)] = 16
    """Deadlines that are tried for the packing bound. Not measured."""
    packing_rounds: Annotated[int, (1, 10**6)] = 60
    """Rounds of column generation of one relaxation, at most. Not measured."""
    packing_columns: Annotated[int, (1, 10**6)] = 40
    """Columns per round, at most. Not measured."""
    packing_enough: Annotated[float, (0.0, 1.0)] = 0.9
    """Another round of prices is worth its while if the last one left fewer stages than this part. Not measured."""
    loop_actions_per_s: Annotated[int, (0, 10**7)] = 60_000
    """Actions of a loop's order that are played for each deadline per second that its bound may take. Not measured."""
    refuted_effort: Annotated[int, (0, 10**9)] = 400_000
    """Units of work that a refutation may take, of some 20 microseconds each; 0: none is tried. Not measured."""

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self), include_extras=True).items():
            (kind, (least, most)), value = get_args(hint), getattr(self, name)
            noun = "a whole number" if kind is int else "a number"
            is_one = isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)
            if not is_one or not least <= value <= most:
                shown = f"search parameter bound.{name} = {repr(value)[:60]}"
                raise ValueError(f"{shown} will not do; give {noun} from {least} to {most}")
