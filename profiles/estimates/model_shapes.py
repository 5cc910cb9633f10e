"""Shapes of language models, as their configurations in Hugging Face's form state them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from profiles.documents.refusal import render_value
from profiles.documents.unique_names import read_json
from profiles.field_rules import require_integer, require_name


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention: what queries, keys and values are compressed to."""

    query_rank: int
    """Rank to which queries are compressed; 0: they are not."""
    key_value_rank: int
    """Of keys and values together."""
    rope: int
    """Width of the part of a key that carries its position, shared by all heads."""
    key: int
    """Width of a head's key without it."""
    value: int
    """Width of a head's value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertShape:
    """A mixture of experts instead of one feed-forward part."""

    experts: int
    """In a layer."""
    chosen: int
    """Per token."""
    inner: int
    """Width inside one expert."""
    shared_inner: int = 0
    """Width inside what every token passes besides; 0: nothing."""
    has_biases: bool = False
    """Whether experts add biases, and clamp what they activate, as GPT-OSS' do."""
    dense_layers: int = 0
    """So many first layers have one feed-forward part instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentShape:
    """A mixer that carries a state from token to token instead of scores: Mamba, or a gated delta net."""

    heads: int
    """Of values."""
    head_width: int
    """Features of one head of values."""
    groups: int
    """Heads of keys and queries; Mamba's groups."""
    state: int
    """Width of a key; Mamba's state."""
    gates: int
    """Scalars per head and token: 1 of Mamba, 2 of a gated delta net."""

    @property
    def inner(self) -> int:
        """Width of all values."""
        return self.heads * self.head_width

    @property
    def convolved(self) -> int:
        """Values, keys and queries."""
        return self.inner + 2 * self.groups * self.state

    @property
    def columns(self) -> int:
        """Of the projection before: what is convolved, a gate as wide as the values, and scalars."""
        return self.inner + self.convolved + self.gates * self.heads


MAX_BLOCKS = 10_000
"""Of a model."""

SUBLAYERS = {"M": "mamba", "G": "gdn", "*": "attention", "-": "mlp", "E": "moe"}
"""What a letter of a hybrid model's pattern stands for, as layers are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder: an embedding, blocks, a head."""

    name: str
    """Shown."""
    blocks: int
    """Transformer blocks."""
    hidden: int
    """Width of the residual stream."""
    heads: int
    """Of queries."""
    key_value_heads: int
    head_width: int
    inner: int
    """Width inside a dense feed-forward part."""
    vocabulary: int
    """Rows of the embedding and columns of the head."""
    is_gated: bool = True
    """Whether the feed-forward part has a third matrix."""
    windows: tuple[int, ...] = field(default=())
    """Of every block, tokens back that its attention sees; 0: all. Empty: all of every block."""
    latent: LatentAttention | None = None
    """None: keys and values of their own."""
    mixture: ExpertShape | None = None
    """None: dense."""
    pattern: str = ""
    """Of a hybrid model, a letter of `SUBLAYERS` for every block, which is that alone; empty: blocks are whole."""
    mamba: RecurrentShape | None = None
    """Of blocks M."""
    delta: RecurrentShape | None = None
    """Of blocks G."""
    has_gated_attention: bool = False
    """Whether attention's output is gated by values as wide as its queries."""
    is_tied: bool = False
    """Whether the head's matrix is the embedding's, which one device that holds both has once."""

    def __post_init__(self) -> None:
        require_name("model shape: name", self.name)
        for each in ("blocks", "hidden", "heads", "key_value_heads", "head_width", "inner", "vocabulary"):
            require_integer(f"model shape {self.name!r}: {each}", getattr(self, each), least=1)
        if self.blocks > MAX_BLOCKS:
            raise ValueError(f"model shape {self.name!r}: {self.blocks} blocks; give {MAX_BLOCKS:,} at most")
        if self.heads % self.key_value_heads:
            raise ValueError(
                f"model shape {self.name!r}: {self.key_value_heads} key and value heads do not divide {self.heads} "
                "heads; correct one of the two"
            )
        if self.mixture is not None and not 1 <= self.mixture.chosen <= self.mixture.experts:
            raise ValueError(
                f"model shape {self.name!r}: {self.mixture.chosen} of {self.mixture.experts} experts for a token; "
                "give as many as there are at most, and 1 at least"
            )

    def is_mixture(self, block: int) -> bool:
        """Whether a block has experts."""
        if self.pattern:
            return self.sublayer(block) == "E"
        return self.mixture is not None and block >= self.mixture.dense_layers

    def sublayer(self, block: int) -> str:
        """The letter of a hybrid model's block; empty: it is whole."""
        return self.pattern[block] if self.pattern else ""

    def mixer(self, block: int) -> RecurrentShape | None:
        """The recurrent mixer of a block; None if the block has attention."""
        return {"M": self.mamba, "G": self.delta}.get(self.sublayer(block))

    def window(self, block: int) -> int:
        """Tokens that a block's attention sees."""
        return self.windows[block] if self.windows else 0

    def degrees(self, most: int = 8) -> tuple[int, ...]:
        """The tensor-parallel degrees, powers of two, that divide heads, widths and experts."""
        found = []
        degree = 1
        while degree <= most:
            if not self.why_not(degree):
                found.append(degree)
            degree *= 2
        return tuple(found)

    def why_not(self, degree: int) -> str:
        """What a degree does not divide; empty: nothing."""
        parts = {"heads": self.heads, "hidden width": self.hidden}
        if self.mixture is None or self.mixture.dense_layers:
            parts["inner width"] = self.inner
        for mixer in (self.mamba, self.delta):
            if mixer is not None:
                parts |= {"heads of mixers": mixer.heads, "groups of mixers": mixer.groups}
        if self.mixture is not None:
            parts["experts"] = self.mixture.experts
            if self.mixture.shared_inner:
                parts["inner width of the shared expert"] = self.mixture.shared_inner
        return next((f"{value} {what}" for what, value in parts.items() if value % degree), "")


