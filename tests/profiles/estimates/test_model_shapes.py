"""Configurations in Hugging Face's form."""

import json
from pathlib import Path
from typing import Any

import pytest

from profiles.estimates import model_shapes
from profiles.estimates.achieved_rates import known_rates
from profiles.estimates.composed_profile import CompositionQuestion, compose
from profiles.estimates.model_shapes import ExpertShape, LatentAttention, read_shape

BASE = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "intermediate_size": 1024,
    "vocab_size": 1000,
}


def read(**given: object):
    return read_shape(json.dumps(BASE | given), name="toy")


def test_dense():
    """Tests that heads of keys and their width follow from the others where they are not stated."""
    shape = read()
    assert (shape.key_value_heads, shape.head_width, shape.mixture, shape.latent) == (8, 64, None, None)
    assert read(num_key_value_heads=2, head_dim=128).head_width == 128
    assert shape.degrees() == (1, 2, 4, 8)


def test_mixtures():
    """Tests that every family's names of experts are read, and shared experts and dense first layers."""
    assert read(model_type="mixtral", num_local_experts=8, num_experts_per_tok=2).mixture == ExpertShape(
        experts=8, chosen=2, inner=1024
    )
    qwen = read(model_type="qwen3_moe", num_experts=16, num_experts_per_tok=4, moe_intermediate_size=128)
    assert qwen.mixture == ExpertShape(experts=16, chosen=4, inner=128)
    deepseek = read(
        model_type="deepseek_v3",
        n_routed_experts=32,
        num_experts_per_tok=8,
        moe_intermediate_size=64,
        n_shared_experts=2,
        first_k_dense_replace=1,
        q_lora_rank=96,
        kv_lora_rank=48,
        qk_rope_head_dim=16,
        qk_nope_head_dim=32,
        v_head_dim=32,
    )
    assert deepseek.mixture == ExpertShape(experts=32, chosen=8, inner=64, shared_inner=128, dense_layers=1)
    assert deepseek.latent == LatentAttention(query_rank=96, key_value_rank=48, rope=16, key=32, value=32)
    assert [deepseek.is_mixture(block) for block in (0, 1)] == [False, True]
    assert deepseek.why_not(64) == "8 heads"


def test_windows():
    """Tests that windows are read block by block, and refused unless every block has a kind."""
    kinds = ["sliding_attention", "full_attention"]
    own = {"model_type": "gpt_oss", "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 128}
    assert read(**own, layer_types=kinds).windows == (128, 0)
    with pytest.raises(ValueError, match="for each of the 2 blocks"):
        read(**own, layer_types=kinds[:1])
    assert [read(**own, layer_types=kinds).window(block) for block in (0, 1)] == [128, 0]


def test_experts_with_biases():
    """Tests that experts of GPT-OSS add biases, and Mixtral's do not."""
    shapes = [read(model_type=kind, num_local_experts=8, num_experts_per_tok=2) for kind in ("gpt_oss", "mixtral")]
    assert [shape.mixture and shape.mixture.has_biases for shape in shapes] == [True, False]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "model_type = null is not read; give a model of llama"),
        (json.dumps(BASE | {"model_type": "bert"}), '"bert" is not read'),
        (json.dumps(BASE | {"hidden_size": "wide"}), "hidden_size"),
        (json.dumps({**BASE, "vocab_size": None}), "vocab_size = null"),
        (json.dumps({**BASE, "vocab_size": 0}), "vocab_size = 0 is out of range; give a whole number from 1"),
        (
            json.dumps({**BASE, "num_local_experts": 8}),
            "num_local_experts = 8: llama has none; give its own model_type",
        ),
        (json.dumps({**BASE, "kv_lora_rank": 512}), "kv_lora_rank = 512: llama has none"),
        (json.dumps({**BASE, "index_topk": 2048}), "index_topk = 2048: llama has none"),
        (json.dumps({"model_type": "gemma3", "text_config": {}}), "give its text_config, if that is llama, qwen2"),
        (json.dumps({**BASE, "cross_attention_layers": [3]}), "cross_attention_layers = [1 entries]: llama has none"),
        (json.dumps({**BASE, "tie_word_embeddings": "true"}), 'tie_word_embeddings = "true"; give true or false'),
    ],
)
def test_refusals(text: str, message: str):
    """Tests that what cannot be read is refused by the name of the field."""
    with pytest.raises(ValueError, match="toy: ") as caught:
        read_shape(text, name="toy")
    assert message in str(caught.value)


@pytest.mark.parametrize("nothing", [None, 0, [], {}])
def test_parts_that_are_stated_as_none(nothing: Any):
    """Tests that a field of another kind of block is no matter where it says that there are none."""
    assert read(num_experts=nothing, kv_lora_rank=nothing, linear_attn_config=nothing) == read()


