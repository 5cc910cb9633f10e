"""A run of Megatron-LM, by its arguments."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from profiles.configurations.argument_forms import ReadArguments, Value
from profiles.configurations.deepspeed_run import cut_layers
from profiles.configurations.flag_meanings import READ, REFUSED, REFUSED_VALUES, meaning_of
from profiles.configurations.known_models import DEFAULT_SEQUENCE, find_model, known_name
from profiles.configurations.megatron_hybrid import pattern_refusals, read_pattern, stages_of
from profiles.configurations.megatron_layout import layout_refusals, written_out
from profiles.configurations.megatron_startup import fork_flags, is_upstream, startup_refusals
from profiles.configurations.run_configuration import (
    ReadingNotes,
    Recomputation,
    RunConfiguration,
    even_stages,
    with_ends,
)
from profiles.estimates.model_shapes import ExpertShape, LatentAttention, ModelShape, RecurrentShape
from profiles.estimates.operations import Dtype

MICROBATCHES_PER_RANK = 16
"""Of one pipeline, where nobody says how large an iteration is."""

NOTHING = ("None", "null")
"""How logs and overrides say that a value was not given."""

MOST = {"num_layers": 10_000, "pipeline_model_parallel_size": 10_000, "mtp_num_layers": 100}
"""Of what a layout has a letter for."""

_OFF = ("false", "0", "no", "off", "none", "null", "")
_SWITCHED = {**dict.fromkeys(("true", "1", "yes", "on"), True), **dict.fromkeys(_OFF, False)}

_CUTS = (
    "num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank",
    "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers", "num_layer_list",
)  # fmt: skip
"""What says where stages are cut, beside a layout."""
_PATTERN = "hybrid_layer_pattern"
_LAYOUT = "pipeline_model_parallel_layout"
_STATED = {
    "tensor_model_parallel_size": "--tp",
    "pipeline_model_parallel_size": "--pp",
    "global_batch_size": "--global-batch-size",
}
"""What a recipe has to state, or another file may state it otherwise."""
_ELSEWHERE = "what "
"""Before what functions of other files set."""
_HIDING = re.compile(rf"^{_ELSEWHERE}|^\w+ = \w+\(.*parallelism|^(?:trainer(?:\.strategy)?|strategy) = ")
"""What is not read of a recipe, and may have degrees in it."""
_LAUNCHER = ("nproc_per_node", "nnodes", "world_size")
_FP8: Mapping[str, Dtype] = {"tensorwise": "fp8", "delayed": "fp8", "blockwise": "fp8_block", "mxfp8": "fp8_block"}
_MIXED: Mapping[str, Dtype] = {
    "fp4": "nvfp4", "mxfp8": "fp8_block", "fp8_mx": "fp8_block", "subchannel": "fp8_block", "fp8_sc": "fp8_block",
    "fp8": "fp8",
}  # fmt: skip
"""Parts of the names of Megatron-Bridge's precisions; the first one counts."""
_BACKENDS = {"flash": True, "fused": True, "auto": True, "unfused": False, "local": False}
"""Of attention; whether scores stay inside a kernel."""
_BY_VARIABLE: Mapping[str, Mapping[str, str]] = {
    f"NVTE_{kernel}_ATTN": {each: str(int(each in (kernel.lower(), "auto"))) for each in _BACKENDS}
    for kernel in ("FLASH", "FUSED", "UNFUSED")
} | {"NVTE_ALLOW_NONDETERMINISTIC_ALGO": {}}
"""Transformer Engine's variables, as Megatron's core sets them for each backend."""
_GRAPHS = ("cuda_graph_impl", "cuda_graph_scope")
_FLASH = (
    *("use_flash_attn", "use_flash_attn_v1", "use_flash_attn_v2", "use_flash_attn_triton", "use_flash_attn_builder"),
    "use_fused_sdpa",
)
_OTHER_PROGRAM = re.compile(
    r"(?:^|[_/.])(?:t5|bert|ict|biencoder|vision|vlm|retro|dino|generate|generation|inference|ptq|convert|evaluate|"
    r"evaluation|analyze|nmt|prefix_lm|non_causal|hf2mcore|hf2megablocks|hf_to_mg|create_doc)(?=[_.]|$)[^/]*$"
)
"""Scripts that train something else than a causal decoder, or nothing."""


class Taking:
    """Values by name; it remembers which were asked for."""

    def __init__(self, values: Mapping[str, Value], notes: ReadingNotes, *, unsure: Mapping[str, str]) -> None:
        self.values, self.notes, self.unsure = values, notes, unsure
        self.taken: set[str] = set()
        self.switches: set[str] = set()

    def text(self, name: str) -> str | None:
        """Of a value that was given; None: it was not, or was turned off."""
        self.taken.add(name)
        value = self.values.get(name, False)
        if value is True:
            raise ValueError(f"{shown(name)}: has no value; give one")
        if value is not False and (match := re.search(r"\$\{?(\w+)", value)):
            asked = self.unsure.get(match[1])
            why = "is not set in the script" if asked is None else f"depends on {asked}, which is not decided here"
            raise ValueError(f"{shown(name, value)}: ${match[1]} {why}; give --set {match[1]}=VALUE")
        return None if value is False or value in NOTHING else value

    def number(self, name: str, otherwise: int | None = None, *, assumes: bool = False) -> int | None:
        """A whole number; where it was not given, `otherwise`, which is noted if that is an assumption."""
        text = self.text(name)
        if text is None:
            if assumes:
                self.notes.assumed.append(f"{name} = {otherwise}")
            return otherwise
        if not re.fullmatch(r"\d{1,12}", text):
            raise ValueError(f"{shown(name, text)}: {text[:60]!r} is not a whole number; give one")
        if int(text) > MOST.get(name, 10**12):
            raise ValueError(f"{shown(name)}: {text} is more than the {MOST[name]:,} that are read; give less")
        return int(text)

    def count(self, name: str, otherwise: int, *, assumes: bool = False) -> int:
        """A whole number, 1 or more."""
        found = self.number(name, otherwise, assumes=assumes)
        if not found:
            raise ValueError(f"{shown(name)}: 0; give 1 or more")
        return found

    def switch(self, name: str) -> bool:
        """Whether a flag stands there; raises ValueError for a value that is neither true nor false."""
        self.taken.add(name)
        self.switches.add(name)
        value = str(self.values.get(name, False)).lower()
        if value not in _SWITCHED:
            raise ValueError(f"{shown(name)}: {value[:60]!r} is neither true nor false; give one of them")
        return _SWITCHED[value]