_CLASS_DEFAULTS, _FIELD_KINDS, ALIASES = (
    json.loads(Path(__file__).with_name(f"{name}.json").read_text(encoding="utf-8"))
    for name in ("class_defaults", "field_kinds", "short_names")
)
"""By `model_type`, what transformers takes for a field that a configuration leaves out; by field, which kinds' classes
read it: others leave it out in silence; short names of configurations that come with aiconfigurator-core."""

_LATENT_KINDS = ("deepseek_v2", "deepseek_v3", "kimi_k2")
_KIMI = ("q_lora_rank", "n_shared_experts", "first_k_dense_replace", "moe_intermediate_size")
_MIXTURE_KINDS = (
    *_LATENT_KINDS, "qwen2_moe", "qwen3_moe", "mixtral", "gpt_oss", "glm4_moe", "minimax_m2", "olmoe", "granitemoe",
)  # fmt: skip
_READ_KINDS = (
    "llama", "qwen2", "qwen3", "mistral", "phi3", "olmo", "olmo2", "olmo3", "seed_oss", "ernie4_5", "exaone4",
    "granite", "glm", "glm4", "helium", "ministral3", "gemma", "gemma2", "gemma3_text", "cohere", "cohere2", "smollm3",
    *_MIXTURE_KINDS,
)  # fmt: skip
"""The `model_type`s whose blocks are composed here."""
_WINDOWED_KINDS = ("mistral", "ministral3", "mixtral", "phi3", "qwen3_moe")
"""Those whose window, if they state one, is of all blocks."""
_SWITCHED_KINDS = ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "smollm3")
"""Those whose window is none unless `use_sliding_window` is true."""
_ATTENTION = {"full_attention", "sliding_attention"}


