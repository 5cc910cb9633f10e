"""Hybrid models by Megatron-LM's pattern: layers, stages, refusals, and what their layers weigh and take."""

import json
import re

import pytest

from benchmarks.recipe_models import GRANITE_4, NEMOTRON_H
from profiles.configurations.argument_forms import ReadArguments, Value
from profiles.configurations.megatron_hybrid import written_pattern
from profiles.configurations.megatron_run import read_megatron
from profiles.configurations.run_configuration import RunConfiguration
from profiles.estimates.achieved_rates import known_rates
from profiles.estimates.composed_profile import CompositionQuestion, compose
from profiles.model_profile import ModelProfile

SIZES: dict[str, Value] = {
    "hidden_size": "1024", "num_attention_heads": "8", "ffn_hidden_size": "4096", "vocab_size": "32000",
    "group_query_attention": True, "num_query_groups": "2", "kv_channels": "128",
}  # fmt: skip


def typed(pattern: str, **options: Value) -> RunConfiguration:
    values = {**SIZES, "hybrid_layer_pattern": pattern, **options}
    return read_megatron(ReadArguments(values={}, kind="options"), options=values, model=None)


def profile_of(run: RunConfiguration) -> ModelProfile:
    question = CompositionQuestion(
        shape=run.shape, rates=[known_rates()["h100_sxm"]], sequence=2048, experts=run.experts, degrees=(run.tensor,)
    )
    return compose(question)[0]


@pytest.mark.parametrize(
    ("pattern", "options", "stages"),
    [
        ("M-M*|-M-G", {"pipeline_model_parallel_size": "2"}, ["M-M*", "-M-G"]),
        ("M-M*-M-M", {"pipeline_model_parallel_size": "2"}, ["M-M*", "-M-M"]),
        ("|M-|M*|M-", {"pipeline_model_parallel_size": "2"}, None),
        ("M|-|M*|-", {"pipeline_model_parallel_size": "2"}, ["M", "-", "M*", "-"]),
        ("M-M*-", {"pipeline_model_parallel_size": "2", "decoder_first_pipeline_num_layers": "2"}, ["M-", "M*-"]),
        ("M-", {"num_layers": "77"}, ["M-"]),
    ],
)
def test_stages(pattern: str, options: dict[str, Value], stages: list[str] | None) -> None:
    """Tests that | cuts stages, that layers without are cut evenly or as flags say, and what does not start."""
    run = typed(pattern, **options)
    if stages is None:
        assert run.stages == ("E", "tt", "tt", "ttL")
        return
    assert written_pattern(run.stages, run.shape.pattern) == stages
    assert (run.stages[0][0], run.stages[-1][-1], run.shape.blocks) == ("E", "L", len("".join(stages)))


@pytest.mark.parametrize(
    ("pattern", "options", "told"),
    [
        ("M-|M*|M-", {"pipeline_model_parallel_size": "2"}, "3 stages, no multiple of 2"),
        ("M-M*-", {"pipeline_model_parallel_size": "2"}, r"put \| into --hybrid-layer-pattern"),
        ("M|-", {"pipeline_model_parallel_size": "2", "pipeline_model_parallel_layout": "Et|tL"}, "drop one"),
        ("M|-", {"pipeline_model_parallel_size": "2", "decoder_last_pipeline_num_layers": "1"}, "drop one"),
        ("M-M-", {"pipeline_model_parallel_size": "2", "num_virtual_stages_per_pipeline_rank": "2"}, "drop one"),
        ("M-", {"tensor_model_parallel_size": "16"}, "does not divide"),
    ],
)
def test_what_does_not_start(pattern: str, options: dict[str, Value], told: str) -> None:
    """Tests that what Megatron's own checks refuse is told with its remedy."""
    run = typed(pattern, **options)
    assert any(re.search(told, each) for each in run.notes.refusals), run.notes.refusals
    assert run.stages == ()


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("M-M*/M", "multi-token prediction"),
        ("MD-", "D is sparse attention"),
        ("M+-", r"\+ is latent attention"),
        ("Mx-", "has 'x'"),
        ("||", "has no layers"),
        ("ME", "--num-experts is not there"),
    ],
)
def test_what_is_not_read(pattern: str, told: str) -> None:
    """Tests that layers without estimates are refused by their letter."""
    with pytest.raises(ValueError, match=told):
        typed(pattern)


