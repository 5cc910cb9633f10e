"""`pipeplan verify` and `pipeplan simulate`: is a plan right, and how does it go?"""

from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.options import arguments as arg
from api.cli.options.declare import option
from api.cli.options.folded_help import Commands
from api.cli.options.option_groups import PlanSource
from api.cli.output import report, report_json
from api.failures import Exit, InputError

if TYPE_CHECKING:
    from planner.plan import Plan
    from planner.problem import Problem

commands = Commands()


@commands.command(
    "verify",
    epilog="Examples:\n\npipeplan verify plan.json demo:resnet50-two-hosts\n\npipeplan verify --certificate plan.json",
)
def verify_command(
    *,
    source: PlanSource,
    certificate: Annotated[
        bool, option("--certificate", "Also derive bound, gap, status and baselines again, without a solver.")
    ] = False,
    baselines: Annotated[
        bool | None,
        option(
            "--baselines/--no-baselines",
            "Also play the baselines again (left out: where that is cheap); with --certificate.",
        ),
    ] = None,
    json: arg.Json = False,
) -> None:
    """Check a plan against every rule; exit with 6 if one is broken.

    With --certificate also derive everything that its evidence states anew, without a solver, and exit with 6 if
    anything is stated otherwise.
    """
    if baselines is not None and not certificate:
        raise InputError("--baselines: only --certificate plays them; add it, or leave --baselines out")
    plan, problem = source.read()
    if certificate:
        has_passed = _verify_evidence(problem, plan, with_baselines=baselines, is_json=json)
    else:
        has_passed = _verify(problem, plan, is_json=json)
    if not has_passed:
        raise typer.Exit(Exit.REJECTED)


def _verify(problem: "Problem", plan: "Plan", *, is_json: bool) -> bool:
    """Report the verdict on the plan; whether it passed."""
    from planner.verify import verify

    verdict = verify(problem, plan)
    if is_json:
        report_json(verdict.summary())
    else:
        from api.reporting.command_reports import render_verdict

        report(render_verdict(problem, verdict))
    return verdict.passed


def _verify_evidence(problem: "Problem", plan: "Plan", *, with_baselines: bool | None, is_json: bool) -> bool:
    """Report the verdict on the plan and on every figure of its evidence; whether all passed."""
    from planner.evidence.check_evidence import rederive

    outcome = rederive(problem, plan, with_baselines=with_baselines)
    if is_json:
        from api.reporting.summaries import summarise_rederivation

        report_json(summarise_rederivation(outcome))
    else:
        from api.reporting.command_reports import render_rederivation

        report(render_rederivation(problem, outcome))
    return outcome.passed


@commands.command("simulate", epilog="Example: pipeplan simulate plan.json demo:resnet50-two-hosts --json")
def simulate_command(*, source: PlanSource, json: arg.Json = False) -> None:
    """Play a plan: makespan, work and memory of every device."""
    problem, _, timeline = source.play()
    if json:
        from api.reporting.summaries import summarise_timeline

        report_json(summarise_timeline(problem, timeline))
    else:
        from api.reporting.command_reports import render_simulation

        report(render_simulation(problem, timeline))
