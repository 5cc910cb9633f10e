"""`pipeplan explain`."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from api.cli.options import arguments as arg
from api.cli.options.declare import option
from api.cli.options.folded_help import Commands
from api.cli.options.option_groups import PlanSource
from api.cli.output import report, report_event, report_json

if TYPE_CHECKING:
    from planner.problem import Problem
    from planner.simulation.explain import Explanation
    from planner.what_if.sensitivity import ShadowPrice

commands = Commands()


@commands.command(
    "explain",
    epilog="Examples:\n\npipeplan explain plan.json demo:resnet50-two-hosts\n\n"
    "pipeplan explain plan.json --shadow-prices --time-limit 60",
)
def explain_command(
    *,
    source: PlanSource,
    shadow_prices: Annotated[
        bool, option("--shadow-prices", "Also say what more memory, faster links or another device are worth.")
    ] = False,
    time_limit: arg.TimeLimit = 60.0,
    per_kind: Annotated[
        int, option("--per-kind N", "Devices and links asked about, the fullest and busiest.", min=1)
    ] = 2,
    json: arg.Json = False,
) -> None:
    """Say where a plan's time goes, and what limits it.

    With --shadow-prices also what a little more of each resource is worth: the plan is made again with it, from the
    present one on, for --time-limit seconds in all.
    """
    from api.inputs import reading, require_limits
    from planner.simulation.explain import explain

    require_limits(time_limit_s=time_limit)
    problem, plan, timeline = source.play()
    with reading():
        explanation = explain(problem, plan, timeline=timeline)
    prices = None
    if shadow_prices:
        from api.reporting.what_if import find_prices

        hear = _hear_price(is_json=json)
        prices = find_prices(problem, plan, timeline=timeline, time_limit_s=time_limit, per_kind=per_kind, hear=hear)
    _tell(problem, explanation, prices=prices, is_json=json)


def _hear_price(*, is_json: bool) -> Callable[[str], None]:
    """Tells, on standard error, what is being asked."""

    def hear(text: str) -> None:
        if is_json:
            report_event({"event": "progress", "asked": text})
        else:
            print(f"planned again with: {text}", file=sys.stderr, flush=True)

    return hear


def _tell(problem: "Problem", explanation: "Explanation", *, prices: "list[ShadowPrice] | None", is_json: bool) -> None:
    if is_json:
        from api.reporting.summaries import summarise_explanation, summarise_prices

        report_json(summarise_explanation(explanation) | ({} if prices is None else summarise_prices(prices)))
        return
    from api.reporting.command_reports import render_explanation, render_prices

    report(render_explanation(problem, explanation))
    if prices is not None:
        report(render_prices(prices))
