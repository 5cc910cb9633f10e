"""`pipeplan export FORMAT`, and `pipeplan targets`: plans for other programs."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from api.cli.options import arguments as arg
from api.cli.options.declare import option, written
from api.cli.options.folded_help import Commands
from api.cli.options.option_groups import PlanSource
from api.cli.output import report, report_json, write_document, write_folder
from api.failures import as_input_errors

if TYPE_CHECKING:
    from planner.plan import Plan
    from planner.problem import Problem

commands = Commands(no_args_is_help=True, help="Write a plan in another program's format.")
targets = Commands()


@commands.command("trace", epilog="Example: pipeplan export trace plan.json demo:resnet50-two-hosts -o trace.json")
def export_trace_command(*, source: PlanSource, output: arg.Output = None) -> None:
    """Write the timeline as a Chrome trace, for Perfetto or chrome://tracing."""
    from planner.export.trace import render_trace

    problem, plan, timeline = source.play(to=output)
    write_document(render_trace(problem, plan, timeline=timeline), output)


@commands.command("torch", epilog="Example: pipeplan export torch plan.json demo:gpt-1.5b-zero-bubble -o schedule.csv")
def export_torch_command(
    *,
    source: PlanSource,
    output: arg.Output = None,
    keep_split: Annotated[
        bool,
        written("--keep-split", "Keep input and weight gradients apart, as planned, instead of merging neighbours."),
    ] = False,
) -> None:
    """Write the compute-only table that torch.distributed.pipelining loads (torch 2.13); ranks go to standard error."""
    from planner.export.stated_assumptions import told_in_notes, unstated_note
    from planner.export.torch_table import render_torch_table, torch_ranks

    plan, problem = source.read(to=output)
    with as_input_errors():
        notes = (
            *told_in_notes(problem, plan, what="torch's runtime"),
            *unstated_note(problem, plan, what="torch's runtime"),
        )
        table = render_torch_table(problem, plan, merges_backward=not keep_split)
    write_document(table, output)
    _tell_ranks(torch_ranks(plan), source, answered=(plan, problem), notes=notes)


def _tell_ranks(
    devices: "tuple[str, ...]", source: PlanSource, *, answered: "tuple[Plan, Problem]", notes: "tuple[str, ...]" = ()
) -> None:
    """The device of every rank, the most that it holds, and what remains; then what the other program is not told."""
    from api.formatting import render_bytes, render_of_limit
    from api.inputs import play

    plan, problem = answered
    peaks = play(problem, plan, source=source.plan).peak_bytes
    limits = {device.name: device.usable_bytes for device in problem.cluster.devices}
    for rank, device in enumerate(devices):
        peak, limit = peaks.get(device, 0), limits[device]
        left = f"headroom {render_bytes(limit - peak)}" if peak <= limit else f"{render_bytes(peak - limit)} TOO MANY"
        print(f"rank {rank}  {device}  {render_of_limit(peak, limit)}, {left}", file=sys.stderr)
    for note in notes:
        print(note, file=sys.stderr)


@commands.command("model", epilog="Example: pipeplan export model plan.json -f mps -o model.mps")
def export_model_command(
    *,
    source: PlanSource,
    form: Annotated[str, option("--format -f FORM", "mps, lp or cp-sat (CP-SAT's text form).")],
    output: Annotated[str, written("--output -o FILE", "Where the model goes.")],
) -> None:
    """Write the model with everything open, for any solver, of the plan's problem: no plan longer than it is in there.

    `pipeplan import solution ANSWER PLAN` turns what the solver answers into a plan.
    """
    from planner.planning.complete.complete_files import write_model

    problem, _, timeline = source.play(to=output)
    with as_input_errors():
        ticks = write_model(problem, timeline, path=Path(output), form=form)  # type: ignore[arg-type]
    print(f"{output}: makespan in {ticks:,} ns", file=sys.stderr)


@commands.command("megatron", epilog="Example: pipeplan export megatron plan.json -o arguments.txt")
def export_megatron_command(*, source: PlanSource, output: arg.Output = None) -> None:
    """Write Megatron-LM's layout and flags, one per line; ranks and their memory go to standard error."""
    from planner.export.megatron import make_megatron_job, render_megatron
    from planner.export.stated_assumptions import unstated_note

    plan, problem = source.read(to=output)
    with as_input_errors():
        job = make_megatron_job(problem, plan)
    write_document(render_megatron(job), output)
    notes = (*job.notes, *unstated_note(problem, plan, what="Megatron-LM"))
    _tell_ranks(job.ranks, source, answered=(plan, problem), notes=notes)


@commands.command("torchtitan", epilog="Example: pipeplan export torchtitan plan.json -o folder")
def export_torchtitan_command(
    *, source: PlanSource, output: Annotated[str, written("--output -o FOLDER", "Where the files go.")]
) -> None:
    """Write config.json (fields of torchtitan's configuration, by section) and schedule.csv into a folder."""
    from planner.export.stated_assumptions import unstated_note
    from planner.export.torchtitan import make_torchtitan_files
    from planner.export.torchtitan_copies import titan_ranks

    plan, problem = source.read()
    with as_input_errors():
        files = make_torchtitan_files(problem, plan)
    write_folder(files, Path(output))
    notes = unstated_note(problem, plan, what="torchtitan")
    _tell_ranks(titan_ranks(plan), source, answered=(plan, problem), notes=notes)


@commands.command("deepspeed", epilog="Example: pipeplan export deepspeed plan.json -o planned_pipeline.py")
def export_deepspeed_command(*, source: PlanSource, output: arg.Output = None) -> None:
    """Write a module whose PlannedPipelineModule (PlannedDualPipeVModule for a V) cuts the layers as planned."""
    from planner.export.deepspeed import deepspeed_ranks, render_deepspeed
    from planner.export.stated_assumptions import unstated_note

    plan, problem = source.read(to=output)
    with as_input_errors():
        text = render_deepspeed(problem, plan)
    write_document(text, output)
    notes = unstated_note(problem, plan, what="DeepSpeed")
    _tell_ranks(deepspeed_ranks(problem, plan), source, answered=(plan, problem), notes=notes)


@commands.command("zero-bubble", epilog="Example: pipeplan export zero-bubble plan.json -o schedule.json")
def export_zero_bubble_command(*, source: PlanSource, output: arg.Output = None) -> None:
    """Write the schedule as nodes of the zero-bubble fork of Megatron, a list per rank."""
    from planner.export.zero_bubble import render_zero_bubble

    plan, problem = source.read(to=output)
    with as_input_errors():
        text = render_zero_bubble(problem, plan)
    write_document(text, output)
    print(
        "what the profile assumes stands in flags of Megatron's, as `pipeplan export megatron` writes", file=sys.stderr
    )


@targets.command("targets")
def targets_command(json: arg.Json = False) -> None:
    """List the programs that plans can be made for (`--target`)."""
    from planner.export.targets import TARGETS

    if json:
        report_json({name: {"runs": target.runs, "limits": target.restrictions} for name, target in TARGETS.items()})
        return
    from api.reporting.screen_table import make_table

    table = make_table("program", "what it can run")
    table.columns[0].no_wrap = True
    for name, target in TARGETS.items():
        table.add_row(name, target.runs)
    report(table)