def test_what_layers_weigh() -> None:
    """Tests that each kind's weights are those by hand, and are shared by the devices of a group.

    Mamba: 1024 x (2 x 2048 + 2 x 8 x 128 + 32) in, 2048 x 1024 out; a delta net: 1024 x (2 x 4096 + 2 x 16 x 128 +
    2 x 32) in, 4096 x 1024 out; attention: 1024 x (8 + 2 x 2) x 128 in, 1024 x 1024 out; 2 x 1024 x 4096 within.
    """
    layers = profile_of(typed("MG*-")).by_name
    weights = {name.rpartition(".")[2]: (layer.parameter_bytes or 0) // 2 for name, layer in layers.items()}
    assert weights["mamba"] == 1024 * (2 * 2048 + 2 * 8 * 128 + 32) + 2048 * 1024
    assert weights["gdn"] == 1024 * (2 * 4096 + 2 * 16 * 128 + 2 * 32) + 4096 * 1024
    assert weights["attention"] == 1024 * (8 + 4) * 128 + 1024 * 1024
    assert weights["mlp"] == 2 * 1024 * 4096
    shared = profile_of(typed("MG*-", tensor_model_parallel_size="2")).by_name["block.0.mamba"].wider[0]
    assert shared.parameter_bytes == weights["mamba"]  # two bytes of half of them


def test_what_layers_take() -> None:
    """Tests that parts of a block take about what the whole one does, and experts what their shapes say."""
    parts = profile_of(typed("*-")).by_name
    options = {**SIZES, "num_layers": "1"}
    whole = profile_of(read_megatron(ReadArguments(values={}, kind="options"), options=options, model=None))
    both = sum(parts[name].costs[0].forward_ns for name in ("block.0.attention", "block.1.mlp"))
    assert both == pytest.approx(whole.by_name["block.0"].costs[0].forward_ns, rel=0.05)  # two movements more begin
    stash = sum(parts[name].stash_bytes for name in ("block.0.attention", "block.1.mlp"))
    assert stash == whole.by_name["block.0"].stash_bytes
    run = typed("ME", num_experts="8", moe_ffn_hidden_size="512")
    moe = profile_of(run).by_name["block.1.moe"]
    assert (moe.parameter_bytes or 0) // 2 == 8 * 2 * 1024 * 512 + 1024 * 8
    mamba = profile_of(run).by_name["block.0.mamba"].costs[0]
    assert mamba.forward_ns < mamba.input_grad_ns < 4 * mamba.forward_ns


def named(config: dict[str, object], **options: Value) -> RunConfiguration:
    return read_megatron(ReadArguments(values={}, kind="options"), options=options, model=json.dumps(config))


def test_a_hybrid_models_own_layers() -> None:
    """Tests that a config.json's layers are the pattern where no flag states one, which is told, and are cut evenly."""
    run = named(NEMOTRON_H, pipeline_model_parallel_size="4", tensor_model_parallel_size="2")
    assert written_pattern(run.stages, run.shape.pattern)[1] == NEMOTRON_H["hybrid_override_pattern"][13:26]
    assert run.notes.assumed[0] == f"--hybrid-layer-pattern {NEMOTRON_H['hybrid_override_pattern']} (the model's)"
    stated = named(NEMOTRON_H, hybrid_layer_pattern="M*|M-", pipeline_model_parallel_size="2", mamba_state_dim="128")
    assert (stated.stages, stated.shape.mamba) == (("Ett", "ttL"), run.shape.mamba)
    assert named(GRANITE_4, tensor_model_parallel_size="2").notes.refusals[0].endswith("1 groups of mixers")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"num_layers": "50"}, "--num-layers 50: --model .* has 52, each a part of a block"),
        ({"mamba_state_dim": "64"}, "--mamba-state-dim = 64: --model .* has 128"),
    ],
)
def test_flags_beside_a_hybrid_model(options: dict[str, Value], told: str) -> None:
    """Tests that flags that contradict a hybrid model's own sizes are refused with both."""
    with pytest.raises(ValueError, match=told):
        named(NEMOTRON_H, **options)