def shown(name: str, value: str = "") -> str:
    """A name as a flag; one that stands before the value is a launcher's, by its own name."""
    return value.partition(" ")[0] if value.startswith("--") else "--" + name.replace("_", "-")


def read_megatron(read: ReadArguments, *, options: Mapping[str, Value], model: str | None) -> RunConfiguration:
    """The run; `options` are typed and overrule what was read.

    Raises ValueError with flag, value and remedy for what is not understood; what Megatron would refuse is noted.
    """
    left_out = [] if read.script is None else read.script.left_out
    notes = ReadingNotes(left_out=[statement for statement in left_out if re.match(r"\w+\+?=", statement)])
    unsure = {} if read.script is None else read.script.unsure
    own = _own(read, notes)
    if model is None and read.kind == "script" and read.trainer is None and read.values.get("group_query_attention"):
        own = {"num_query_groups": "1"}  # Megatron's parser's
    take = Taking({**own, **read.values, **options}, notes, unsure=unsure)
    try:
        run = _run(read, take, options=options, model=model)
    except ValueError:
        for name, value in take.values.items():  # of which one may be misspelt, and be the reason
            if name not in (known := (*READ["megatron"], *REFUSED)) and meaning_of(name) == "unknown":
                notes.require_no_slip(name, known=known, said=f"{shown(name)} {value}")
        raise
    _sort_out(take, read, is_whole=model is None)
    return run


