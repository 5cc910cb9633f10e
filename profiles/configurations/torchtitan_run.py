"""A run of torchtitan, by its configuration in TOML, JSON or Python (2024, 0.2, 0.3, and its main branch of 2026)."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

from profiles.configurations.flag_meanings import READ, meaning_of
from profiles.configurations.known_models import MODELS, find_whole_model
from profiles.configurations.printed_object import printed_object
from profiles.configurations.python_recipe import CLASS, read_recipe
from profiles.configurations.run_configuration import (
    Order,
    ReadingNotes,
    Recomputation,
    RunConfiguration,
    whole_number,
    with_ends,
)
from profiles.documents.unique_names import read_json
from profiles.estimates.model_shapes import ModelShape

ORDERS: Mapping[str, tuple[Order, bool]] = {
    "1f1b": ("1F1B", False),
    "gpipe": ("GPipe", False),
    "interleaved1f1b": ("1F1B", True),
    "zbvzerobubble": ("ZBVZeroBubble", True),
}
"""Schedules that are played here, by their names in lower case, and whether ranks hold several stages."""

TABLED: Mapping[str, bool] = {
    **{name: has_several for name, (_, has_several) in ORDERS.items()},
    "pipelineschedulesingle": False,
    **dict.fromkeys(("pipelineschedulemulti", "loopedbfs", "interleavedzerobubble", "dualpipev"), True),
}
"""Schedules that a table may stand in for; they say how many stages a rank holds."""

IN_V = ("zbvzerobubble", "dualpipev")
"""Those whose ranks hold two stages in a V."""

MODELS_OF = {"llama3": "llama3-", "qwen3": "qwen3-", "deepseek_v3": "deepseek-v3"}
"""The beginning of our names for its models."""

_WITHOUT_PIPELINE = "without a pipeline replicas shard weights (FSDP2), of which there are no estimates here"

_SIZING = re.compile(r"what |(?:parallelism|training|activation_checkpoint) = |(?:Parallelism|Training)\w*\(\*\*|"
                     r"parallelism\.pipeline|\S*(?:degree|microbatch\w*|seq_len|_length|batch_size) = ")  # fmt: skip
"""What of a recipe says degrees, batch, tokens, stages or recomputation."""

_OF_PARALLELISM = re.compile(r"_parallel_(?:\w+_)?(?:degree|schedule)$|^pipeline_par")
_EARLIER = {"data_parallel_degree": "data_parallel_shard_degree", "batch_size": "local_batch_size"}
"""Names of fields in releases of 2024, and today's."""
UNREAD, TABLE, OF_2024 = "_unread", "_table", "_of_2024"
"""The entries of a document for what of a recipe was not read, for the text of its table of actions, and for whether
degrees stand where they stood in 2024."""

_MODES = {"No": "none", "Selective": "selective", "Full": "full", "MemoryBudget": "memory_budget"}
"""Of recomputation, by the beginnings of the names of their classes."""
_SWITCH = re.compile(r"\.(?:en|dis)able_\w+$|\.enable$")
_IN_TEXT = ("true", "false", "yes", "no", "on", "off")
"""Fields that are true or false, and words that stand for that in other languages."""

_LENGTHS = ("training.seq_len", "training.max_context_length")
_TOKENS = "training.num_tokens_per_microbatch_per_dp_rank"
_OF_2026 = (_TOKENS, "training.num_tokens_per_train_step", _LENGTHS[1], "parallelism.num_pp_microbatches")
"""Names of the release that counts microbatches in tokens."""
_BATCH = "training.global_batch_size"
"""Of releases before it."""

TABLE_FIELD = "pipeline_parallel_schedule_csv"
"""Of `[parallelism]`: the name of the table."""


