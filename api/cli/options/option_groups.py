"""Options that belong together are one named tuple: a command takes the tuple, typer sees its fields.

Named tuples, since a dataclass takes seven times as long to make, and every start of the command makes them all.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_type_hints

from api.cli.options import arguments as arg
from api.cli.options.declare import written

if TYPE_CHECKING:
    from rich.console import Console

    from api.progress import ReportStyle
    from planner.plan import Plan
    from planner.problem import Problem
    from planner.simulation.simulate import Timeline


def takes_groups(command: Callable[..., None]) -> Any:
    """The command with one keyword parameter for each field of the named tuples that it takes, in their place."""
    hints = get_type_hints(command, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if hasattr(hint, "_fields")}
    if not groups:
        return command

    @wraps(command)
    def flat(**values: Any) -> None:
        grouped = {
            name: group(**{field: values.pop(field) for field in group._fields}) for name, group in groups.items()
        }
        command(**values, **grouped)

    parameters = [
        single
        for parameter in inspect.signature(command).parameters.values()
        for single in (_options(groups[parameter.name]) if parameter.name in groups else [parameter])
    ]
    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del flat.__wrapped__
    return flat


def _options(group: Any) -> list[inspect.Parameter]:
    """A keyword parameter for each field of a named tuple."""
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=group._field_defaults.get(name, inspect.Parameter.empty),
            annotation=annotation,
        )
        for name, annotation in group.__annotations__.items()
    ]


class PlanSource(NamedTuple):
    """A plan, and the workload that it answers unless it brings that along."""

    plan: arg.PlanFile
    workload: arg.PlansWorkload = None
    cluster: arg.Cluster = None

    def read(self, *, to: str | None = None) -> "tuple[Plan, Problem]":
        """The plan and the question that it answers; refused before where `to` cannot be written to."""
        from api.inputs import read_plan_and_problem, require_writable

        require_writable(to)
        return read_plan_and_problem(self.plan, self.workload, cluster=self.cluster)

    def play(self, *, to: str | None = None) -> "tuple[Problem, Plan, Timeline]":
        """The same, played."""
        from api.inputs import play

        plan, problem = self.read(to=to)
        return problem, plan, play(problem, plan, source=self.plan)


class Reporting(NamedTuple):
    """Options of a long command's report: `--json`, `--quiet`."""

    json: arg.Json = False
    quiet: Annotated[bool, written("--quiet -q", "Print errors only.")] = False

    def style(self, console: "Console") -> "ReportStyle":
        """What suits the console unless something else was asked for."""
        if self.json:
            return "json"
        if self.quiet:
            return "quiet"
        return "live" if console.is_terminal and not console.is_dumb_terminal else "lines"
