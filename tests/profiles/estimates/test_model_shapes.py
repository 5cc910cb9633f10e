"""Configurations in Hugging Face's form."""

import json
from typing import Any

import pytest

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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "model_type = null is not read; give a model of llama"),
        (json.dumps(BASE | {"model_type": "bert"}), '"bert" is not read'),
        (json.dumps(BASE | {"hidden_size": "wide"}), "hidden_size"),
        (json.dumps({**BASE, "vocab_size": None}), "vocab_size = null"),
    ],
)
def test_refusals(text: str, message: str):
    """Tests that what cannot be read is refused by the name of the field."""
    with pytest.raises(ValueError, match="toy: ") as caught:
        read_shape(text, name="toy")
    assert message in str(caught.value)


def test_windows_of_all_blocks():
    """Tests that a window is of all blocks of some kinds, and of Qwen's behind the first ones once it is turned on."""
    assert read(model_type="mistral", sliding_window=128).windows == (128, 128)
    assert read(model_type="mistral", sliding_window=None).windows == ()
    assert read(model_type="llama", sliding_window=128).windows == ()
    own = {"model_type": "qwen2", "sliding_window": 128, "max_window_layers": 1}
    assert read(**own, use_sliding_window=True).windows == (0, 128)
    assert read(**own).windows == ()


def test_dense_blocks_between_others():
    """Tests that experts in some blocks only are refused by the field that says so, and shared ones have a width."""
    own = {"model_type": "qwen2_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
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
