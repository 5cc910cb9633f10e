"""A run of DeepSpeed's pipeline engine, by its JSON and the method by which a PipelineModule cuts its layers.

The layers are an embedding, the blocks and a head, one LayerSpec each.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from profiles.configurations.audit_question import AuditQuestion
from profiles.configurations.flag_meanings import DEEPSPEED_INNER, READ, meaning_of
from profiles.configurations.known_models import DEFAULT_SEQUENCE, find_whole_model
from profiles.configurations.printed_object import printed_object
from profiles.configurations.run_configuration import ReadingNotes, Recomputation, RunConfiguration, whole_number
from profiles.documents.unique_names import read_json
from profiles.estimates.block_operations import Run
from profiles.estimates.block_weights import block_weights
from profiles.estimates.model_shapes import ModelShape


class _PlannedModule(NamedTuple):
    """What the module states beside a configuration."""

    parts: list[int]
    """Layers before each stage, and all of them."""
    model: dict[str, Any]
    """How the layers' own code has to run them, by fields of `profiles.assumptions.Assumptions`."""


def _read_planned_module(text: str, *, source: str) -> tuple[dict[str, Any], _PlannedModule]:
    """What `pipeplan export deepspeed` writes, as DeepSpeed's JSON would state it, not run; and the rest.

    Raises ValueError for another module, and for one of DualPipeV, whose order no audit plays.
    """
    try:
        body = ast.parse(text).body
        values = {
            ast.unparse(each.targets[0]): ast.literal_eval(each.value) for each in body if isinstance(each, ast.Assign)
        }
        parts, ranks = values["PARTS"], len(values["RANKS"])
    except (KeyError, SyntaxError, TypeError, ValueError, RecursionError):
        raise ValueError(
            f"{source}: is no module that `pipeplan export deepspeed` wrote; give one, or DeepSpeed's JSON"
        ) from None
    if any(isinstance(each, ast.ClassDef) and "DualPipeV" in each.name for each in body):
        raise ValueError(f"{source}: DualPipeV is not audited; give a plan with --target deepspeed")
    if len(parts) < 2 or any(type(each) is not int for each in parts) or parts != sorted({0, *parts}):
        raise ValueError(f"PARTS = {str(parts)[:60]}: are not layers before each stage, from 0 on; export it again")
    document = {
        "pipeline": {
            "stages": len(parts) - 1,
            "activation_checkpoint_interval": values.get("ACTIVATION_CHECKPOINT_INTERVAL"),
        },
        "gradient_accumulation_steps": values.get("NUM_MICROBATCHES"),
        "train_micro_batch_size_per_gpu": values.get("MICRO_BATCH_SIZE"),
        "data_parallel_size": max(1, ranks // (len(parts) - 1)),
        "sequence_parallel_size": 1,
        "zero_optimization": values.get("ZERO_OPTIMIZATION", {}),
        **values.get("CONFIG", {}),
    }
    return document, _PlannedModule(parts=parts, model=values.get("MODEL", {}))


_SECTIONS = {name.partition(".")[0] for name in DEEPSPEED_INNER}
"""Those of which all names are known."""
_SWITCHED = {
    **dict.fromkeys(("true", "1", "yes", "on", "y", "t"), True),
    **dict.fromkeys(("false", "0", "no", "off", "n", "f", "auto"), False),
}
"""In small letters, as DeepSpeed reads what stands for true or false."""

_BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_HALVES = ("bf16", "fp16")
_BY_OPTION = {
    "pipeline.stages": "pp", "tensor_parallel.autotp_size": "tp", "sequence_parallel_size": "cp",
    "expert_parallel.autoep_size": "ep",
}  # fmt: skip

METHODS = "uniform, parameters, type:REGEX"

_NAMES = {
    "E": ("embeddingpipe",),
    "t": ("transformerlayer", "paralleltransformerlayerpipe", "transformerblock", "decoderlayer", "layer", "block"),
    "L": ("lmheadpipe",),
}
"""Of the classes of layers, in small letters; a tied head is another embedding."""


def read_deepspeed(text: str, asked: AuditQuestion, *, source: str) -> RunConfiguration:
    """The run; raises ValueError with field, value and remedy for what is not understood."""
    planned = None
    if source.endswith(".py"):
        document, planned = _read_planned_module(text, source=source)
    else:
        document = _document(text, source=source)
    typed = {"train_micro_batch_size_per_gpu": asked.micro_batch_size, "train_batch_size": asked.global_batch_size}
    document |= {name: value for name, value in typed.items() if value is not None}
    if asked.model is None:
        raise ValueError("the model is not in DeepSpeed's configuration; give --model")
    notes = ReadingNotes()
    _sort_out(document, asked, notes=notes)
    shape, own_sequence = find_whole_model(asked.model, program="DeepSpeed")
    pipe = document.get("pipeline", {})
    count = asked.pp or _count(pipe, "stages")
    if not count:
        raise ValueError("the number of stages is not in DeepSpeed's configuration; give --pp, its num_stages")
    tensor = asked.tp or _count(document.get("tensor_parallel", {}), "autotp_size") or 1
    if reason := shape.why_not(tensor):
        notes.refusals.append(f"tensor_parallel.autotp_size = {tensor} does not divide the {reason}")
    context = _context(document, asked, notes=notes, stages=count)
    experts = _experts(document, asked, notes=notes, shape=shape)
    group, within = tensor * context, count * tensor * context
    data = _pipelines(document, asked, notes=notes, within=within)
    data = data or notes.assume_devices(within, group=group, experts=experts)
    notes.require_shared(experts=experts, devices=data * group)
    micro, batch = _batch(document, notes, data=data, stages=count)
    stated = asked.seq_length or (planned and planned.model.get("sequence_length"))
    sequence = stated or own_sequence or DEFAULT_SEQUENCE
    if stated is None:
        notes.assumed.append(f"tokens of a sample = {sequence}")
    if planned is None:
        cut = cut_layers(shape, count=count, method=asked.partition_method or _method(pipe, notes), notes=notes)
    else:
        cut = _stated_stages(planned, shape, asked=asked)
    zero = _count(document.get("zero_optimization", {}), "stage") or 0
    if zero > 1:
        notes.refusals.append(f"zero_optimization.stage = {zero}: the pipeline engine takes 0 and 1; set one of them")
    _note_halves(document, notes)
    return RunConfiguration(
        program="deepspeed",
        shape=shape,
        tensor=tensor,
        context=context,
        experts=tensor if experts is None and shape.mixture is not None else experts,
        pipeline=count,
        data=data,
        stages=() if notes.refusals else cut,
        micro_batch=micro,
        global_batch=batch,
        sequence=sequence,
        recompute=Recomputation() if _count(pipe, "activation_checkpoint_interval") else None,
        shards="optimizer" if zero or is_on(document, "bf16") else "nothing",  # by BF16_Optimizer, whatever the stage
        fused_attention=planned is None or planned.model.get("attention") != "unfused",
        gradient_bytes=2,
        notes=notes,
    )


def _context(document: Mapping[str, Any], asked: AuditQuestion, *, notes: ReadingNotes, stages: int) -> int:
    """Ulysses' degree; the ranks of a PipelineModule have no such axis."""
    name = "sequence_parallel_size"
    context = asked.cp or _count(document, name) or 1
    if context > 1:
        notes.not_counted.append(f"{name} = {context}: Ulysses exchanges heads; estimates pass keys and values round")
        if stages > 1:
            notes.refusals.append(f"{name} = {context}: {stages} stages share no sequences in DeepSpeed; set 1")
    return context


def _experts(
    document: Mapping[str, Any], asked: AuditQuestion, *, notes: ReadingNotes, shape: ModelShape
) -> int | None:
    """AutoEP's degree; None: the devices that share a layer share its experts."""
    section = document.get("expert_parallel", {}) if is_on(document, "expert_parallel") else {}
    if (_count(section, "expert_tensor_parallel_size") or 1) > 1:
        raise ValueError("expert_parallel.expert_tensor_parallel_size: experts cut into parts are not read; set 1")
    degree = asked.ep or _count(section, "autoep_size")
    if degree is None:
        return None
    if shape.mixture is None:
        notes.refusals.append(f"expert_parallel.autoep_size = {degree}: {shape.name} has no experts; leave it out")
        return None
    if degree == 0 or shape.mixture.experts % degree:
        notes.refusals.append(
            f"expert_parallel.autoep_size = {degree} does not divide {shape.mixture.experts} experts; use another"
        )
    return max(1, degree)


def _document(text: str, *, source: str) -> dict[str, Any]:
    text = printed_object(text, "json = ", source=source) or text
    try:
        document = read_json(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{source}: is not JSON ({str(error)[:80]}); give DeepSpeed's configuration") from None
    if not isinstance(document, dict) or isinstance(document.get("deepspeed"), dict):
        raise ValueError(f"{source}: is not DeepSpeed's configuration, which is an object; give that alone")
    if "bfloat16" in document:  # as its earlier releases call it
        document.setdefault("bf16", document.pop("bfloat16"))
    return document


def _pipelines(document: Mapping[str, Any], asked: AuditQuestion, *, notes: ReadingNotes, within: int) -> int | None:
    """As stated, or of the devices that are stated; None where nobody does."""
    stated = _count(document, "data_parallel_size") if "sequence_parallel_size" in document else None
    if stated and asked.devices not in (None, stated * within):
        notes.refusals.append(
            f"data_parallel_size = {stated}: times {within} it is not {asked.devices} devices; use {stated * within}"
        )
    if stated or asked.devices is None:
        return stated
    if asked.devices % within:
        notes.refusals.append(f"{asked.devices} devices are not a multiple of {within}; use another number")
    return max(1, asked.devices // within)


def _count(section: Any, name: str) -> int | None:
    value = section.get(name) if isinstance(section, Mapping) else None
    return None if value is None or value == "auto" else whole_number(name, value, least=0)


def is_on(document: Mapping[str, Any], name: str) -> bool:
    """Whether a section is enabled; raises ValueError for what is neither true nor false."""
    value = str(document.get(name, {}).get("enabled", False)).lower()
    if value not in _SWITCHED:
        raise ValueError(f"{name}.enabled = {value[:60]!r}: is neither true nor false; write one of them")
    return _SWITCHED[value]


def _note_halves(document: Mapping[str, Any], notes: ReadingNotes) -> None:
    halves = sum(is_on(document, name) for name in _HALVES)
    if halves > 1:
        notes.refusals.append("bf16 and fp16 are both enabled; enable one of them")
    elif not halves:
        notes.assumed.append("bf16, though neither bf16 nor fp16 is enabled")


def _batch(document: Mapping[str, Any], notes: ReadingNotes, *, data: int, stages: int) -> tuple[int, int]:
    """Two of three numbers say the third; what is missing besides is assumed."""
    whole, micro, steps = (_count(document, name) for name in _BATCH)
    if 0 in (whole, micro, steps):
        raise ValueError(f"{_BATCH[(whole, micro, steps).index(0)]} = 0: is no number of samples; give 1 or more")
    if micro is None:
        micro = whole // (data * steps) if whole and steps else 1
        if not (whole and steps):
            notes.assumed.append("train_micro_batch_size_per_gpu = 1")
    if steps is None and whole is None:
        steps = 4 * stages
        notes.assumed.append(f"gradient_accumulation_steps = {steps}")
    found = micro * data * (steps if steps is not None else max(1, (whole or 0) // (micro * data)))
    if whole is not None and whole != found:
        notes.refusals.append(
            f"train_batch_size = {whole} is not micro batch x accumulation x pipelines = {found}; make them equal"
        )
    return max(1, micro), max(1, found)


def _method(pipe: Any, notes: ReadingNotes) -> str:
    named = pipe.get("partition_method") or pipe.get("partition") if isinstance(pipe, Mapping) else None
    if named in (None, "best"):
        notes.assumed.append("partition_method = parameters (PipelineModule's own)")
        return "parameters"
    return str(named)


def cut_layers(shape: ModelShape, *, count: int, method: str, notes: ReadingNotes) -> tuple[str, ...]:
    """As PipelineModule does it; what it would refuse is noted, and other methods raise ValueError."""
    letters = "E" + "t" * shape.blocks + "L"
    if count > len(letters):
        notes.refusals.append(f"{count} stages are more than {len(letters)} layers; use fewer")
        return ()
    kind = method.lower()
    if kind == "uniform":
        sizes = [len(letters) // count + (number < len(letters) % count) for number in range(count)]
    elif kind == "parameters":
        sizes = balanced_sizes(_parameters(shape), count)
    elif kind.startswith("type:"):
        try:
            pattern = re.compile(kind.partition(":")[2])
        except re.error:
            raise ValueError(
                f"partition method {method[:40]!r}: is not a regular expression behind type:; correct it"
            ) from None
        found = {letter for letter, names in _NAMES.items() if any(map(pattern.search, names))}
        if "t" not in found:
            notes.assumed.append(f"{method[:40]} matches the blocks and nothing else")
            found = {"t"}
        found |= {"L"} if shape.is_tied and "E" in found else set()
        sizes = balanced_sizes([int(letter in found) for letter in letters], count)
    else:
        raise ValueError(f"partition method {method[:40]!r}: is not known; give one of {METHODS}")
    ends = [sum(sizes[: number + 1]) for number in range(count)]
    stages = tuple(letters[end - size : end] for end, size in zip(ends, sizes, strict=True))
    if "" in stages:
        raise ValueError(f"stage {stages.index('')} has no layers; use fewer stages, or another partition method")
    return stages


def _stated_stages(planned: _PlannedModule, shape: ModelShape, *, asked: AuditQuestion) -> tuple[str, ...]:
    """As the module cuts; raises ValueError where it is another model's, and where options say otherwise."""
    parts, letters = planned.parts, "E" + "t" * shape.blocks + "L"
    if asked.partition_method is not None or asked.pp not in (None, len(parts) - 1):
        raise ValueError("PARTS: state the stages; leave out --pp and --partition-method")
    if parts[-1] != len(letters):
        raise ValueError(f"PARTS: are of {parts[-1]} layers, and {shape.name} has {len(letters)}; give another --model")
    return tuple(letters[start:end] for start, end in pairwise(parts))


def _parameters(shape: ModelShape) -> list[int]:
    table, alone = shape.vocabulary * shape.hidden, Run(samples=1, sequence=1)
    return [table, *(block_weights(shape, alone, block=block) for block in range(shape.blocks)), table]


def balanced_sizes(weights: Sequence[int], count: int) -> list[int]:
    """Sizes of contiguous parts, largest weight less smallest as small as the recurrence of DeepSpeed 0.19 finds it.

    Of equal ones the later cut counts, as there.
    """
    total = [0]
    for weight in weights:
        total.append(total[-1] + weight)
    infinite = float("inf")
    largest, smallest, spread = ([[infinite] * (count + 1) for _ in total] for _ in range(3))
    cut = [[0] * (count + 1) for _ in total]
    largest[0][0] = spread[0][0] = 0
    for end in range(1, len(total)):
        for part in range(1, min(end, count) + 1):
            for start in range(end):
                own = total[end] - total[start]
                high, low = max(largest[start][part - 1], own), min(smallest[start][part - 1], own)
                if high - low <= spread[end][part]:
                    spread[end][part], largest[end][part], smallest[end][part] = high - low, high, low
                    cut[end][part] = start
    ends = [len(weights)]
    for part in range(count, 0, -1):
        ends.append(cut[ends[-1]][part])
    return [end - start for end, start in pairwise(ends)][::-1]


def _sort_out(document: Mapping[str, Any], asked: AuditQuestion, *, notes: ReadingNotes) -> None:
    """What is not counted, and what is not known; raises ValueError for a slip, and for another program's file."""
    optimizer = document.get("optimizer")
    notes.note_optimizer(str(optimizer.get("type", "")) if isinstance(optimizer, Mapping) else "")
    names = list(_names(document))
    told = {*_BATCH, *(name for name, option in _BY_OPTION.items() if getattr(asked, option) is not None)}
    if not any(is_on(document, each) for each in _HALVES):  # of which one note is made
        told.update(f"{each}.enabled" for each in _HALVES)
    for name, value in names:
        if name in READ["deepspeed"]:
            if value == "auto" and name not in told:
                notes.assumed.append(f"{name} is auto, and read as if it were not there")
            continue
        if (meaning := meaning_of(name, "deepspeed")) == "not counted":
            notes.not_counted.append(name)
        elif meaning == "unknown":
            notes.note_unknown(name, value, known=(*READ["deepspeed"], *DEEPSPEED_INNER))
    notes.require_own("DeepSpeed", stated=len(names), names=document)


def _names(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names with values, and those in sections; raises ValueError for a section that is none."""
    for name, value in document.items():
        if name in _SECTIONS and not isinstance(value, Mapping):
            raise ValueError(f"{name} = {str(value)[:60]}: is not a section; write an object")
        if name.startswith("_") or (isinstance(value, Mapping) and value.get("enabled") is False):
            continue
        yield name, value
        if name in _SECTIONS:
            yield from ((f"{name}.{key}", each) for key, each in value.items())
