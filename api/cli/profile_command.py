"""`pipeplan profile`."""

import sys
from typing import NamedTuple

from api.cli.options import arguments as arg
from api.cli.options.folded_help import Commands, folded
from api.cli.options.option_groups import Reporting
from api.cli.output import make_console, report_event, write_document

commands = Commands()


class _MeasuredOptions(NamedTuple):
    """The model, its sizes and its types."""

    num_microbatches: arg.NumMicrobatches = None
    microbatch_size: arg.MicrobatchSizes = None
    global_batch: arg.MeasuredBatch = None
    widths: arg.Widths = "1"
    group_widths: arg.GroupWidths = None
    dtype: arg.Dtype = None
    clock: arg.Clock = "thread"
    no_recompute: arg.NoRecompute = False
    each_layer: arg.EachLayer = False
    no_split: arg.WholeBackward = False


class _RepetitionOptions(NamedTuple):
    """Repetitions per layer, and the load beside it."""

    alone: arg.Alone = False
    repetitions: arg.Repetitions = 10
    seconds: arg.SecondsPerLayer = 20.0
    attempts: arg.Attempts = 3


class _MachineOptions(NamedTuple):
    """The devices to measure."""

    device: arg.Device = "auto"
    devices: arg.NumDevices = None
    device_type: arg.DeviceType = None
    memory: arg.MemoryGib = None
    estimate: arg.Estimate = None
    links: arg.Links = None
    no_links: arg.NoLinks = False


class _ProfileFiles(NamedTuple):
    """Files to write."""

    output: arg.Output = None
    journal: arg.JournalFile = None


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
