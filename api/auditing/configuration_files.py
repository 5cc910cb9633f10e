"""A configuration by its program, its file and the options beside it."""

import re
from collections.abc import Mapping
from pathlib import Path

from profiles.configurations.argument_forms import ReadArguments, Value, read_arguments
from profiles.configurations.audit_question import AuditQuestion
from profiles.configurations.deepspeed_run import read_deepspeed
from profiles.configurations.known_models import find_sheet
from profiles.configurations.megatron_run import read_megatron
from profiles.configurations.run_configuration import RunConfiguration
from profiles.configurations.torchtitan_run import TABLE, TABLE_FIELD, UNREAD, read_titan_document, read_torchtitan
from profiles.estimates.operations import Dtype

MAX_BYTES = 2**24

_PRECISIONS: Mapping[Dtype, Mapping[str, Value]] = {
    "bf16": {"bf16": True, "fp8_format": False, "fp4_format": False},
    "fp8": {"bf16": True, "fp8_format": "hybrid", "fp8_recipe": "tensorwise"},
    "fp8_block": {"bf16": True, "fp8_format": "e4m3", "fp8_recipe": "blockwise"},
    "nvfp4": {"bf16": True, "fp4_format": "e2m1"},
}


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

_DOCUMENTS = (".yaml", ".yml", ".json")
_MANIFEST = [re.compile(rf"(?:^|[{{,]\s*)[\"']?{name}[\"']?\s*:", re.MULTILINE) for name in ("apiVersion", "kind")]
"""Names that every object of Kubernetes has."""

_FASTEST_GB_PER_S = 1000
"""Of a GPU to others: no link of today is faster."""


def read_configuration(asked: AuditQuestion) -> RunConfiguration:
    """Raises ValueError with file, flag, value and remedy."""
    try:
        run = _read_run(asked)
    except RecursionError:
        raise ValueError(f"{asked.file}: is nested too deeply; give the arguments themselves") from None
    if asked.gpu is None:
        run.notes.assumed.append(f"gpu = {find_sheet(None).name.removesuffix('_sxm')}")
    if (asked.network_gb_per_s or 0) > _FASTEST_GB_PER_S:
        run.notes.assumed.append(f"network_gb_per_s = {asked.network_gb_per_s:,.0f}, in GB/s; is the unit right?")
    return run


def _read_run(asked: AuditQuestion) -> RunConfiguration:
    text = asked.text if asked.text is not None else "" if asked.file is None else _read(asked.path)
    found = [pattern.search(text) for pattern in _MANIFEST] if asked.path.endswith(_DOCUMENTS) else []
    if found and all(found):
        raise ValueError(f"{asked.path}: is a Kubernetes manifest, which is not read; give its command as a script")
    if asked.program == "megatron":
        return _read_megatron(asked, text)
    if asked.program == "torchtitan":
        _require_unused(asked, (*MEGATRON_ONLY, "partition_method", "global_batch_size"))
        document = {} if asked.file is None else read_titan_document(text, source=asked.path, function=asked.function)
        is_whole = asked.file is not None and not document.get(UNREAD)  # whose parts are refused by themselves
        if is_whole and {"training", "parallelism"}.isdisjoint(document):
            raise ValueError(f"{asked.path}: has neither [training] nor [parallelism]; give torchtitan's configuration")
        _add_table(asked, document)
        return read_torchtitan(_titan_options(asked, document), model=asked.model, devices=asked.devices)
    _require_unused(asked, (*MEGATRON_ONLY, "recompute_granularity"))
    return read_deepspeed(text or "{}", asked, source=asked.file or "options")


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
        place = Path(asked.path) if asked.text is None else None  # what is beside a text is not the asker's
        read = read_arguments(text, source=asked.path, given=given, function=asked.function, place=place)
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


def _add_table(asked: AuditQuestion, document: dict[str, object]) -> None:
    """Beside the document the table of actions that it names, which is read where the document was."""
    parallelism = document.get("parallelism")
    name = parallelism.get(TABLE_FIELD) if isinstance(parallelism, dict) else None
    if not name:
        return
    if asked.text is not None:
        raise ValueError(f"parallelism.{TABLE_FIELD}: names a file of yours; audit by the command, or leave it out")
    try:
        document[TABLE] = _read(str(Path(asked.path).parent / str(name)))
    except OSError as error:
        raise ValueError(
            f"parallelism.{TABLE_FIELD} = {str(name)[:60]}: cannot be read ({error.strerror}); put it beside "
            f"{asked.path}, or leave it out"
        ) from None


def _titan_options(asked: AuditQuestion, document: dict[str, object]) -> dict[str, object]:
    """The document with what was typed in its sections."""
    typed = {
        ("parallelism", "tensor_parallel_degree"): asked.tp,
        ("parallelism", "pipeline_parallel_degree"): asked.pp,
        ("parallelism", "context_parallel_degree"): asked.cp,
        ("parallelism", "expert_parallel_degree"): asked.ep,
        ("parallelism", "pipeline_parallel_microbatch_size"): asked.micro_batch_size,
        ("training", "seq_len"): asked.seq_length,
        ("activation_checkpoint", "mode"): asked.recompute_granularity,
    }
    for (section, name), value in typed.items():
        if value is not None:
            within = document.setdefault(section, {})
            assert isinstance(within, dict)
            within[name] = value
    return document
