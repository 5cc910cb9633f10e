"""What `pipeplan audit` accepts, with its help texts."""

from typing import Annotated, Literal

from api.cli.options.declare import argument, count, option

_WHAT = "What runs"
_LAYOUT = "How it is cut"

Program = Annotated[
    Literal["megatron", "torchtitan", "deepspeed"], argument("PROGRAM", "megatron, torchtitan or deepspeed.")
]
ConfigurationFile = Annotated[
    str | None,
    argument(
        "[FILE]",
        "What it is started with: a script with flags, YAML, JSON, TOML, a log, or FILE.py:FUNCTION. Options overrule "
        "it.",
    ),
]


AuditedModel = Annotated[
    str | None, option("--model NAME|FILE", "A known model, e.g. llama3-70b, or a config.json.", panel=_WHAT)
]
AuditedGpu = Annotated[
    str | None, option("--gpu NAME", "a100, h100 (default), h200, b200, b300, gb200, gb300.", panel=_WHAT)
]
MemoryGb = Annotated[
    float | None,
    option("--gpu-memory GIB", "Memory of a GPU, where it is not its data sheet's.", panel=_WHAT, min=1, max=10**4),
]
MeasuredProfile = Annotated[
    str | None,
    option(
        "--profile FILE",
        "A workload with measured layers, to take times and bytes from instead of estimates.",
        panel=_WHAT,
    ),
]
AuditedDevices = Annotated[int | None, count("--devices", "GPUs in all.", panel=_WHAT)]
AuditedSequence = Annotated[int | None, count("--seq-length", "Tokens of a sample.", panel=_WHAT)]
AuditedMicro = Annotated[int | None, count("--micro-batch-size", "Samples of a microbatch.", panel=_WHAT)]
AuditedBatch = Annotated[int | None, count("--global-batch-size", "Samples of an iteration.", panel=_WHAT)]
AuditedDtype = Annotated[
    Literal["bf16", "fp8", "fp8_block", "nvfp4"] | None,
    option("--dtype NAME", "bf16, fp8, fp8_block or nvfp4.", panel=_WHAT),
]
Tensor = Annotated[int | None, count("--tp", "Tensor-parallel degree.", panel=_LAYOUT)]
Pipeline = Annotated[int | None, count("--pp", "Pipeline-parallel degree.", panel=_LAYOUT)]
Virtual = Annotated[int | None, count("--vpp", "Stages per rank (virtual pipeline).", panel=_LAYOUT)]
Context = Annotated[int | None, count("--cp", "Context-parallel degree.", panel=_LAYOUT)]
Expert = Annotated[int | None, count("--ep", "Expert-parallel degree.", panel=_LAYOUT)]
Layout = Annotated[
    str | None, option("--layout LAYOUT", "Megatron's pipeline layout, e.g. 'Et*2|(t*2|)*34L'.", panel=_LAYOUT)
]
RecomputeGranularity = Annotated[
    str | None, option("--recompute-granularity NAME", "full or selective, as Megatron's.", panel=_LAYOUT)
]
RecomputeMethod = Annotated[
    str | None, option("--recompute-method NAME", "uniform or block, as Megatron's.", panel=_LAYOUT)
]
RecomputeLayers = Annotated[
    int | None, count("--recompute-num-layers", "Blocks of every stage, as Megatron's.", panel=_LAYOUT)
]
ShardOptimizer = Annotated[
    bool, option("--use-distributed-optimizer", "Replicas shard the optimizer's state.", panel=_LAYOUT)
]
PartitionMethod = Annotated[
    str | None, option("--partition-method METHOD", "DeepSpeed's: uniform, parameters or type:REGEX.", panel=_LAYOUT)
]
SetVariables = Annotated[
    list[str] | None,
    option("--set NAME=VALUE", "A variable of the script's environment; may be given several times.", panel=_WHAT),
]