class _Fields:
    """Values by `section.field`."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.values = dict(_leaves(document, before=""))

    def get(self, name: str, otherwise: Any = None) -> Any:
        value = self.values.get(name)
        return otherwise if value is None else value

    def count(self, name: str, otherwise: int) -> int:
        """A whole number, 1 or more."""
        return otherwise if (value := self.get(name)) is None else whole_number(name, value, least=1)

    def number(self, name: str, *, least: int) -> int | None:
        """A whole number; None where it is not stated, or -1, which leaves it to torchtitan."""
        value = self.get(name)
        if value is None or value == -1:
            return None
        return whole_number(name, value, least=least)


def _leaves(document: Mapping[str, Any], *, before: str) -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        if isinstance(value, dict):
            yield from _leaves(value, before=f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def read_titan_document(text: str, *, source: str, function: str | None = None) -> dict[str, Any]:
    """TOML, JSON, a log, or a function of a config_registry.py; raises ValueError with the source's name."""
    if source.endswith(".py"):
        recipe = read_recipe(text, function=function, source=source)
        return {**recipe.sections, **_registered(recipe.unread, source), UNREAD: list(recipe.unread)}
    text = printed_object(text, "Running with (?:args|configs): ", source=source) or text
    try:
        found = read_json(text) if text.lstrip().startswith("{") else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = f"{source}: is neither TOML nor JSON ({str(error)[:80]})"
        raise ValueError(f"{reason}; correct it, or give FILE.py:FUNCTION") from None
    return _by_todays_names(dict(found))


def _by_todays_names(document: dict[str, Any]) -> dict[str, Any]:
    """What stood in [training] and [experimental] in 2024, in its place; raises ValueError for what has two values."""
    for section in ("training", "experimental"):
        stated: Any = document.get(section)
        for name in list(stated) if isinstance(stated, dict) else ():
            is_moved, today = _OF_PARALLELISM.search(name) is not None, _EARLIER.get(name, name)
            if is_moved or today != name:
                within = document.setdefault("parallelism", {}) if is_moved else stated
                if not isinstance(within, dict) or today in within:
                    raise ValueError(f"{section}.{name}: is {today} today, which is stated as well; leave out one")
                within[today] = stated.pop(name)
                document[OF_2024] = document.get(OF_2024, False) or is_moved
    return document


def _registered(unread: Sequence[str], source: str) -> dict[str, Any]:
    """The model of `model_spec = model_registry("70B")` in `llama3/config_registry.py`; a teacher's is another."""
    found = re.search(r"^model_spec = model_registry\((?:flavor=)?'([\w.-]+)'", "\n".join(unread), re.MULTILINE)
    family = PurePosixPath(source).parent.name
    return {"model": {"name": family, "flavor": found[1]}} if found and family in MODELS_OF else {}