def test_windows_that_are_not_listed():
    """Tests that a window is of all blocks of some kinds, of Qwen's behind the first ones, and of others by a pattern.

    Patterns and switches are those of transformers 5.23.
    """
    for kind in ("mistral", "ministral3", "mixtral", "phi3"):
        own = {"num_local_experts": 8, "num_experts_per_tok": 2} if kind == "mixtral" else {}
        assert read(model_type=kind, sliding_window=128, **own).windows == (128, 128)
        assert read(model_type=kind, sliding_window=None, **own).windows == ()
    assert read(model_type="llama", sliding_window=128, sliding_window_pattern=2).windows == ()
    own = {"model_type": "qwen2", "sliding_window": 128, "max_window_layers": 1, "num_key_value_heads": 8}
    assert read(**own, use_sliding_window=True).windows == (0, 128)
    assert read(**own).windows == ()
    for kind, every in (("gemma2", 2), ("gemma3_text", 6), ("cohere2", 4), ("olmo3", 4), ("exaone4", 4)):
        shape = read(model_type=kind, num_hidden_layers=12, num_key_value_heads=8, sliding_window=128)
        assert shape.windows == tuple(128 if (block + 1) % every else 0 for block in range(12))
    assert read(model_type="cohere2", sliding_window=128, sliding_window_pattern=2).windows == (128, 0)
    with pytest.raises(ValueError, match="sliding_window = 128: which blocks have it is not stated; give layer_types"):
        read(model_type="exaone4", num_key_value_heads=8, sliding_window=128, sliding_window_pattern="LLLG")
    with pytest.raises(ValueError, match="give layer_types"):
        read(model_type="cohere2", sliding_window=128, sliding_window_pattern=True)


def test_what_is_left_out_is_what_its_class_has():
    """Tests that fields that a configuration leaves out are those of its class in transformers, not of another."""
    config = pytest.importorskip("transformers").AutoConfig
    defaults = json.loads((Path(model_shapes.__file__).parent / "class_defaults.json").read_text(encoding="utf-8"))
    for kind, fields in defaults.items():
        own = type(config.for_model(kind))
        assert {field: getattr(own, field, value) for field, value in fields.items()} == fields
    assert read(model_type="gemma3_text", num_attention_heads=4).head_width == 256
    assert read(model_type="mistral", num_attention_heads=32).key_value_heads == 8
    assert read(model_type="mistral").windows == (4096, 4096)
    assert read(model_type="ernie4_5").is_tied
    own = {"num_experts": 4, "num_experts_per_tok": 1}
    assert read(model_type="qwen3_moe", **own).mixture == ExpertShape(experts=4, chosen=1, inner=768)


# Kind; blocks, hidden, heads, those of keys, inner, vocabulary; more; million parameters by transformers 5.23.
PUBLISHED = [
    ("llama", (16, 2048, 32, 8, 8192, 128256), {"head_dim": 64, "tie_word_embeddings": True}, 1235.81),
    ("mistral", (40, 5120, 32, 8, 14336, 131072), {"head_dim": 128}, 12247.78),
    ("phi3", (40, 5120, 40, 10, 17920, 100352), {}, 14659.51),
    ("olmo3", (32, 4096, 32, 32, 11008, 100278), {}, 7298.01),
    ("olmoe", (16, 2048, 16, 16, 1024, 50304), {"num_experts": 64, "num_experts_per_tok": 8}, 6919.16),
    ("smollm3", (36, 2048, 16, 4, 11008, 128256), {}, 3075.10),
    ("seed_oss", (64, 5120, 80, 8, 27648, 155136), {"head_dim": 128}, 36151.10),
    ("ernie4_5", (18, 1024, 16, 2, 3072, 103424), {"head_dim": 128, "tie_word_embeddings": True}, 360.75),
    ("exaone4", (64, 5120, 40, 8, 27392, 102400), {"head_dim": 128}, 32003.22),
    ("granite", (40, 4096, 32, 8, 12800, 49159), {"tie_word_embeddings": True}, 8170.85),
    ("granitemoe", (24, 1024, 16, 8, 512, 49155),
     {"num_local_experts": 32, "num_experts_per_tok": 8, "tie_word_embeddings": True}, 1334.63),
    ("glm4", (40, 4096, 32, 2, 13696, 151552), {"head_dim": 128}, 9400.28),
    ("minimax_m2", (62, 3072, 48, 8, 1536, 200064),
     {"head_dim": 128, "num_local_experts": 256, "num_experts_per_tok": 8}, 228689.75),
    ("gemma", (28, 3072, 16, 16, 24576, 256000), {"head_dim": 256}, 8537.68),
    ("gemma2", (46, 4608, 32, 16, 36864, 256000), {"head_dim": 128}, 27227.13),
    ("gemma3_text", (26, 1152, 4, 1, 6912, 262144), {"head_dim": 256}, 999.89),
    ("cohere2", (32, 4096, 32, 8, 14336, 256000), {"head_dim": 128}, 8028.03),
    ("ministral3", (34, 4096, 32, 8, 14336, 131072), {"head_dim": 128}, 8489.75),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "sizes", "more", "millions"), PUBLISHED, ids=[row[0] for row in PUBLISHED])
