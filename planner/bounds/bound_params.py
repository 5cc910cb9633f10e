"""What effort goes into looking for a bound: it decides how large a bound is found, never whether it holds.

Constants that say what a certificate proves (how often windows are narrowed, how large a table may be) are no
parameters: who checks a certificate has to do the same.
"""

from dataclasses import dataclass
from typing import Annotated, get_args, get_type_hints


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundParams:
    """Effort of `planner.evidence.certificate.make_bound`, which is counted rather than timed."""

    min_s: Annotated[float, (0.0, 10.0**6)] = 1.0
    """Seconds that the bound over all plans may take, roughly and at least. Measured: 0.5 and 2.0 change neither plans
    nor bounds, for 1.03 and 1.05 of the processor time (docs/benchmarks/search_params.md)."""
    max_s: Annotated[float, (0.0, 10.0**6)] = 6.0
    """The same at most. Measured: 3.0 and 12.0 change neither plans nor bounds, for 1.05 and 1.17 of the processor time
    (docs/benchmarks/search_params.md)."""
    limit_parts: Annotated[int, (1, 10**6)] = 10
    """Between these, one part in so many of the time limit. Measured: 5 and 20 change neither plans nor bounds, for
    1.16 and 1.17 of the processor time (docs/benchmarks/search_params.md)."""
    share: Annotated[float, (0.0, 1.0)] = 0.3
    """Part of the time left after which no further step of the bound begins. Measured: 0.15 and 0.6 change neither
    plans nor bounds, for 1.13 and 1.06 of the processor time (docs/benchmarks/search_params.md)."""
    climb_s: Annotated[float, (0.0, 10.0**6)] = 2.0
    """Seconds, roughly, that the pipeline bound may take; more rarely show more. Measured: 1.0 and 4.0 change neither
    plans nor bounds, for 1.08 and 1.06 of the processor time (docs/benchmarks/search_params.md)."""
    entries_per_s: Annotated[int, (1, 10**12)] = 10_000_000
    """Table entries of the pipeline and the classes bound that a slow machine fills in a second. Measured: 5000000 and
    20000000 change neither plans nor bounds, for 1.06 and 1.04 of the processor time
    (docs/benchmarks/search_params.md)."""
    steps: Annotated[int, (1, 62)] = 16
    """Steps of the search for the largest pipeline or windows bound; each halves what is open. Measured: 8 and 32
    change neither plans nor bounds, for 1.02 and 1.01 of the processor time (docs/benchmarks/search_params.md)."""
    classes_steps: Annotated[int, (1, 10**6)] = 48
    """Deadlines that are tried for the classes bound. Measured: 24 and 96 change neither plans nor bounds, for 0.94 and
    0.97 of the processor time (docs/benchmarks/search_params.md)."""
    probe_steps: Annotated[int, (1, 10**6)] = 5
    """Values for which pairs of actions are tried in both orders, for the windows bound. Measured: 2 and 10 change
    neither plans nor bounds, for 0.97 and 1.00 of the processor time (docs/benchmarks/search_params.md)."""
    probes_per_s: Annotated[int, (1, 10**12)] = 500
    """Pairs that are tried in a second, for one lane; with more, as many times fewer. Measured: 250 and 1000 change
    neither plans nor bounds, for 0.97 and 1.01 of the processor time (docs/benchmarks/search_params.md)."""
    packing_per_s: Annotated[int, (1, 10**12)] = 1_500_000
    """Loads of devices that the packing bound rates in a second, about. Measured: 750000 and 3000000 change neither
    plans nor bounds, for 0.96 and 1.04 of the processor time (docs/benchmarks/search_params.md)."""
    packing_steps: Annotated[int, (1, 10**6)] = 16
    """Deadlines that are tried for the packing bound. Measured: 8 and 32 change neither plans nor bounds, for 1.00 and
    1.07 of the processor time (docs/benchmarks/search_params.md)."""
    packing_rounds: Annotated[int, (1, 10**6)] = 60
    """Rounds of column generation of one relaxation, at most. Measured: 30 and 120 change neither plans nor bounds, for
    1.15 and 1.05 of the processor time (docs/benchmarks/search_params.md)."""
    packing_columns: Annotated[int, (1, 10**6)] = 40
    """Columns per round, at most. Measured: 20 and 80 change neither plans nor bounds, for 1.06 and 1.01 of the
    processor time (docs/benchmarks/search_params.md)."""
    packing_enough: Annotated[float, (0.0, 1.0)] = 0.9
    """Another round of prices is worth its while if the last one left fewer stages than this part. Measured: 0.45
    changes neither plans nor bounds, for 1.04 of the processor time (docs/benchmarks/search_params.md)."""
    loop_actions_per_s: Annotated[int, (0, 10**7)] = 60_000
    """Actions of a loop's order that are played for each deadline per second that its bound may take. Measured: 30000
    and 120000 change neither plans nor bounds, for 1.18 and 1.01 of the processor time
    (docs/benchmarks/search_params.md)."""

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self), include_extras=True).items():
            (kind, (least, most)), value = get_args(hint), getattr(self, name)
            noun = "a whole number" if kind is int else "a number"
            is_one = isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)
            if not is_one or not least <= value <= most:
                shown = f"search parameter bound.{name} = {repr(value)[:60]}"
                raise ValueError(f"{shown} will not do; give {noun} from {least} to {most}")
