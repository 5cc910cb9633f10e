"""A configuration by its program, its file and the options beside it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from profiles.configurations.argument_forms import ReadArguments, Value, read_arguments
from profiles.configurations.deepspeed_run import DeepSpeedQuestion, read_deepspeed
from profiles.configurations.known_models import MODELS, SHEETS
from profiles.configurations.megatron_run import read_megatron
from profiles.configurations.run_configuration import RunConfiguration
from profiles.configurations.torchtitan_run import read_titan_document, read_torchtitan
from profiles.documents.schema_rules import Stated
from profiles.estimates.operations import Dtype
from profiles.field_rules import MAX_NAME_LENGTH

MAX_BYTES = 2**24

MOST_COUNT, MOST_GIB = 10**7, 10**4
"""Of devices, samples, tokens and degrees; of a GPU's memory."""

_Count = Annotated[int, Stated(minimum=1, maximum=MOST_COUNT)]

_PRECISIONS: Mapping[Dtype, Mapping[str, Value]] = {
    "bf16": {"bf16": True, "fp8_format": False, "fp4_format": False},
    "fp8": {"bf16": True, "fp8_format": "hybrid", "fp8_recipe": "tensorwise"},
    "fp8_block": {"bf16": True, "fp8_format": "e4m3", "fp8_recipe": "blockwise"},
    "nvfp4": {"bf16": True, "fp4_format": "e2m1"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditQuestion:
    """The question as the command line states it."""

    program: Literal["megatron", "torchtitan", "deepspeed"]
    """Program whose configuration it is."""
    file: Annotated[str, Stated(maxLength=MAX_NAME_LENGTH)] | None = None
    """What it is started with; of a file in Python `FILE.py:FUNCTION`."""
    text: str | None = None
    """What the file holds, where it is not on this machine."""
    model: Annotated[str | None, Stated({"enum": [*MODELS, None]})] = None
    gpu: Annotated[str | None, Stated({"enum": [*(name.removesuffix("_sxm") for name in SHEETS), None]})] = None
    gpu_memory: Annotated[float, Stated(minimum=1, maximum=MOST_GIB)] | None = None
    devices: _Count | None = None
    seq_length: _Count | None = None
    micro_batch_size: _Count | None = None
    global_batch_size: _Count | None = None
    dtype: Dtype | None = None
    variables: list[str] | None = field(default=None)
    """`NAME=VALUE` of the script's environment."""
    tp: _Count | None = None
    pp: _Count | None = None
    vpp: _Count | None = None
    cp: _Count | None = None
    ep: _Count | None = None
    layout: str | None = None
    recompute_granularity: str | None = None
    recompute_method: str | None = None
    recompute_num_layers: _Count | None = None
    use_distributed_optimizer: bool = False
    partition_method: str | None = None

    @property
    def path(self) -> str:
        """The file without a function's name."""
        return (self.file or "").partition(".py:")[0] + (".py" if self.function else "")

    @property
    def function(self) -> str | None:
        """The one in the file that makes the configuration."""
        return (self.file or "").partition(".py:")[2] or None


MEGATRON_NAMES = {
    "devices": "world_size",
    "seq_length": "seq_length",
    "micro_batch_size": "micro_batch_size",
    "global_batch_size": "global_batch_size",
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "vpp": "num_virtual_stages_per_pipeline_rank",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "layout": "pipeline_model_parallel_layout",
    "recompute_granularity": "recompute_granularity",
    "recompute_method": "recompute_method",
    "recompute_num_layers": "recompute_num_layers",
}
"""Options by Megatron's names."""


MEGATRON_ONLY = (
    "layout",
    "vpp",
    "recompute_method",
    "recompute_num_layers",
    "use_distributed_optimizer",
    "dtype",
    "variables",
)
"""Options that no other program's configuration has."""

ASSUMED_GPU = "h100"
"""GPU of a configuration that names none."""


def read_configuration(asked: AuditQuestion) -> RunConfiguration:
    """Raises ValueError with file, flag, value and remedy."""
    try:
        run = _read_run(asked)
    except RecursionError:
        raise ValueError(f"{asked.file}: is nested too deeply; give the arguments themselves") from None
    if asked.gpu is None:
        run.notes.assumed.append(f"gpu = {ASSUMED_GPU}")
    return run


def _read_run(asked: AuditQuestion) -> RunConfiguration:
    text = asked.text if asked.text is not None else "" if asked.file is None else _read(asked.path)
    if asked.program == "megatron":
        return _read_megatron(asked, text)
    if asked.program == "torchtitan":
        _require_unused(asked, (*MEGATRON_ONLY, "partition_method", "global_batch_size"))
        document = {} if asked.file is None else read_titan_document(text, source=asked.path, function=asked.function)
        return read_torchtitan(
            _titan_options(asked, document), model=asked.model, devices=asked.devices, sequence=asked.seq_length
        )
    _require_unused(asked, (*MEGATRON_ONLY, "recompute_granularity"))
    wanted = DeepSpeedQuestion(
        model=asked.model,
        stages=asked.pp,
        method=asked.partition_method,
        devices=asked.devices,
        tensor=asked.tp,
        context=asked.cp,
        experts=asked.ep,
        sequence=asked.seq_length,
        micro_batch=asked.micro_batch_size,
        batch=asked.global_batch_size,
    )
    return read_deepspeed(text or "{}", wanted, source=asked.file or "options")


def _read(file: str) -> str:
    with Path(file).open("rb") as opened:
        return opened.read(MAX_BYTES).decode("utf-8", errors="replace")


def _require_unused(asked: AuditQuestion, names: tuple[str, ...]) -> None:
    for name in names:
        if getattr(asked, name):
            option = "set" if name == "variables" else name.replace("_", "-")
            raise ValueError(f"--{option}: {asked.program} does not have it; leave it out")


def _read_megatron(asked: AuditQuestion, text: str) -> RunConfiguration:
    _require_unused(asked, ("partition_method",))
    given = dict(_variable(each) for each in asked.variables or [])
    if asked.file is None:
        read = ReadArguments(values={}, kind="options")
    else:
        read = read_arguments(text, source=asked.path, given=given, function=asked.function)
    options: dict[str, Value] = {
        MEGATRON_NAMES[name]: str(value) for name in MEGATRON_NAMES if (value := getattr(asked, name)) is not None
    }
    if asked.dtype is not None:
        options.update(_PRECISIONS[asked.dtype])
    if asked.use_distributed_optimizer:
        options["use_distributed_optimizer"] = True
    if asked.layout is not None or asked.vpp is not None:  # what was typed overrules the other ways to say it
        others = ("pipeline_model_parallel_layout", "num_virtual_stages_per_pipeline_rank")
        options = {**dict.fromkeys((*others, "num_layers_per_virtual_pipeline_stage"), False), **options}
    return read_megatron(read, options=options, model=asked.model)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not (name.isidentifier() or name.isdigit()):
        raise ValueError(f"--set {text[:60]}: write NAME=VALUE, or 1=VALUE for a script's first argument")
    return name, value


def _titan_options(asked: AuditQuestion, document: dict[str, object]) -> dict[str, object]:
    """The document with what was typed in its sections."""
    typed = {
        ("parallelism", "tensor_parallel_degree"): asked.tp,
        ("parallelism", "pipeline_parallel_degree"): asked.pp,
        ("parallelism", "context_parallel_degree"): asked.cp,
        ("parallelism", "expert_parallel_degree"): asked.ep,
        ("parallelism", "pipeline_parallel_microbatch_size"): asked.micro_batch_size,
        ("activation_checkpoint", "mode"): asked.recompute_granularity,
    }
    for (section, name), value in typed.items():
        if value is not None:
            within = document.setdefault(section, {})
            assert isinstance(within, dict)
            within[name] = value
    return document