def test_parameters_are_those_that_transformers_counts(
    kind: str, sizes: tuple[int, ...], more: dict[str, object], millions: float
):
    """Tests that published sizes of every kind weigh what they do; norms and biases are less than a thousandth."""
    names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size",
             "vocab_size")  # fmt: skip
    shape = read(model_type=kind, **dict(zip(names, sizes, strict=True)), **more)
    question = CompositionQuestion(
        shape=shape, rates=[known_rates()["h100_sxm"]], sequence=4096, sizes=(1,), degrees=(1,)
    )
    layers = [layer.as_one_device(layer.costs[0]) for layer in compose(question)[0].layers]
    counted = sum((layer.parameter_bytes or 0) // 2 for layer in layers[: -1 if shape.is_tied else None])
    assert counted == pytest.approx(millions * 1e6, rel=1e-3)


def test_dense_blocks_between_others():
    """Tests that experts in some blocks only are refused by the field that says so, and shared ones have a width."""
    own = {"model_type": "qwen2_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
           "num_key_value_heads": 8}  # fmt: skip
    shape = read(**own, shared_expert_intermediate_size=256, decoder_sparse_step=1, mlp_only_layers=[])
    assert shape.mixture == ExpertShape(experts=8, chosen=2, inner=64, shared_inner=256)
    for field, value in (("decoder_sparse_step", 2), ("mlp_only_layers", [0])):
        with pytest.raises(ValueError, match=f"{field} = .* is not read"):
            read(**own, **{field: value})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"num_key_value_heads": 3}, "3 key and value heads do not divide"),
        ({"num_hidden_layers": 10**6}, "1000000 blocks; give 10,000 at most"),
        ({"hidden_size": 257, "head_dim": None}, "is not a multiple of .* heads; give head_dim"),
        ({"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 5}, "5 of 4 experts"),
        ({"layer_types": ["chunked_attention"] * 2}, "layer_types = .* for each of the 2 blocks"),
    ],
)
def test_sizes_that_contradict_each_other(changes: dict[str, Any], told: str):
    """Tests that a field is refused where it contradicts another, rather than rounded or left out."""
    with pytest.raises(ValueError, match=told):
        read(**changes)


LATENT = {"q_lora_rank": 96, "kv_lora_rank": 48, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32,
          "n_routed_experts": 32, "num_experts_per_tok": 8}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"attention_head_dim": 96}, "attention_head_dim = 96: llama has none; .* or leave attention_head_dim out"),
        ({"block_configs": [{}]}, "block_configs = .*: llama has none"),
        ({"model_type": "mixtral", "num_local_experts": 8, "n_shared_experts": 1}, "n_shared_experts = 1: mixtral has"),
        ({"model_type": "mixtral", "n_routed_experts": 8}, "n_routed_experts = 8: mixtral has none"),
        (
            {"model_type": "olmoe", "num_experts": 8, "shared_expert_intermediate_size": 64},
            "shared_expert_.*: olmoe has",
        ),
        (
            {"model_type": "qwen3_moe", "num_experts": 8, "first_k_dense_replace": 1},
            "first_k_dense_replace = 1: qwen3_moe",
        ),
        (
            {"model_type": "glm4_moe", "n_routed_experts": 8, "mlp_layer_types": ["dense", "sparse"]},
            "mlp_layer_types = ",
        ),
    ],
)
def test_fields_that_a_class_does_not_read(config: dict[str, Any], told: str):
    """Tests that sizes of another kind's fields are refused, for this kind's class would leave them out."""
    with pytest.raises(ValueError, match=f"toy: {told}"):
        read(**config)


def test_two_names_of_one_size_agree():
    """Tests that experts and their width may have several names if all say the same."""
    own = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    assert read(**own, num_experts=8, moe_intermediate_size=1024) == read(**own)
    with pytest.raises(ValueError, match="num_local_experts = 8 and num_experts = 16 are one thing; give one value"):
        read(**own, num_experts=16)
    with pytest.raises(ValueError, match="moe_intermediate_size = 256 and intermediate_size = 1024 are one thing"):
        read(**own, moe_intermediate_size=256)


def test_heads_of_helium_fill_the_stream():
    """Tests that Helium's heads, whose outputs are projected as they are, are as wide together as the stream."""
    with pytest.raises(ValueError, match="head_dim = 128: helium's heads fill hidden_size; give 64"):
        read(model_type="helium", num_key_value_heads=8)
    assert read(model_type="helium", num_key_value_heads=8, head_dim=64).head_width == 64


def test_a_kind_without_a_class_states_its_fields():
    """Tests that Kimi K2, whose class is not transformers', must state what others' classes have by themselves."""
    stated = {"n_shared_experts": 1, "first_k_dense_replace": 1, "moe_intermediate_size": 64}
    assert read(model_type="kimi_k2", **LATENT, **stated).mixture == ExpertShape(
        experts=32, chosen=8, inner=64, shared_inner=64, dense_layers=1
    )
    for field in stated:
        kept = {name: value for name, value in stated.items() if name != field}
        with pytest.raises(ValueError, match=f"{field} is left out, and transformers has no class of kimi_k2"):
            read(model_type="kimi_k2", **LATENT, **kept)
