"""The recipe that turns a problem into a verified plan; `make_plan` and `make_plans` are its doors."""

from planner.planning.planning_params import SearchParams
from planner.planning.runs.dispatch import make_plan, make_plans
from planner.progress import Limits, Progress

__all__ = [
    "Limits",
    "Progress",
    "SearchParams",
    "make_plan",
    "make_plans",
]
