"""What the values of a plan document may be, for its reader and its schema: ranges, units and words."""

RANGES: dict[str, tuple[int, int | None, str]] = {
    "num_microbatches": (1, None, "microbatches"),
    "microbatch_size": (1, None, "samples"),
    "microbatch_sizes": (1, None, "samples"),
    "microbatches": (1, None, "samples"),
    "recompute_microbatches": (0, None, "microbatch numbers"),
    "microbatch": (0, None, "microbatch number"),
    "global_batch_size": (1, None, "samples"),
    "samples": (1, None, "samples"),
    "max_active_stages": (1, None, "stages"),
    "rounds": (0, None, "rounds"),
    "bubble": (0, 1, "fraction"),
    "gap": (0, 1, "fraction"),
    "price_per_hour": (0, None, "money per hour"),
    "cost": (0, None, "money"),
    "lower_bound": (0, None, "money"),
    "peak_fraction": (0, None, "fraction"),
    "seed": (0, None, ""),
    "threads": (1, None, "threads"),
    "workers": (1, None, "tasks"),
    "worker_tasks": (0, None, "tasks"),
    "turns": (0, None, "turns"),
    "seconds": (0, None, "seconds"),
    "improvements": (0, None, "plans"),
    "bounds_raised": (0, None, "bounds"),
    "cases_closed": (0, None, "cases"),
    "assumed_divisible": (0, None, "stage numbers"),
}
"""Least, most and unit of the numbers of a plan whose names do not end in their unit."""

DEGREES = ("tensor", "context", "data", "expert")
"""What the devices of a group may share."""

_ENDINGS = {"_ns": "nanoseconds", "_bytes": "bytes"}
"""Units that end a name; such numbers are not negative."""

ALLOWED_VALUES: dict[str, tuple[str, ...]] = {
    "solution_status": ("optimal", "feasible"),
    "stopped_by": (
        "proof",
        "complete_search",
        "solver",
        "gap",
        "time",
        "rounds",
        "no_improvement",
        "user",
        "solver_failed",
        "internal_error",
    ),
}
"""Texts of the evidence that are one of a few."""

_MEASURED = ("measured", "measured in part", "not measured")

TIMINGS: dict[str, tuple[str, ...]] = {
    "conditions": ("busy", "alone", "not stated"),
    "action_overhead": _MEASURED,
    "message_overhead": _MEASURED,
}
"""What the evidence may say about times, each with its words."""

PARAMETER_NAME = r"^[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*$"
"""How a parameter of the search is named: its group and its field, be it one of this release or not."""


def range_of(name: str) -> tuple[int, int | None, str] | None:
    """Least, most and unit of the numbers under a name, if they have any."""
    if name in RANGES:
        return RANGES[name]
    return next(((0, None, unit) for ending, unit in _ENDINGS.items() if name.endswith(ending)), None)
