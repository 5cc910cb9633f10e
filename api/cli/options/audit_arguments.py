"""What `pipeplan audit` accepts, with its help texts."""

from typing import Annotated, Literal

import typer

_WHAT = "What runs"
_LAYOUT = "How it is cut"

Program = Annotated[
    Literal["megatron", "torchtitan", "deepspeed"],
    typer.Argument(metavar="PROGRAM", help="megatron, torchtitan or deepspeed.", show_default=False),
]
ConfigurationFile = Annotated[
    str | None,
    typer.Argument(
        metavar="[FILE]",
        help="What it is started with: a script with flags, YAML, JSON, TOML, a log, or FILE.py:FUNCTION. Options "
        "overrule it.",
        show_default=False,
    ),
]


def _number(name: str, text: str, *, panel: str = _LAYOUT) -> object:
    return typer.Option(name, metavar="N", help=text, rich_help_panel=panel, show_default=False, min=1, max=10**7)


AuditedModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME|FILE",
        help="A known model, e.g. llama3-70b, or a config.json.",
        rich_help_panel=_WHAT,
        show_default=False,
    ),
]
AuditedGpu = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        metavar="NAME",
        help="a100, h100 (default), h200, b200, b300, gb200, gb300.",
        rich_help_panel=_WHAT,
        show_default=False,
    ),
]
MemoryGb = Annotated[
    float | None,
    typer.Option(
        "--gpu-memory",
        metavar="GIB",
        help="Memory of a GPU, where it is not its data sheet's.",
        rich_help_panel=_WHAT,
        show_default=False,
        min=1,
        max=10**4,
    ),
]
MeasuredProfile = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="FILE",
        help="A workload with measured layers, to take times and bytes from instead of estimates.",
        rich_help_panel=_WHAT,
        show_default=False,
    ),
]
AuditedDevices = Annotated[int | None, _number("--devices", "GPUs in all.", panel=_WHAT)]
AuditedSequence = Annotated[int | None, _number("--seq-length", "Tokens of a sample.", panel=_WHAT)]
AuditedMicro = Annotated[int | None, _number("--micro-batch-size", "Samples of a microbatch.", panel=_WHAT)]
AuditedBatch = Annotated[int | None, _number("--global-batch-size", "Samples of an iteration.", panel=_WHAT)]
AuditedDtype = Annotated[
    Literal["bf16", "fp8", "fp8_block", "nvfp4"] | None,
    typer.Option(
        "--dtype", metavar="NAME", help="bf16, fp8, fp8_block or nvfp4.", rich_help_panel=_WHAT, show_default=False
    ),
]
Tensor = Annotated[int | None, _number("--tp", "Tensor-parallel degree.")]
Pipeline = Annotated[int | None, _number("--pp", "Pipeline-parallel degree.")]
Virtual = Annotated[int | None, _number("--vpp", "Stages per rank (virtual pipeline).")]
Context = Annotated[int | None, _number("--cp", "Context-parallel degree.")]
Expert = Annotated[int | None, _number("--ep", "Expert-parallel degree.")]
Layout = Annotated[
    str | None,
    typer.Option(
        "--layout",
        metavar="LAYOUT",
        help="Megatron's pipeline layout, e.g. 'Et*2|(t*2|)*34L'.",
        rich_help_panel=_LAYOUT,
        show_default=False,
    ),
]
RecomputeGranularity = Annotated[
    str | None,
    typer.Option(
        "--recompute-granularity",
        metavar="NAME",
        help="full or selective, as Megatron's.",
        rich_help_panel=_LAYOUT,
        show_default=False,
    ),
]
RecomputeMethod = Annotated[
    str | None,
    typer.Option(
        "--recompute-method",
        metavar="NAME",
        help="uniform or block, as Megatron's.",
        rich_help_panel=_LAYOUT,
        show_default=False,
    ),
]
RecomputeLayers = Annotated[int | None, _number("--recompute-num-layers", "Blocks of every stage, as Megatron's.")]
ShardOptimizer = Annotated[
    bool,
    typer.Option("--use-distributed-optimizer", help="Replicas shard the optimizer's state.", rich_help_panel=_LAYOUT),
]
PartitionMethod = Annotated[
    str | None,
    typer.Option(
        "--partition-method",
        metavar="METHOD",
        help="DeepSpeed's: uniform, parameters or type:REGEX.",
        rich_help_panel=_LAYOUT,
        show_default=False,
    ),
]
SetVariables = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A variable of the script's environment; may be given several times.",
        rich_help_panel=_WHAT,
        show_default=False,
    ),
]