def read_torchtitan(document: Mapping[str, Any], *, model: str | None, devices: int | None) -> RunConfiguration:
    """The run; raises ValueError with field, value and remedy for what is not understood."""
    fields, notes = _Fields(document), ReadingNotes()
    _require_here(fields)
    _require_in_place(fields)
    _sort_out(fields, notes)
    shape, own_sequence = find_whole_model(model or _model_name(fields), program="torchtitan")
    tensor = fields.count("parallelism.tensor_parallel_degree", 1)
    context = fields.count("parallelism.context_parallel_degree", 1)
    pipeline = max(1, fields.count("parallelism.pipeline_parallel_degree", 1))
    degree = fields.count("parallelism.expert_parallel_degree", 1)
    if degree > 1 and shape.mixture is None:
        notes.not_counted.append(f"parallelism.expert_parallel_degree = {degree}: the model has no experts")
    group = tensor * context
    copies, shard = _data(fields, notes, ranks=pipeline, group=group, experts=degree, devices=devices)
    data = copies * shard
    if pipeline == 1 and shard > 1:
        raise ValueError(f"parallelism.data_parallel_shard_degree: {_WITHOUT_PIPELINE}; give --pp")
    notes.require_shared(devices=shard * group, experts=degree)
    tokens = _sequence(fields, notes, own=own_sequence)
    if reason := shape.why_not(tensor):
        notes.refusals.append(f"parallelism.tensor_parallel_degree = {tensor} does not divide the {reason}")
    parts = tensor * (2 * context if context > 1 else 1)
    if tokens % parts:
        notes.refusals.append(f"training.seq_len = {tokens} is not a multiple of {parts}, its parts by tp and cp")
    order, has_several = _order(fields, ranks=pipeline)
    stages = _stages(fields, shape, notes=notes, ranks=pipeline, has_several=has_several)
    micro, count = _microbatches(fields, notes, sequence=tokens, data=data, ranks=pipeline, stages=max(1, len(stages)))
    if has_several and order == "1F1B" and count % max(1, count // pipeline):
        notes.refusals.append(
            f"{count} microbatches are not a multiple of their {count // pipeline} rounds; use another local_batch_size"
        )
    return RunConfiguration(
        program="torchtitan",
        shape=shape,
        tensor=tensor,
        context=context,
        experts=None if shape.mixture is None else max(tensor, degree),
        pipeline=pipeline,
        data=data,
        chunks=max(1, len(stages) // pipeline),
        stages=() if notes.refusals else stages,
        order=order,
        rows=_rows(fields, ranks=pipeline) if order == "table" else (),
        in_v=_is_in_v(fields, pipeline),
        micro_batch=micro,
        global_batch=micro * count * data,
        sequence=tokens,
        recompute=_recomputation(fields, notes, order=order),
        shards="optimizer" if shard > 1 else "nothing",
        copies=copies,
        gradient_bytes=4,
        notes=notes,
    )


def _require_here(fields: _Fields) -> None:
    """Raise ValueError where another file, or what only running it tells, may cut or size the run."""
    stated = {*fields.values, *(_LENGTHS if _LENGTHS[0] in fields.values else ())}
    for text in fields.values.get(UNREAD, []):
        if _SIZING.match(text) and text.partition(" = ")[0] not in stated:
            raise ValueError(f"{text[:100]}: is not read, and may say degrees; give its file's function, or its values")


def _require_in_place(fields: _Fields) -> None:
    """Raise ValueError for degrees in sections that torchtitan never had them in."""
    for name in fields.values:
        section, _, last = name.rpartition(".")
        if section not in ("", "parallelism") and _OF_PARALLELISM.search(last):
            raise ValueError(
                f"{name}: is of another program's section; move it to [parallelism], or give its part alone"
            )


def _model_name(fields: _Fields) -> str:
    """`llama3` and `70B`; raises ValueError for others."""
    name, flavor = str(fields.get("model.name", "")), str(fields.get("model.flavor", ""))
    wanted = f"{MODELS_OF.get(name, name + '-')}{'' if name == 'deepseek_v3' and flavor == '671B' else flavor}".lower()
    if wanted not in MODELS:
        raise ValueError(f"model.name = {name[:40]!r}, model.flavor = {flavor[:40]!r}: not known; give --model")
    if name.lower() in MODELS_OF and (name, flavor) != (own := (name.lower(), flavor.upper())):
        raise ValueError(f"model.name = {name!r}, model.flavor = {flavor!r}: write {own[0]!r} and {own[1]!r}")
    return wanted


def _data(
    fields: _Fields, notes: ReadingNotes, *, ranks: int, group: int, experts: int, devices: int | None
) -> tuple[int, int]:
    """Copies of the weights and the pipelines of each, which shard it: FSDP2 shards all that there is."""
    replicate, within = fields.count("parallelism.data_parallel_replicate_degree", 1), ranks * group
    shard = fields.number("parallelism.data_parallel_shard_degree", least=1)
    if shard is None and devices is None:
        shard = notes.assume_devices(within, group=group, experts=experts, copies=replicate) // replicate
    elif shard is None:
        shard = max(1, (devices or 0) // within // replicate)
    if devices is not None and devices != within * replicate * shard:
        notes.refusals.append(f"{devices} devices are not {within * replicate * shard}, the product of the degrees")
    if shard > 1:
        notes.assumed.append("weights stay gathered in bf16 while microbatches run (FSDP2 in a pipeline)")
    return replicate, shard


def _sequence(fields: _Fields, notes: ReadingNotes, *, own: int | None) -> int:
    """Tokens of a sample, of which a microbatch counted in tokens may have less than one."""
    earlier, stated, most = (fields.number(name, least=1) for name in (*_LENGTHS, _TOKENS))
    tokens = earlier or stated or own or 2048
    if earlier is None and stated is None:
        notes.assumed.append(f"training.seq_len = {tokens}")
    if most is not None and most < tokens:
        notes.assumed.append(f"samples of {most} tokens, which is all of a microbatch")
    return min(tokens, most or tokens)


def _microbatches(
    fields: _Fields, notes: ReadingNotes, *, sequence: int, data: int, ranks: int, stages: int
) -> tuple[int, int]:
    """Samples of one, and how many of them a rank takes at a time; without a pipeline one, in 2024 one a stage."""
    whole = fields.number("parallelism.pipeline_parallel_microbatches", least=1)
    micro = fields.number("parallelism.pipeline_parallel_microbatch_size", least=1)
    if whole and micro:
        raise ValueError("pipeline_parallel_microbatches: is pipeline_parallel_microbatch_size today; leave out one")
    whole = whole or (stages if fields.get(OF_2024) and not micro else None)
    per_rank = fields.number("training.local_batch_size", least=1)
    count = fields.number("parallelism.num_pp_microbatches", least=1)
    tokens = fields.number(_TOKENS, least=1)
    if not {*_OF_2026}.isdisjoint(fields.values):
        name = _OF_2026[1]
        if tokens is None and micro is None:
            notes.assumed.append(f"{_TOKENS} = 16384 (torchtitan's own)")
        tokens = micro * sequence if micro else tokens or 16_384
        micro, count = max(1, tokens // sequence), count or 1 if ranks > 1 else 1
        if (old := fields.get(_BATCH)) is not None:
            notes.unknown.append(f"{_BATCH} = {str(old)[:60]}")
        if tokens % sequence:
            notes.assumed.append(f"a microbatch of {tokens} tokens is {micro} samples of {sequence}")
        each = tokens * count * data
    else:
        name = _BATCH
        if per_rank is None:
            per_rank = 8
            notes.assumed.append("training.local_batch_size = 8 (torchtitan's own)")
        if ranks == 1:
            micro, whole = per_rank, None
            notes.assumed.append(f"without a pipeline a rank takes its {per_rank} samples at once")
        elif whole is not None:
            micro = max(1, per_rank // whole)
        elif micro is None:
            micro = 1
            notes.assumed.append("parallelism.pipeline_parallel_microbatch_size = 1")
        if per_rank % (whole or micro):
            parts = f"its {whole} microbatches" if whole else f"the microbatch's {micro}"
            notes.refusals.append(f"training.local_batch_size = {per_rank} is no multiple of {parts}; use another")
        count, each = max(1, per_rank // micro), per_rank * data
    stated = fields.number(name, least=1)
    if stated is not None and stated % each:
        notes.refusals.append(f"{name} = {stated} is not a multiple of {each}, which all pipelines take at a time")
    elif stated not in (None, each):
        notes.not_counted.append(f"{name} = {stated}: the audit covers one of its {stated // each} accumulation steps")
    return micro, count


def _order(fields: _Fields, *, ranks: int) -> tuple[Order, bool]:
    name = str(fields.get("parallelism.pipeline_parallel_schedule", "1F1B"))
    if fields.get(f"parallelism.{TABLE_FIELD}") and ranks > 1 and name.lower() in TABLED:
        return "table", TABLED[name.lower()]
    name = name.replace("_", "")  # interleaved_1f1b, as in 2024
    if name.lower() not in ORDERS:
        raise ValueError(
            f"parallelism.pipeline_parallel_schedule = {name[:40]!r}: is not supported; use 1F1B, GPipe, "
            "Interleaved1F1B, ZBVZeroBubble"
        )
    return ORDERS[name.lower()] if ranks > 1 else ("1F1B", False)


def _is_in_v(fields: _Fields, ranks: int) -> bool:
    return ranks > 1 and str(fields.get("parallelism.pipeline_parallel_schedule")).lower() in IN_V


def _rows(fields: _Fields, *, ranks: int) -> tuple[tuple[str, ...], ...]:
    """The table's actions by rank, as torch reads it: a row per rank, empty cells left out."""
    rows = str(fields.get(TABLE, "")).splitlines()
    if len(rows) != ranks:
        raise ValueError(f"parallelism.{TABLE_FIELD}: has {len(rows)} rows for {ranks} ranks; give a row per rank")
    return tuple(tuple(cell.strip() for cell in row.split(",") if cell.strip()) for row in rows)


def _stages(
    fields: _Fields, shape: ModelShape, *, notes: ReadingNotes, ranks: int, has_several: bool
) -> tuple[str, ...]:
    """As stated, or as torchtitan cuts: embedding and head count as blocks, and the first stages take the rest."""
    parts = fields.get("parallelism.module_fqns_per_model_part")
    ends = [
        fields.number(f"parallelism.pipeline_parallel_{end}_stage_less_layers", least=0) for end in ("first", "last")
    ]
    first, last = (1 if end is None else end for end in ends)
    each = fields.number("parallelism.pipeline_parallel_layers_per_stage", least=1)
    if points := fields.get("parallelism.pipeline_parallel_split_points"):
        parts = _parts(points, shape.blocks)
    if parts is not None:
        if isinstance(parts, list) and _is_in_v(fields, ranks) and len(parts) != 2 * ranks:
            notes.refusals.append(
                f"module_fqns_per_model_part: a V has two parts on each of {ranks} ranks; state so many"
            )
        elif fields.get(f"parallelism.{TABLE_FIELD}"):
            pass  # torchtitan's runtime takes any number, whatever the schedule's name says
        elif ranks > 1 and isinstance(parts, list) and has_several != (len(parts) > ranks):
            wanted = "two or more" if has_several else "one"
            notes.refusals.append(
                f"{len(parts)} parts: the schedule needs {wanted} on each of {ranks} ranks; state so many"
            )
        return _stated_stages(parts, shape, notes=notes, ranks=ranks)
    takes_rest = least = 0
    if fields.get(OF_2024):  # blocks alone were counted, and the second stage took the first rest
        first, last, takes_rest, least = 0, 0, 1, 1
    weights = shape.blocks + first + last
    count = ranks * (2 if has_several else 1) if each is None else -(-weights // each)
    if count % ranks or has_several != (count > ranks):
        notes.refusals.append(
            f"pipeline_parallel_layers_per_stage = {each} makes {count} stages on {ranks} ranks; the schedule needs "
            f"{'two or more' if has_several else 'one'} on each: use another number"
        )
        return ()
    size, rest = divmod(weights, count)
    sizes = [size] * count
    for number in range(takes_rest, takes_rest + rest):
        sizes[number] += 1
    sizes[0] -= first
    sizes[-1] -= last
    if min(sizes) < least:
        notes.refusals.append(f"{count} stages are too many for {shape.blocks} blocks; use fewer")
        return ()
    return with_ends(["t" * size for size in sizes])


def _parts(points: Any, blocks: int) -> list[list[str]]:
    """The parts that begin at `layers.8` and so on, points in a list or joined by commas."""
    names = ["tok_embeddings", *(f"layers.{number}" for number in range(blocks)), "norm", "output"]
    wanted = [str(each).strip() for each in (points if isinstance(points, list) else str(points).split(","))]
    starts = [0, *(names.index(each) for each in wanted if each in names), len(names)]
    if len(starts) != len(wanted) + 2 or starts != sorted({*starts}):
        raise ValueError(f"pipeline_parallel_split_points = {str(points)[:60]}: are not blocks in order; correct them")
    return [names[start:end] for start, end in pairwise(starts)]


def _stated_stages(
    parts: Sequence[Sequence[str]], shape: ModelShape, *, notes: ReadingNotes, ranks: int
) -> tuple[str, ...]:
    if not isinstance(parts, list) or not all(
        isinstance(part, list) and all(isinstance(name, str) for name in part) for part in parts
    ):
        raise ValueError("module_fqns_per_model_part: is not a list of lists of names; write it so")
    names = [name for part in parts for name in part]
    wanted = ["tok_embeddings", *(f"layers.{number}" for number in range(shape.blocks))]
    if names[: len(wanted)] != wanted or set(names[len(wanted) :]) - {"norm", "output", "lm_head"}:
        notes.refusals.append(
            "module_fqns_per_model_part does not name tok_embeddings, layers.0 to "
            f"layers.{shape.blocks - 1}, norm and the head in this order"
        )
    if len(parts) % ranks:
        notes.refusals.append(f"module_fqns_per_model_part has {len(parts)} parts, no multiple of {ranks} ranks")
    stages = tuple(
        "E" * ("tok_embeddings" in part)
        + "t" * sum(re.fullmatch(r"layers\.\d+", name) is not None for name in part)
        + "L" * bool({"output", "lm_head"} & set(part))
        for part in parts
    )
    if "" in stages:
        raise ValueError(f"module_fqns_per_model_part: part {stages.index('')} has no layer; give every part a layer")
    return stages


def _recomputation(fields: _Fields, notes: ReadingNotes, *, order: Order) -> Recomputation | None:
    made_by, name = str(fields.get(f"activation_checkpoint.{CLASS}", "")), "activation_checkpoint.mode"
    kind = re.match(r"(\w*)AC\b", made_by)
    mode = str(fields.get(name, "none" if kind is None else _MODES.get(kind[1], made_by)))
    if mode not in _MODES.values():
        raise ValueError(f"{name} = {mode[:60]!r}: is not known; give one of {', '.join(_MODES.values())}")
    aside = dict.fromkeys(("selective", "memory_budget"), "estimates keep all")
    if order in ("ZBVZeroBubble", "table"):  # what is computed again is kept for one backward; W is one for each layer
        aside["full"] = "I repeats a block, and so does W for each layer with weights; estimates do so once"
    if mode in aside:
        notes.not_counted.append(f"{name} = {mode}: {aside[mode]}")
    return Recomputation() if mode == "full" else None


def _sort_out(fields: _Fields, notes: ReadingNotes) -> None:
    """What is not counted, and what is not known.

    Raises ValueError for a slip, for words in place of true and false, and for another program's file.
    """
    notes.note_optimizer(str(fields.get("optimizer.name", "")))
    for text in fields.get(UNREAD, []):
        is_model = text.startswith("model_spec = ") and "converters" not in text
        if not is_model and meaning_of(text.partition(" = ")[0].partition(".")[0], "torchtitan") != "irrelevant":
            notes.unknown.append(text)
    before = len(notes.unknown)
    for name, value in fields.values.items():
        if isinstance(value, str) and (_SWITCH.search(name) or value.lower() in _IN_TEXT):
            raise ValueError(f"{name} = {value[:60]!r}: is text, not true or false; write one of these without quotes")
        is_read = name in READ["torchtitan"] or name.startswith("_") or name.endswith(CLASS)
        if is_read or value in (None, False, "", [], "none"):
            continue
        sections = [name, *(name[:place] for place, char in enumerate(name) if char == ".")]
        meanings = {meaning_of(each, "torchtitan") for each in sections}
        if "not counted" in meanings:
            notes.not_counted.append(f"{name} = {str(value)[:60]}")
        elif "irrelevant" not in meanings:
            notes.note_unknown(name, value, known=READ["torchtitan"])
    notes.require_own("torchtitan", stated=len(fields.values), names=fields.values, since=before)
