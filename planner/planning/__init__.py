"""The recipe that turns a problem into a verified plan; `make_plan` is its door."""

from planner.planning.driver import make_plan
from planner.progress import Limits, Progress

__all__ = ["Limits", "Progress", "make_plan"]
