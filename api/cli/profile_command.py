"""`pipeplan profile`."""

import sys
from functools import partial
from typing import Annotated, Literal, NamedTuple

from api.cli.options import arguments as arg
from api.cli.options.declare import on_machine, option, timed, written
from api.cli.options.folded_help import Commands, folded
from api.cli.options.option_groups import Reporting
from api.cli.output import make_console, report_event, write_document

commands = Commands()

_measured = partial(option, panel="What is measured")


class _MeasuredOptions(NamedTuple):
    """The model, its sizes and its types."""

    num_microbatches: arg.NumMicrobatches = None
    microbatch_size: Annotated[
        str | None,
        _measured(
            "--microbatch-size -b N[,N...]",
            "Samples per microbatch, the profile's own first (left out: batch / -m, or doublings).",
        ),
    ] = None
    global_batch: Annotated[
        int | None,
        _measured("--global-batch -g SAMPLES", "Samples per iteration; `plan` decides the microbatches.", min=1),
    ] = None
    widths: Annotated[str, _measured("--widths N[,N...]", "CPU threads per layer, e.g. 1,2.")] = "1"
    group_widths: Annotated[
        str | None,
        _measured("--group-widths N[,N...]", "Processes that run each layer together, tensor-parallel, e.g. 2."),
    ] = None
    dtype: Annotated[
        Literal["fp32", "bf16", "fp16"] | None, _measured("--dtype", "Bring weights and activations into this type.")
    ] = None
    no_recompute: Annotated[bool, _measured("--no-recompute", "Leave recomputation out.")] = False
    each_layer: Annotated[bool, _measured("--each-layer", "Measure layers that are alike one by one.")] = False
    no_split: Annotated[
        bool, _measured("--no-split", "For plans with whole backward passes: no weight gradient waits.")
    ] = False


class _RepetitionOptions(NamedTuple):
    """Repetitions per layer, and the load beside it."""

    alone: Annotated[
        bool,
        timed("--alone", "Time layers one by one on an idle host, not as run beside the other devices of the host."),
    ] = False
    repetitions: Annotated[int, timed("--repetitions N", "Per layer, after the warm-up.", min=1, max=10_000)] = 10
    seconds: Annotated[
        float, timed("--seconds S", "Per layer: then three repetitions are enough.", min=0.0, max=86_400)
    ] = 20.0
    attempts: Annotated[
        int,
        timed(
            "--attempts N",
            "Repeat all timings up to N times, until the figures and a short run are within 10 % of each other.",
            min=1,
            max=100,
        ),
    ] = 3


class _MachineOptions(NamedTuple):
    """The devices to measure."""

    device: Annotated[Literal["auto", "cpu", "cuda"], on_machine("--device", "Where layers run.")] = "auto"
    devices: arg.NumDevices = None
    device_type: arg.DeviceType = None
    memory: Annotated[
        float | None,
        on_machine("--memory GIB", "Memory of a device; layers that need more are estimated.", min=1e-9, max=2**20),
    ] = None
    estimate: Annotated[
        str | None, on_machine("--estimate TYPE", "Run nothing: estimate for A100, H100, H200, B200, GB200, A10 or L4.")
    ] = None
    links: Annotated[
        str | None, on_machine("--links FILE", "Tables of links, read or, if there are none, written.")
    ] = None
    no_links: Annotated[bool, on_machine("--no-links", "Measure no links, write no cluster.")] = False


class _ProfileFiles(NamedTuple):
    """Files to write."""

    output: arg.Output = None
    journal: Annotated[
        str | None,
        written(
            "--journal FILE",
            "Measurements are saved here at once, and an interrupted run continues from them; left out: FILE.partial.",
        ),
    ] = None


@commands.command(
    "profile",
    cls=folded(
        *("model", "num_microbatches", "microbatch_size", "global_batch", "dtype", "device", "devices", "estimate"),
        *("links", "output", "json", "quiet"),
    ),
    epilog="Examples:\n\npipeplan profile my_model:make_training --devices 2 -o workload.json\n\n"
    "pipeplan profile gpt:layers=48,width=1600,heads=25 -b 4,2,1 --dtype bf16 -o gpt2-xl.json\n\n"
    "pipeplan profile my_model:make_training -b 1,2,4,8 --global-batch 64 --devices 2 -o workload.json\n\n"
    "pipeplan profile llama:layers=80,width=8192,heads=64,inner=28672 -b 1 --estimate H100 -o llama-70b.json",
)
def profile_command(
    *,
    model: arg.Model,
    measured: _MeasuredOptions,
    repetitions: _RepetitionOptions,
    machine: _MachineOptions,
    files: _ProfileFiles,
    reporting: Reporting,
) -> None:
    """Measure a model and the links; write the workload for `plan`.

    Layers are timed as plans run them, by as many processes at once as the host has devices. A run that was killed
    continues when the same command is started again.
    """
    from api.inputs import require_writable
    from api.profiling import ProfileRequest, forget_journal, render_summary, run_profile, summarise_profile
    from profiles.workload import dump_workload

    require_writable(files.output, machine.links, files.journal)
    wanted = ProfileRequest(
        model=model, **measured._asdict(), **repetitions._asdict(), **machine._asdict(), **files._asdict()
    )
    console = make_console(is_report=False)
    style = reporting.style(console)
    outcome = run_profile(wanted, console=console, style=style)
    write_document(dump_workload(outcome.workload), files.output)
    forget_journal(wanted)
    if style == "json":
        report_event(summarise_profile(outcome, output=files.output))
    elif style != "quiet":
        print(render_summary(outcome, output=files.output), file=sys.stderr)