def _run(read: ReadArguments, take: Taking, *, options: Mapping[str, Value], model: str | None) -> RunConfiguration:
    notes = take.notes
    _require_known(read, take)
    _note_unread(read, take, typed=options)
    shape, sequence = _shape(take, model or _stated_model(read), beside=_sourced(read))
    tensor, context = take.count("tensor_model_parallel_size", 1), take.count("context_parallel_size", 1)
    pipeline = take.count("pipeline_model_parallel_size", 1)
    shape, experts, parts = _experts(take, _with_pattern(take, shape, read=read), tensor=tensor)
    if reason := shape.why_not(tensor):
        notes.refusals.append(f"tensor_model_parallel_size = {tensor} does not divide the {reason}")
    data = _pipelines(take, read, within=tensor * context * pipeline, group=tensor * context, experts=experts)
    micro = take.count("micro_batch_size", 1, assumes=True)
    batch = _batch(take, read, each=micro * data, ranks=pipeline)
    predicting = _predicting(take, is_typed=read.kind in ("options", "recipe"))
    stages = _stages(take, shape, predicting=predicting, ranks=pipeline, is_typed=read.kind != "log")
    chunks = max(1, len(stages) // pipeline)
    _require_interleaving(take, count=batch // (micro * data), ranks=pipeline, chunks=chunks, each=micro * data)
    if notes.refusals and any(each.startswith(_ELSEWHERE) for each in read.unread):
        raise ValueError(f"{notes.refusals[0]}; or {read.unread[0]}, which is in another file, says otherwise")
    recompute = _recomputation(take)
    notes.require_shared(devices=data * context * tensor, experts=experts)
    return RunConfiguration(
        program="megatron",
        shape=shape,
        predicting=predicting,
        tensor=tensor,
        context=context,
        experts=experts,
        expert_tensor=parts,
        pipeline=pipeline,
        data=data,
        chunks=chunks,
        stages=() if notes.refusals else stages,
        micro_batch=micro,
        global_batch=batch,
        sequence=_sequence(take, read, own=sequence, tensor=tensor, context=context),
        dtype=_dtype(take, is_typed=read.kind == "options"),
        recompute=recompute,
        shards=_shards(take),
        copies=take.count("num_distributed_optimizer_instances", 1),
        overlaps_data=take.switch("overlap_grad_reduce"),
        hides_exchanges=take.switch("tp_comm_overlap"),
        hides_tokens=take.switch("overlap_moe_expert_parallel_comm"),
        sends_once=_sends_once(take),
        sequence_parallel=_is_sequence_parallel(take, read, tensor=tensor),
        fused_experts=take.switch("use_transformer_engine_op_fuser"),
        fused_attention=_has_fused_attention(take, read.kernels),
        is_one_graph=any("full_iteration" in str(take.values.get(name)) for name in _GRAPHS),
        gradient_bytes=_gradient_bytes(take, read),
        cut_by=tuple(f"{shown(name)} {value}" for name in _CUTS if (value := take.text(name)) is not None),
        notes=notes,
    )


def _check_startup(take: Taking, read: ReadArguments, *, is_whole: bool) -> None:
    """Note what Megatron-LM refuses of a command; forks, and releases with names of old, have checks of their own."""
    if read.kind != "script" or read.trainer is not None or not is_upstream(read.program):
        return
    if foreign := fork_flags(read.flags):
        names = ", ".join(dict.fromkeys(foreign))[:200]
        take.notes.assumed.append(f"a fork or an old release of Megatron-LM: 0.19 does not start with {names}")
    elif not read.strange and not read.unread:
        switches = {name: read.values.get(name, False) for name in sorted(take.switches)}
        is_whole = is_whole and not take.values.get("use_checkpoint_args", False)
        take.notes.refusals += startup_refusals(take.values, switches=switches, is_whole=is_whole)


def _gradient_bytes(take: Taking, read: ReadArguments) -> int:
    """Of a gradient in a bucket; Megatron-LM raises those of bf16 by itself, unless told otherwise."""
    is_long = str(take.values.get("grad_reduce_in_fp32", True)).lower() not in _OFF[:4]
    if read.trainer is None and not take.switch("accumulate_allreduce_grads_in_fp32"):
        is_long = is_long and not take.switch("fp16") and "bf" not in str(take.text("main_grads_dtype"))
    return 4 if is_long and not take.switch("grad_reduce_in_bf16") else 2


def _sequence(take: Taking, read: ReadArguments, *, own: int | None, tensor: int, context: int) -> int:
    """Tokens of a sample; those that Megatron's checks refuse are noted, and trainers of policies pad them."""
    tokens, parts = take.count("seq_length", own or DEFAULT_SEQUENCE, assumes=True), 2 * context if context > 1 else 1
    parts *= tensor if take.switch("sequence_parallel") else 1
    if tokens % parts and read.trainer is not None and read.trainer.aside:
        take.notes.assumed.append(f"samples of {tokens} tokens are padded to a multiple of {parts}")
        return -(-tokens // parts) * parts
    if tokens % parts:
        take.notes.refusals.append(
            f"seq_length = {tokens} is not a multiple of {parts}, into which tensor and context parallelism cut it; "
            "use another length"
        )
    return tokens


def _own(read: ReadArguments, notes: ReadingNotes) -> dict[str, Value]:
    """A trainer's defaults, noted where nothing else is stated, with what an iteration of it has besides."""
    trainer = read.trainer
    if trainer is None:
        return {}
    if read.imported:
        notes.assumed.append(f"imports as they lie on the disk ({', '.join(read.imported)[:200]})")
    own = {name: value for name, value in trainer.own.items() if name not in read.values}
    notes.assumed += [f"{name} = {value} ({trainer.trainer}'s own)" for name, value in own.items()]
    notes.not_counted += trainer.aside
    return own


def _stated_model(read: ReadArguments) -> str | None:
    """The model that a trainer's configuration names; raises ValueError for one that is not known."""
    if read.trainer is None or not read.trainer.model:
        return None
    if (name := known_name(read.trainer.model)) is None:
        if read.values.get("num_layers", False) is not False:
            return None
        raise ValueError(f"model {read.trainer.model[:60]}: its sizes are not known; give its config.json as --model")
    return name


def _shards(take: Taking) -> Literal["nothing", "optimizer", "gradients"]:
    """Megatron's switch, or the stage of DeepSpeed's ZeRO."""
    stage = take.number("zero_stage", 0) or 0
    if stage > 2:
        raise ValueError(
            f"--zero-stage {stage}: replicas that shard weights are not read; leave it out to see the rest"
        )
    if stage == 2:
        return "gradients"
    has_engine = take.switch("deepspeed") and not take.switch("no_pipeline_parallel")
    is_sharded = has_engine and take.switch("bf16")  # by DeepSpeed's BF16_Optimizer, whatever the stage
    return "optimizer" if stage or is_sharded or take.switch("use_distributed_optimizer") else "nothing"


def _require_known(read: ReadArguments, take: Taking) -> None:
    """Raise ValueError for a program or a flag that makes the estimate another one than is made here."""
    if _OTHER_PROGRAM.search(read.program):
        raise ValueError(
            f"{read.program[:80]}: trains no decoder alone, and others are not read; give a decoder's script"
        )
    for name, (pattern, why) in REFUSED_VALUES.items():
        is_certain = "encoder" in why and "gpt" in read.program
        if not is_certain and re.search(pattern, value := str(take.values.get(name) or "")):
            raise ValueError(f"{shown(name)} {value[-60:]}: {why}; leave it out to see the rest")
    for name, why in REFUSED.items():
        take.taken.add(name)
        if str(take.values.get(name, False)).lower() not in _OFF:
            raise ValueError(f"{shown(name)}: {why}; leave the flag out to see the rest")


def _note_unread(read: ReadArguments, take: Taking, *, typed: Mapping[str, Value]) -> None:
    """What of a recipe was not read; raises ValueError where that says degrees, batch or stages."""
    elsewhere = [each for each in read.unread if _HIDING.search(each)]
    for name, option in _STATED.items():
        if elsewhere and name not in take.values:
            raise ValueError(f"{name}: {elsewhere[0]}, which is in another file; give {option}")
    shared = {str(take.values.get(f"{kind}_model_parallel_size", 1)) for kind in ("tensor", "expert")}
    if elsewhere and "1" not in shared and "expert_tensor_parallel_size" not in take.values:
        raise ValueError(f"expert_tensor_parallel_size: {elsewhere[0]}, which is in another file; set it in the recipe")
    for each in read.unread:
        name = each.partition(" = ")[0].rpartition(".")[2]
        set_there = [stated for stated in _STATED if re.search(rf"\b{stated}\b", each) and stated not in typed]
        if set_there and not each.startswith(_ELSEWHERE):
            raise ValueError(f"{each[:80]}: is not read, and sets {set_there[0]}; give {_STATED[set_there[0]]}")
        if name == _LAYOUT and name not in take.values:
            raise ValueError(f"{each[:80]}: is not read; give --layout")
        if name in REFUSED:
            raise ValueError(f"{each[:80]}: {REFUSED[name]}; give a recipe without it")
        if (meaning := meaning_of(name)) != "irrelevant":
            (take.notes.unknown if meaning == "unknown" else take.notes.not_counted).append(each)


def _require_interleaving(take: Taking, *, count: int, ranks: int, chunks: int, each: int) -> None:
    """Interleaving wants microbatches in whole turns; `each`: samples of one on all pipelines."""
    if take.number("microbatch_group_size_per_vp_stage", ranks) != ranks and chunks > 1:
        raise ValueError(
            f"--microbatch-group-size-per-vp-stage: only {ranks}, the number of ranks, is supported; give that"
        )
    if chunks > 1 and count % ranks:
        take.notes.refusals.append(
            f"{count} microbatches are not a multiple of {ranks} ranks, as interleaving with {chunks} stages each "
            f"requires; use a global batch that is a multiple of {each * ranks}"
        )
    least = 2 if take.values.get("no_overlap_p2p_communication", False) is False else 3
    if chunks > 1 and ranks < least:
        plain = " without overlap of messages" if least > 2 else ""
        take.notes.refusals.append(
            f"pipeline_model_parallel_size = {ranks}: {chunks} stages per rank want {least} ranks or more{plain}; "
            "leave out the virtual stages"
        )


def _is_sequence_parallel(take: Taking, read: ReadArguments, *, tensor: int) -> bool:
    """As its switch says; where nothing but options was given and they do not mention it, it is assumed."""
    if "sequence_parallel" not in take.values and read.kind == "options":
        if tensor > 1:
            take.notes.assumed.append("sequence_parallel = true")
        return True
    return take.switch("sequence_parallel")


def _has_fused_attention(take: Taking, kernels: Mapping[str, str]) -> bool:
    """As its backend says, or the implementation of its layers; Megatron-DeepSpeed fuses it by a flag alone.

    Transformer Engine's variables turn kernels off. Megatron's core refuses those that its backend contradicts.
    """
    flash, stated = [take.switch(name) for name in _FLASH], take.text("attention_backend")
    backend = (stated or "auto").rpartition(".")[2]
    if backend not in _BACKENDS:
        raise ValueError(f"--attention-backend {backend[:40]}: is not known; give one of {', '.join(_BACKENDS)}")
    is_plain = take.text("transformer_impl") == "local" or take.switch("deepspeed")
    has_none = not stated and all(kernels.get(name) == "0" for name in ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN"))
    if has_none:
        take.notes.assumed.append(
            "attention without a fused kernel, as NVTE_FLASH_ATTN and NVTE_FUSED_ATTN are 0; Megatron core 0.10 and "
            "later want --attention-backend unfused instead"
        )
    for name, value in kernels.items() if not has_none else ():
        uses = _BY_VARIABLE.get(name, {}).get(backend)
        if stated and uses not in (None, value):
            take.notes.refusals.append(
                f"{name} = {value} beside --attention-backend {backend}, which sets it to {uses}; leave one of them out"
            )
        elif name not in _BY_VARIABLE or value == "0" != uses:
            take.notes.not_counted.append(f"{name} = {value}")
    return _BACKENDS[backend] and not has_none and (any(flash) or backend != "auto" or not is_plain)


def _sort_out(take: Taking, read: ReadArguments, *, is_whole: bool) -> None:
    """What nobody asked for: not counted, of no matter, or unknown; and whether a command starts.

    Raises ValueError for another program's command, whose audit would be one of assumptions.
    """
    notes = take.notes
    is_unread = read.kind == "script" and not any(name in take.taken - {*_LAUNCHER} for name in read.values)
    before, is_forks = len(notes.unknown), bool(fork_flags(read.flags))
    take.switch("overlap_param_gather")
    notes.note_optimizer(take.text("optimizer") or "")
    for name, value in take.values.items():
        if name in take.taken or value is False or value in (*NOTHING, "False", "[]"):
            continue
        if (meaning := meaning_of(name)) != "irrelevant":
            said = f"{shown(name)}{'' if value is True else f' {value}'}"
            is_cut = read.kind == "script" and not is_forks
            whole = [each for each in take.taken if each.startswith(name)] if is_cut else []
            if meaning == "unknown" and whole:
                raise ValueError(f"{said[:80]}: argparse takes it for {shown(min(whole))}; write it whole")
            if meaning == "unknown":
                notes.note_unknown(name, value, known=take.taken, said=said, is_forks=is_forks)
            else:
                notes.not_counted.append(said[:120])
    stated = len([value for value in take.values.values() if value is not False])
    notes.require_own("Megatron-LM", stated=stated, names=read.values, since=before)
    if is_unread or not read.has_own_flags:
        raise ValueError(f"the command states no size, degree or batch{_sourced(read)}; give the training's script")
    notes.unknown += read.strange
    _check_startup(take, read, is_whole=is_whole)


def _sourced(read: ReadArguments) -> str:
    """The other files that a script or a recipe takes in, as words behind a refusal."""
    commands = [] if read.script is None else read.script.commands
    files = [command.partition(" ")[2] for command in commands if re.match(r"(?:source|\.) \S", command)]
    files += [each for each in read.unread if each.startswith(_ELSEWHERE)]
    return f" ({files[0][:80]} is in another file, which is not read)" if files else ""


def _shape(take: Taking, model: str | None, *, beside: str) -> tuple[ModelShape, int | None]:
    """By the model's name, with as many blocks as the flags say; or by the flags alone."""
    if model is not None:
        shape, sequence = find_model(model)
        idle = _idle_blocks(take)
        blocks = (take.number("num_layers", shape.blocks + len(idle)) or 0) - len(idle)
        _require_same_sizes(take, shape)
        if shape.pattern and blocks != shape.blocks and take.text(_PATTERN) is None:
            raise ValueError(
                f"--num-layers {blocks}: --model {shape.name} has {shape.blocks}, each a part of a block; "
                "give its layers as --hybrid-layer-pattern"
            )
        if blocks == shape.blocks or shape.pattern:
            return shape, sequence
        windows = shape.windows[:blocks]
        return replace(shape, name=f"{shape.name}, {blocks} blocks", blocks=blocks, windows=windows), sequence
    if take.text("num_layers") is None and not take.text(_PATTERN):
        raise ValueError(
            f"the model is not stated{beside}; give --model NAME, or --num-layers, --hidden-size and so on"
        )
    sizes = {name: take.number(name) for name in ("num_layers", "hidden_size", "num_attention_heads")}
    for name, value in sizes.items():
        if not value and not (name == "num_layers" and take.text(_PATTERN)):
            raise ValueError(f"{shown(name)}: is not there; give it, or --model NAME")
    hidden, heads = sizes["hidden_size"] or 1, sizes["num_attention_heads"] or 1
    other = [take.text(name) or "" for name in ("activation_func_type", "glu_activation")]
    gates = [take.switch(name) for name in ("quick_geglu", "geglu", "gelu_tanh")]
    is_narrowed = take.switch("swiglu") or any(name.endswith("glu") for name in other)
    inner = take.number("ffn_hidden_size") or _inner(take, hidden, is_gated=is_narrowed)
    groups = take.number("num_query_groups")
    groups = groups if take.switch("group_query_attention") else None
    groups = 1 if take.text("attention_head_type") == "multiquery" else groups
    shape = ModelShape(
        name="the flags' model",
        blocks=max(1, (sizes["num_layers"] or 1) - len(_idle_blocks(take))),
        hidden=hidden,
        heads=heads,
        key_value_heads=groups or heads,
        head_width=take.number("kv_channels") or max(1, hidden // heads),
        inner=inner,
        vocabulary=_vocabulary(take),
        is_gated=is_narrowed or any(gates),
        has_gated_attention=any([take.switch("attention_output_gate"), take.switch("use_gated_attention")]),
        is_tied=not take.switch("untie_embeddings_and_output_weights"),
        latent=_latent(take),
        mixture=_mixture(take, inner=inner, blocks=sizes["num_layers"]),
    )
    return shape, None


def _idle_blocks(take: Taking) -> set[int]:
    """Numbers of MindSpeed's blocks that do nothing, which are counted as blocks where stages are cut."""
    text = take.text("noop_layers") or ""
    if text.strip("0123456789, "):
        raise ValueError(f"--noop-layers {text[:60]}: is no list of numbers; write it as 0,63")
    return {int(number) for number in re.findall(r"\d{1,6}", text)}


def _inner(take: Taking, hidden: int, *, is_gated: bool) -> int:
    """Megatron's own width of a feed-forward part; FlagScale has a factor and a step beside."""
    step, factor = take.number("multiple_of"), take.text("hidden_dim_multiplier") or "1"
    if not re.fullmatch(r"\d{1,6}(\.\d{1,6})?", factor):
        raise ValueError(f"--hidden-dim-multiplier {factor[:60]}: is not a number; give one")
    if step and is_gated:
        return -(-int(int(4 * hidden * 2 / 3) * float(factor)) // step) * step
    return 4 * hidden * 2 // 3 // 64 * 64 if is_gated else 4 * hidden


_MIXER_SIZES = (
    ("mamba_num_heads", "mamba_head_dim", "mamba_num_groups", "mamba_state_dim"),
    ("linear_num_value_heads", "linear_value_head_dim", "linear_num_key_heads", "linear_key_head_dim"),
)
"""Heads, their width, groups and state of Mamba and of a gated delta net."""


_HYBRID = ("is_hybrid_model", "full_attention_interval", "linear_attention_freq")
"""Flags that a hybrid model alone has."""
_HYBRID_PART = re.compile(r"^--spec .*(?:hybrid|mamba)|(?:^|[_/])(?:hybrid|mamba)\w*\.py$")
"""Specifications and scripts of such models."""


def _with_pattern(take: Taking, shape: ModelShape, *, read: ReadArguments) -> ModelShape:
    """A hybrid model has as many layers as its pattern has letters, whatever other flags say.

    Raises ValueError where there is no pattern, and script or flags say that it is one; logs state the sizes of every
    mixer.
    """
    spec = take.text("spec") or "local"
    if (text := take.text(_PATTERN)) is None:
        sizes = () if read.kind == "log" else (*_MIXER_SIZES[0], *_MIXER_SIZES[1])
        told = [shown(name) for name in (*_HYBRID, *sizes) if str(take.values.get(name, False)).lower() not in _OFF]
        told += [each for each in (f"--spec {spec[:80]}", read.program) if _HYBRID_PART.search(each)]
        if told and not shape.pattern:
            raise ValueError(
                f"{told[0]}: layers of a hybrid model are read from --hybrid-layer-pattern; give it, or a "
                "config.json as --model"
            )
        if not told and spec != "local":
            take.notes.not_counted.append(f"--spec {spec[:80]}: blocks of a class of its own")
        take.notes.assumed += [f"--hybrid-layer-pattern {shape.pattern} (the model's)"] if shape.pattern else []
        return shape
    pattern = "".join(read_pattern(text))
    if "E" in pattern and shape.mixture is None:
        raise ValueError("--hybrid-layer-pattern: has E, and --num-experts is not there; give it")
    width = take.count("mamba_head_dim", 64)
    mamba = RecurrentShape(
        heads=take.number("mamba_num_heads") or max(1, 2 * shape.hidden // width),
        head_width=width,
        groups=take.count("mamba_num_groups", 8),
        state=take.count("mamba_state_dim", 128),
        gates=1,
    )
    delta = RecurrentShape(
        heads=take.count("linear_num_value_heads", 32),
        head_width=take.count("linear_value_head_dim", 128),
        groups=take.count("linear_num_key_heads", 16),
        state=take.count("linear_key_head_dim", 128),
        gates=2,
    )
    return replace(
        shape,
        blocks=len(pattern),
        windows=(),
        pattern=pattern,
        mamba=(shape.mamba or mamba) if "M" in pattern else None,
        delta=(shape.delta or delta) if "G" in pattern else None,
    )


_SIZES = (
    "hidden_size", "num_attention_heads", "ffn_hidden_size", "num_query_groups", "kv_channels", "vocab_size",
    "padded_vocab_size", "make_vocab_size_divisible_by", "q_lora_rank", "kv_lora_rank", "qk_head_dim",
    "qk_pos_emb_head_dim", "v_head_dim", "num_experts", "moe_router_topk", "moe_ffn_hidden_size",
    "moe_shared_expert_intermediate_size", "moe_layer_freq",
)  # fmt: skip


def _require_same_sizes(take: Taking, shape: ModelShape) -> None:
    """Sizes that flags state beside a model's name are the model's; raises ValueError with both otherwise."""
    mixture, latent = shape.mixture, shape.latent
    own = {"hidden_size": shape.hidden, "num_attention_heads": shape.heads, "num_query_groups": shape.key_value_heads}
    if mixture is None or mixture.dense_layers:
        own["ffn_hidden_size"] = shape.inner
    if mixture is not None:
        own |= {"num_experts": mixture.experts, "moe_router_topk": mixture.chosen, "moe_ffn_hidden_size": mixture.inner}
    if latent is None:
        own["kv_channels"] = shape.head_width
    else:
        own |= {"q_lora_rank": latent.query_rank, "kv_lora_rank": latent.key_value_rank}
        del own["num_query_groups"]
    for mixer, names in ((shape.mamba, _MIXER_SIZES[0]), (shape.delta, _MIXER_SIZES[1])):
        if mixer is not None:
            own |= dict(zip(names, (mixer.heads, mixer.head_width, mixer.groups, mixer.state), strict=True))
    for name, value in own.items():
        if (stated := take.number(name)) not in (None, value):
            raise ValueError(
                f"{shown(name)} = {stated}: --model {shape.name} has {value}; leave out one of the two, or state "
                "all sizes"
            )
    rows = take.number("padded_vocab_size") or take.number("vocab_size") or shape.vocabulary
    if rows != shape.vocabulary:
        take.notes.assumed.append(f"vocab_size = {shape.vocabulary} (of {shape.name}; {rows} is stated)")
    take.taken.update(_SIZES, ("swiglu", "group_query_attention", "multi_latent_attention"))


def _vocabulary(take: Taking) -> int:
    padded = take.number("padded_vocab_size")
    rows, divisor = take.number("vocab_size"), take.number("make_vocab_size_divisible_by", 128) or 128
    if padded:
        return padded
    if not rows:
        rows = 50_257 if take.text("tokenizer_type") == "GPT2BPETokenizer" else 128_000
        take.notes.assumed.append(f"vocab_size = {rows}")
    divisor *= take.count("tensor_model_parallel_size", 1)
    return -(-rows // divisor) * divisor


def _latent(take: Taking) -> LatentAttention | None:
    ranks = [take.number(name, otherwise) or otherwise for name, otherwise in (
        ("q_lora_rank", 0), ("kv_lora_rank", 512), ("qk_pos_emb_head_dim", 64), ("qk_head_dim", 128),
        ("v_head_dim", 128))]  # fmt: skip
    if not take.switch("multi_latent_attention"):
        return None
    query, key_value, rope, key, value = ranks
    return LatentAttention(query_rank=query, key_value_rank=key_value, rope=rope, key=key, value=value)


def _mixture(take: Taking, *, inner: int, blocks: int | None) -> ExpertShape | None:
    experts, usual = take.number("num_experts"), 1 if take.switch("deepspeed") else 2
    chosen = take.number("moe_router_topk", take.number("topk", usual)) or usual
    own = take.number("moe_ffn_hidden_size", inner) or inner
    several = own * (take.number("n_shared_experts") or 0)
    shared = take.number("moe_shared_expert_intermediate_size") or several
    first = take.text("first_k_dense_replace") not in (None, "-1") and take.number("first_k_dense_replace")
    dense = max(_dense_blocks(take, blocks=blocks), first or 0)
    dense -= sum(number < dense for number in _idle_blocks(take))
    interval = take.count("expert_interval", 1 + take.switch("deepspeed"))
    if not experts or experts == 1:
        return None
    if interval > 1:
        raise ValueError(
            f"--expert-interval {interval}: dense blocks between others are not read; give --expert-interval 1"
        )
    return ExpertShape(experts=experts, chosen=chosen, inner=own, shared_inner=shared, dense_layers=dense)


def _dense_blocks(take: Taking, *, blocks: int | None) -> int:
    """Blocks without experts before those that have them; raises ValueError for other patterns."""
    stated = take.text("moe_layer_freq") or "1"
    text = f"[{stated.replace(' ', ',')}]" if re.fullmatch("[01]( [01])+", stated) else stated  # a list of YAML's
    text = text.replace(" ", "").strip("()")
    text = "1" if text == "-1" else text
    found: list[str] = []
    for part in text.split("+"):
        match = re.fullmatch(r"\[?([01](?:,[01])*)\]?(?:\*(\d{1,4}))?", part)
        found += (match[1].split(",") * int(match[2] or 1)) if match else ["other"]
    whole = "".join(found)
    if not re.fullmatch(r"0*1+", whole):
        raise ValueError(
            f"--moe-layer-freq {stated[:60]}: experts have to be in all blocks behind the dense ones; "
            "write it so, e.g. [0]*3+[1]*58"
        )
    if "[" in text and blocks not in (None, len(whole)):
        take.notes.refusals.append(
            f"--moe-layer-freq has {len(whole)} blocks, and --num-layers {blocks}; make them equal"
        )
    return whole.count("0")


def _experts(take: Taking, shape: ModelShape, *, tensor: int) -> tuple[ModelShape, int | None, int]:
    """The shape, devices that share the experts, and into how many parts each expert is cut.

    Experts that are cut are more and narrower ones, to which every device of the cut sends its tokens.
    """
    expert, within = take.count("expert_model_parallel_size", 1), take.number("expert_tensor_parallel_size") or tensor
    mixture = shape.mixture
    if mixture is None:
        if expert > 1:
            take.notes.refusals.append(f"expert_model_parallel_size = {expert}: the model has no experts; leave it out")
        return shape, None, 1
    if mixture.experts % expert:
        take.notes.refusals.append(f"expert_model_parallel_size = {expert} does not divide {mixture.experts} experts")
        return shape, within, 1
    if mixture.experts * within % tensor:  # which Megatron runs
        raise ValueError(
            f"--tensor-model-parallel-size {tensor}: is not read beside {mixture.experts} experts; use less"
        )
    if within == 1:
        return shape, expert, 1
    take.notes.assumed.append(
        f"experts cut by tensor parallelism are {within} times as many, of {within} times less width"
    )
    cut = replace(
        mixture,
        experts=within * mixture.experts,
        chosen=within * mixture.chosen,
        inner=max(1, mixture.inner // within),
    )
    return replace(shape, mixture=cut), expert * within, within


def _sends_once(take: Taking) -> bool:
    """Whether the dispatcher is DeepEP or HybridEP; Megatron's own sends every copy of a token by itself."""
    dispatcher = take.text("moe_token_dispatcher_type")
    backends = [take.text("moe_flex_dispatcher_backend"), take.switch("moe_enable_deepep")]
    return dispatcher == "flex" or (dispatcher is None and any(backends))


def _predicting(take: Taking, *, is_typed: bool) -> int:
    """Layers of multi-token prediction: as stated, or as a layout has them where nothing but options is there."""
    stated = take.number("mtp_num_layers")
    if stated is None and is_typed and (layout := take.text(_LAYOUT)) is not None:
        stated = "".join(written_out(layout)).count("m")
        take.notes.assumed += [f"mtp_num_layers = {stated} (as the layout has m)"] if stated else []
    if stated:
        take.notes.assumed.append(
            "a layer of multi-token prediction takes as long as the last block, and its loss as long as the head"
        )
    return stated or 0


def _pipelines(take: Taking, read: ReadArguments, *, within: int, group: int, experts: int | None) -> int:
    """Of the devices that a launcher, a log or an option states; the least where nobody does."""
    take.taken.update(_LAUNCHER)
    stated = take.number("world_size")
    if (sequence := take.number("ds_sequence_parallel_size", 1)) != 1:
        raise ValueError(
            f"--ds-sequence-parallel-size {sequence}: devices that share sequences so are not read; give --cp"
        )
    came = ""
    if stated is None and take.text("nproc_per_node") is not None:
        node, nodes = take.number("nproc_per_node") or 1, take.number("nnodes")
        stated = node * (nodes or 1)
        header = "" if read.script is None else read.script.variables.get("SLURM_NNODES", "")
        told = f", and Slurm's header asks for {header}" if header.isdecimal() and header != str(nodes or 1) else ""
        where = "one node, as nnodes is not stated" if nodes is None else f"{nodes} nodes" if nodes > 1 else "one node"
        came = f" ({node} a node on {where}{told})"
    if stated is None:
        return take.notes.assume_devices(within, group=group, experts=experts)
    if stated % within or stated < within:
        take.notes.refusals.append(
            f"{stated} devices{came} are not a multiple of tensor x context x pipeline = {within}; use another number; "
            "what follows is for one pipeline"
        )
        return 1
    return stated // within


def _batch(take: Taking, read: ReadArguments, *, each: int, ranks: int) -> int:
    """Samples of an iteration; `each`: of one microbatch on all pipelines."""
    stated, steps = take.number("global_batch_size"), take.number("gradient_accumulation_steps")
    if stated is None and steps:
        return each * steps
    if stated is None:
        if read.kind == "options":
            stated = MICROBATCHES_PER_RANK * ranks * each
            take.notes.assumed.append(f"global_batch_size = {stated} ({MICROBATCHES_PER_RANK} microbatches per rank)")
        else:
            stated = each
            take.notes.assumed.append(f"global_batch_size = {stated} (Megatron's own: one microbatch per pipeline)")
    if stated % each or stated < each:
        take.notes.refusals.append(
            f"global_batch_size = {stated} is not a multiple of micro_batch_size times pipelines = {each}"
        )
        return max(1, stated // each) * each
    return stated


def _dtype(take: Taking, *, is_typed: bool) -> Dtype:
    is_half = [take.switch(name) for name in ("bf16", "fp16")]
    if all(is_half):
        take.notes.refusals.append("bf16 and fp16 are both on; leave one of them out")
    fp8, recipe, fp4 = take.text("fp8_format"), take.text("fp8_recipe"), take.text("fp4_format")
    take.text("fp4_recipe")
    if mixed := take.text("mixed_precision"):
        return next((dtype for part, dtype in _MIXED.items() if part in mixed.lower()), "bf16")
    if fp4 or fp8:
        take.notes.assumed.append("what products read is kept in one byte a value, as Transformer Engine does")
    if fp4:
        return "nvfp4"
    if fp8:
        if (recipe := (recipe or "delayed").rpartition(".")[2]) not in _FP8:
            raise ValueError(f"--fp8-recipe {recipe[:40]}: is not known; give one of {', '.join(_FP8)}")
        return _FP8[recipe]
    if not any(is_half):
        take.notes.assumed.append("bf16" if is_typed else "bf16, though no --bf16 is there")
    return "bf16"


def _recomputation(take: Taking) -> Recomputation | None:
    kind, method = take.text("recompute_granularity"), take.text("recompute_method")
    old = take.text("activations_checkpoint_method")
    if take.switch("checkpoint_activations") or old:
        kind, method = "full", old or "uniform"
    stated = take.number("recompute_num_layers")
    count = 1 if stated is None else stated
    if take.switch("recompute_activations") or kind == "selective":
        if method and stated is not None:
            take.notes.refusals.append("selective recomputation takes no --recompute-method and --recompute-num-layers")
        modules = take.text("recompute_modules") or "core_attn"
        take.notes.not_counted.append(
            f"selective recomputation of {modules}: estimates keep all of it, and take no time for it"
        )
        return None
    if kind in (None, "none"):
        return None
    if kind != "full":
        raise ValueError(f"--recompute-granularity {kind[:40]}: is not known; give full or selective")
    if method not in ("uniform", "block"):
        take.notes.refusals.append("full recomputation needs --recompute-method (uniform or block)")
    if method == "uniform" and count > 1:
        take.notes.not_counted.append(
            f"--recompute-num-layers {count} with uniform: estimates recompute block by block"
        )
    if method == "block" and stated is None:
        take.notes.assumed.append("recompute_num_layers = 1")
    return None if method == "block" and not count else Recomputation(blocks=count if method == "block" else None)


def _stages(take: Taking, shape: ModelShape, *, predicting: int, ranks: int, is_typed: bool) -> tuple[str, ...]:
    """What every stage holds; where Megatron refuses, the reason is noted and there are none."""
    layout, refusals = take.text(_LAYOUT), take.notes.refusals
    each, chunks = (
        take.number("num_layers_per_virtual_pipeline_stage"),
        take.number("num_virtual_stages_per_pipeline_rank"),
    )
    first, last = (take.number(f"decoder_{end}_pipeline_num_layers") for end in ("first", "last"))
    if each and (first is not None or last is not None) and layout is None:
        refusals.append(
            "num_layers_per_virtual_pipeline_stage beside blocks of the first or last rank; give "
            "--num-virtual-stages-per-pipeline-rank in its place"
        )
    if each == 0:
        refusals.append("num_layers_per_virtual_pipeline_stage = 0 divides no blocks; leave it out")
    if each and chunks and is_typed:  # a log says what the one makes of the other
        refusals.append(
            "num_layers_per_virtual_pipeline_stage and num_virtual_stages_per_pipeline_rank are both given; drop one"
        )
    counts = [take.switch(f"account_for_{part}_in_pipeline_split") for part in ("embedding", "loss")]
    if shape.pattern:
        segments = read_pattern(take.text(_PATTERN) or shape.pattern)
        given = [name for name, value in take.values.items() if value not in (False, *NOTHING)]
        refusals += pattern_refusals(segments, ranks=ranks, given=given)
        if len(segments) > 1 or refusals:
            return () if refusals else stages_of(segments)
    if layout is not None:
        if is_typed and (each or (chunks and len(written_out(layout)) != chunks * ranks)):
            refusals.append(
                "a layout and virtual stages are both given, and the layout says how many there are; drop one"
            )
        stages = written_out(layout)
        found = list(layout_refusals(stages, blocks=shape.blocks, predicting=predicting, ranks=ranks))
        refusals += found
        if not found and "" in stages:
            raise ValueError(f"the layout's stage {stages.index('')} is empty; give every stage a layer")
        return () if found else tuple(stages)
    if take.switch("deepspeed") and not (each or chunks):
        method = (take.text("pp_partition_method") or "type:transformer").strip("'\"")
        take.notes.assumed.append("flags of a better plan are Megatron-LM's; DeepSpeed's engine cuts by a method alone")
        return cut_layers(shape, count=ranks, method=method, notes=take.notes)
    try:
        idle = _idle_blocks(take)
        blocks = shape.blocks + len(idle)
        if each:
            chunks = _chunks(blocks + sum(counts), ranks=ranks, each=each)
        if (listed := take.text("num_layer_list")) is not None:
            stages = _with_listed_sizes(blocks, ranks=ranks, text=listed)
        elif first is not None or last is not None:
            stages = _with_given_ends(blocks, ranks=ranks, chunks=chunks or 1, ends=(first, last))
        else:
            stages = list(even_stages(blocks, ranks * (chunks or 1), counts=counts))
        stages = _without_blocks(stages, idle)
    except ValueError as reason:
        remedy = "put | into --hybrid-layer-pattern" if shape.pattern else "use --pipeline-model-parallel-layout"
        refusals.append(f"{reason}; {remedy}")
        return ()
    stages[-1] = stages[-1][:-1] + "m" * predicting + "L"
    return tuple(stages)


def _without_blocks(stages: Sequence[str], idle: set[int]) -> list[str]:
    """The stages without the letters of blocks that do nothing; raises ValueError where one has no others."""
    numbers = itertools.count()
    kept = ["".join(letter for letter in stage if letter != "t" or next(numbers) not in idle) for stage in stages]
    if "" in kept:
        raise ValueError(f"stage {kept.index('')} has no block but those of --noop-layers; name fewer")
    return kept


def _chunks(blocks: int, *, ranks: int, each: int) -> int:
    if blocks % (ranks * each):
        raise ValueError(f"{blocks} blocks do not divide by {ranks} ranks of stages of {each}")
    return blocks // (ranks * each)


def _with_listed_sizes(blocks: int, *, ranks: int, text: str) -> list[str]:
    """MindSpeed's: blocks of every rank, one stage each."""
    sizes = [int(each) for each in re.findall(r"\d{1,6}", text)]
    if (len(sizes), sum(sizes)) != (ranks, blocks) or 0 in sizes:
        raise ValueError(
            f"num_layer_list = {text[:60]} is not {ranks} numbers of 1 or more with the sum {blocks}; give such"
        )
    return list(with_ends(["t" * size for size in sizes]))


def _with_given_ends(blocks: int, *, ranks: int, chunks: int, ends: tuple[int | None, int | None]) -> list[str]:
    """Some blocks on the first and the last rank, the others evenly on those between, each rank's over its stages."""
    first, last = ends
    between = ranks - (first is not None) - (last is not None)
    rest = blocks - (first or 0) - (last or 0)
    if rest < 0:
        raise ValueError(f"{blocks - rest} blocks on the first or last rank: the model has {blocks}; give fewer")
    if between < 0 or (rest % between if between else rest):
        raise ValueError(f"{rest} blocks do not divide by the {between} ranks between those with a number of their own")
    sizes = [rest // max(1, between)] * ranks
    sizes[0], sizes[-1] = sizes[0] if first is None else first, sizes[-1] if last is None else last
    if 0 in sizes:
        raise ValueError(f"{', '.join(map(str, sizes))} blocks per rank leave one without any; give each one")
    if any(size % chunks for size in sizes):
        raise ValueError(f"{', '.join(map(str, sizes))} blocks per rank do not divide by {chunks} virtual stages")
    return list(with_ends(["t" * (size // chunks) for _ in range(chunks) for size in sizes]))
