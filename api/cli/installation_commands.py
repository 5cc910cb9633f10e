"""`pipeplan demos` and `pipeplan doctor`: what is installed, and whether it works."""

from typing import TYPE_CHECKING

import typer

from api.cli.options import arguments as arg
from api.cli.options.folded_help import Commands
from api.cli.output import report, report_json
from api.failures import Exit

if TYPE_CHECKING:
    from profiles.workload import Workload

commands = Commands()


@commands.command("demos", epilog="Example: pipeplan plan demo:resnet50-two-hosts --time-limit 20")
def demos_command(json: arg.Json = False) -> None:
    """List the workloads that are included."""
    demos = _describe_demos()
    if json:
        report_json(demos)
    else:
        from api.reporting.command_reports import render_demos

        report(render_demos(demos))


def _describe_demos() -> dict[str, str]:
    """The workloads that come along, a line each."""
    from profiles.load import demo_names, load_workload

    return {name: _describe(load_workload(f"demo:{name}")) for name in demo_names()}


def _describe(workload: "Workload") -> str:
    profile, cluster = workload.profile, workload.cluster
    shape = "chain" if profile.is_chain else "graph"
    text = f"{shape} of {len(profile.layers)} layers"
    if cluster is not None:
        from api.reporting.plain_names import render_types

        text += f" on {render_types(cluster)}"
    if workload.num_microbatches is not None:
        text += f", {workload.num_microbatches} microbatches"
    if workload.microbatches is not None:
        text += f", {len(workload.microbatches)} microbatches of different sizes"
    if workload.global_batch_size is not None:
        text += f", {workload.global_batch_size} samples"
    return f"{text}: {profile.name}"


@commands.command("doctor")
def doctor_command(server: arg.Server = None, json: arg.Json = False) -> None:
    """Check this installation, or a service, with a toy plan."""
    from api.doctor import run_checks

    if server is not None:
        from api.remote import check_remotely

        checks: list[tuple[str, bool | None, str]] = list(check_remotely(server))
    else:
        checks = list(run_checks())
    if json:
        report_json({what: {"is_well": is_well, "detail": detail} for what, is_well, detail in checks})
    else:
        from api.reporting.command_reports import render_checks

        report(render_checks(checks))
    if any(is_well is False for _, is_well, _ in checks):
        raise typer.Exit(Exit.INTERNAL)