def read_shape(text: str, *, name: str) -> ModelShape:
    """The shape that a `config.json` in Hugging Face's form states.

    Raises ValueError that names the field that is missing, or the kinds of models that are read.
    """
    try:
        config = read_json(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: is not JSON ({str(error)[:80]}); give a model's config.json") from None
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind not in _READ_KINDS:
        part = "its text_config, if that is" if isinstance(config, dict) and "text_config" in config else "a model of"
        raise ValueError(f"{name}: model_type = {render_value(kind)} is not read; give {part} {', '.join(_READ_KINDS)}")
    take = ConfigReader(config, name)
    if kind == "kimi_k2" and (left_out := next((each for each in _KIMI if each not in config), "")):
        raise ValueError(f"{name}: {left_out} is left out, and transformers has no class of kimi_k2; state it")
    heads, hidden, width = take("num_attention_heads"), take("hidden_size"), take.config.get("head_dim")
    if width is None and kind not in _LATENT_KINDS and hidden % heads:
        raise ValueError(f"{name}: hidden_size = {hidden} is not a multiple of {heads} heads; give head_dim")
    if kind == "helium" and take("head_dim", hidden // heads) * heads != hidden:
        raise ValueError(f"{name}: head_dim = {width}: helium's heads fill hidden_size; give {hidden // heads}")
    return ModelShape(
        **take.common(),
        blocks=take("num_hidden_layers"),
        inner=take("intermediate_size"),
        windows=_windows(take, blocks=take("num_hidden_layers")),
        latent=_latent(take) if kind in _LATENT_KINDS else None,
        mixture=read_mixture(take) if kind in _MIXTURE_KINDS else None,
    )


class ConfigReader:
    """Whole numbers of a configuration by name; what it leaves out is what its class in transformers has."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        kind = config.get("model_type", "")
        self.config, self.name = {**_CLASS_DEFAULTS.get(kind, {}), **config}, name
        if other := next((each for each, kinds in _FIELD_KINDS.items() if config.get(each) and kind not in kinds), ""):
            raise ValueError(
                f"{name}: {other} = {render_value(config[other])}: {kind} has none; give its own model_type, or leave "
                f"{other} out"
            )

    def __call__(self, key: str, otherwise: int | None = None) -> int:
        """Raises ValueError for what is none, or is missing without another value; 0 is taken only in its place."""
        value = self.config.get(key)
        value = otherwise if value is None else value
        least = int(otherwise != 0)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 10**9:
            raise ValueError(
                f"{self.name}: {key} = {render_value(value)} is out of range; give a whole number from {least} to 10^9"
            )
        return value

    def first(self, *keys: str, otherwise: int | None = None) -> int:
        """The value that one of several names has."""
        return self(self.name_of(*keys), otherwise)

    def name_of(self, *keys: str) -> str:
        """The first of several names that is there; raises ValueError where two differ."""
        stated = [key for key in keys if self.config.get(key) is not None] or [keys[0]]
        if other := next((key for key in stated if self.config.get(key) != self.config.get(stated[0])), None):
            texts = [f"{key} = {render_value(self.config[key])[:80]}" for key in (stated[0], other)]
            raise ValueError(f"{self.name}: {' and '.join(texts)} are one thing; give one value")
        return stated[0]

    def common(self) -> dict[str, Any]:
        """Fields of a shape that all kinds of models state by the same names."""
        heads, hidden = self("num_attention_heads"), self("hidden_size")
        return {
            "name": self.name,
            "hidden": hidden,
            "heads": heads,
            "key_value_heads": self("num_key_value_heads", heads),
            "head_width": self.first("head_dim", "attention_head_dim", otherwise=hidden // heads),
            "vocabulary": self("vocab_size"),
            "is_tied": self.switch("tie_word_embeddings"),
        }

    def switch(self, key: str) -> bool:
        """Whether it is true; raises ValueError for what is neither true nor false."""
        if (value := self.config.get(key)) not in (True, False, None):
            raise ValueError(f"{self.name}: {key} = {render_value(value)}; give true or false")
        return bool(value)


def _windows(take: ConfigReader, *, blocks: int) -> tuple[int, ...]:
    """A window of every block: of those that are named, of all, of all behind the first, or of all but every n-th."""
    config, name = take.config, take.name
    kinds, window = config.get("layer_types"), config.get("sliding_window")
    if kinds is not None and (not isinstance(kinds, list) or len(kinds) != blocks or set(map(str, kinds)) - _ATTENTION):
        raise ValueError(
            f"{name}: layer_types = {render_value(kinds)[:80]}; give one of {', '.join(sorted(_ATTENTION))} "
            f"for each of the {blocks} blocks"
        )
    if not isinstance(window, int) or isinstance(window, bool) or window < 1:
        return ()
    if isinstance(kinds, list):
        return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    kind, every = str(config.get("model_type")), config.get("sliding_window_pattern")
    if kind in _SWITCHED_KINDS and not take.switch("use_sliding_window"):
        return ()
    if kind in _WINDOWED_KINDS:
        return (window,) * blocks
    if kind in ("qwen2", "qwen3"):
        first = take("max_window_layers", 0)
        return tuple(window if block >= first else 0 for block in range(blocks))
    has_pattern = "sliding_window_pattern" in _CLASS_DEFAULTS.get(kind, {})
    if has_pattern and type(every) is int and every > 0:
        return tuple(window if (block + 1) % every else 0 for block in range(blocks))
    if has_pattern or kind in _SWITCHED_KINDS:
        raise ValueError(f"{name}: sliding_window = {window}: which blocks have it is not stated; give layer_types")
    return ()


def _latent(take: ConfigReader) -> LatentAttention:
    return LatentAttention(
        query_rank=take("q_lora_rank", 0),
        key_value_rank=take("kv_lora_rank"),
        rope=take("qk_rope_head_dim"),
        key=take("qk_nope_head_dim"),
        value=take("v_head_dim"),
    )


_SHARED = ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size")


def read_mixture(take: ConfigReader) -> ExpertShape:
    """Experts of a configuration; raises ValueError where dense blocks stand between those that have them."""
    for key, regular in (("mlp_only_layers", []), ("decoder_sparse_step", 1), ("moe_layer_freq", 1)):
        if (stated := take.config.get(key)) not in (None, regular):
            raise ValueError(
                f"{take.name}: {key} = {render_value(stated)} is not read, for dense blocks then stand between those "
                f"with experts; give {regular}"
            )
    kind, widths = take.config.get("model_type"), ("moe_intermediate_size", "intermediate_size")
    has_own = kind in _LATENT_KINDS or widths[0] in _CLASS_DEFAULTS.get(kind, {})
    inner = take(widths[0], take(widths[1])) if has_own else take.first(*widths)
    return ExpertShape(
        experts=take.first("n_routed_experts", "num_local_experts", "num_experts"),
        chosen=take("num_experts_per_tok"),
        inner=inner,
        shared_inner=take.first(*_SHARED, otherwise=inner * take("n_shared_experts", 0)),
        has_biases=kind == "gpt_oss",
        dense_layers=take("first_k_dense_replace", 0),
    )
