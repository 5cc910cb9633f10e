"""What the commands accept: every argument and option that is more than a word, with its help text."""

from typing import Annotated, get_args

from api.cli.options.declare import argument, decided, healed, on_machine, option, placed, timed, written
from planner import option_values

PlansWorkload = Annotated[
    str | None, argument("[WORKLOAD]", "The workload that the plan is for (left out: the one inside the plan).")
]
PlanFile = Annotated[str, argument("PLAN", "A plan document, or - for standard input.")]
WorkloadOption = Annotated[str | None, option("--workload -w WORKLOAD", "The workload that the plans are for.")]
Cluster = Annotated[str | None, option("--cluster -c CLUSTER", "Another machine: a cluster or workload file.")]
NumMicrobatches = Annotated[
    int | None, option("--num-microbatches -m N", "Microbatches per iteration (left out: decided).")
]
GlobalBatch = Annotated[
    int | None,
    option("--global-batch -g SAMPLES", "Samples per iteration; size and number of microbatches are decided.", min=1),
]
Json = Annotated[bool, written("--json", "Write JSON.")]
Output = Annotated[str | None, written("--output -o FILE", "Where the document goes (- or nothing: standard output).")]
Html = Annotated[str | None, written("--html FILE", "Also draw the timeline: one HTML file.")]

TimeLimit = Annotated[float, timed("--time-limit -t SECONDS", "Wall-clock limit.")]
Seed = Annotated[int, timed("--seed N", "Seed of every random choice.")]

MaxRounds = Annotated[
    int | None, timed("--max-rounds N", "Limit the search by steps: runs that they end give the same plan.", min=0)
]
Server = Annotated[
    str | None,
    option("--server URL", "Let a service (pipeplan serve) do it; its key: PIPEPLAN_KEY.", envvar="PIPEPLAN_SERVER"),
]


TargetName = Annotated[
    option_values.TargetName | None,
    decided(
        "--target PROGRAM",
        f"Plan only what it can run: {', '.join(get_args(option_values.TargetName))} (see `pipeplan targets`).",
    ),
]

DeviceType = Annotated[str | None, option("--device-type TYPE", "The device type that the figures were measured on.")]
Debug = Annotated[bool, option("--debug", "Show the traceback of an internal error.")]

Program = Annotated[
    list[str], argument("-- PROGRAM...", "What every process runs: train.py ARGUMENTS, or -m MODULE ARGUMENTS.")
]
DryRun = Annotated[bool, written("--dry-run", "Print what would be written and run, and do neither.")]
Master = Annotated[str | None, placed("--master-addr ADDRESS", "Address of the first host; default: its name.")]
MasterPort = Annotated[int, placed("--master-port PORT", "Where several hosts meet.")]
HealTime = Annotated[float, healed("--heal-time-limit SECONDS", "Time for each new plan.", min=0.001)]
StorageRate = Annotated[
    float,
    healed(
        "--storage-rate GB/S",
        "Speed at which all devices together read checkpoints: part of the cost of a new plan.",
        min=0.001,
    ),
]
WithGpus = Annotated[bool, placed("--gpus", "Ask for as many accelerators per host as the plan needs.")]
JobPlace = Annotated[str, argument("FOLDER", "The folder that `pipeplan launch` named.")]


Lost = Annotated[list[str] | None, option("--lost NAME", "A device or host that is gone; repeatable.")]


Model = Annotated[str, argument("MODEL", "module:factory, or a family of models: gpt:layers=4,width=256.")]
NumDevices = Annotated[
    int | None, on_machine("--devices N", "Devices (left out: all GPUs, or one per core).", min=1, max=4096)
]
