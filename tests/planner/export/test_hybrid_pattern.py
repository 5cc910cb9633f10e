"""Hybrid models for Megatron-LM: stages as a pattern, read by megatron-core 0.19.2's own parser where it is there."""

import argparse
import importlib.util
import sys
import types
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from planner.export.hybrid_pattern import is_hybrid, pattern_of, sublayer_of
from planner.export.megatron import make_megatron_job
from planner.plan import Plan
from planner.problem import Problem
from profiles.configurations.argument_forms import read_words
from tests.planner.export.test_targets import cut, language_model, parser_file

PARSER = parser_file("hybrid", "megatron", "core", "models", "hybrid", "hybrid_layer_allocation.py")
NAMES = {"M": "mamba", "G": "gdn", "*": "self_attention", "-": "mlp", "E": "moe"}
NEMOTRON = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
"""52 layers as an 8B model of that kind has them."""


@pytest.fixture(name="parser", scope="module")
def fixture_parser() -> Any:
    """Megatron's module by itself: what it imports of torch and Megatron is for logs and ranks. None: not unpacked."""
    if PARSER is None:
        return None
    quiet = types.SimpleNamespace(log_on_each_pipeline_stage=lambda *_, **__: None, log_single_rank=lambda *_: None)
    ranks = types.SimpleNamespace(ProcessGroup=object, get_rank=lambda group: group[0],
                                  get_world_size=lambda group: group[1])  # fmt: skip
    stand_ins = {"torch": types.SimpleNamespace(distributed=ranks), "megatron.core.utils": quiet}
    kept = {name: sys.modules.get(name) for name in stand_ins}
    spec = importlib.util.spec_from_file_location("hybrid_layer_allocation", PARSER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.update({"hybrid_layer_allocation": module, **stand_ins})  # type: ignore[dict-item]
    try:
        spec.loader.exec_module(module)
    finally:
        for name, before in kept.items():
            sys.modules.pop(name)
            if before is not None:
                sys.modules[name] = before
    return module


def hybrid(pattern: str, sizes: list[int], ranks: str, names: Sequence[str] | None = None) -> tuple[Problem, Plan]:
    """A model of these sublayers, cut into stages of so many layers, embedding, norm and head among them."""
    plain = language_model(num_blocks=len(pattern), num_devices=len(set(ranks.split())), num_microbatches=8)
    sublayers = names or [f"layers.{n}.{NAMES[letter]}" for n, letter in enumerate(pattern)]
    new = {f"layers.{number}": name for number, name in enumerate(sublayers)}
    profile = plain.profile
    layers = tuple(replace(layer, name=new.get(layer.name, layer.name)) for layer in profile.layers)
    edges = tuple(
        replace(edge, producer=new.get(edge.producer, edge.producer), consumer=new.get(edge.consumer, edge.consumer))
        for edge in profile.edges
    )
    problem = replace(plain, profile=replace(profile, layers=layers, edges=edges))
    return problem, cut(problem, sizes, ranks)


def flags_of(problem: Problem, plan: Plan) -> dict[str, list[str]]:
    return {name: values for name, *values in make_megatron_job(problem, plan).arguments}


@pytest.mark.parametrize(
    ("pattern", "sizes", "ranks", "wanted"),
    [
        ("M-M*M-", [3, 3, 3], "0 1 2", "M-|M*M|-"),
        ("MEM*GE", [4, 5], "0 1", "MEM|*GE"),
        ("M-M*M-M-", [2, 2, 2, 5], "0 1 0 1", "M|-M|*M|-M-"),
        ("GEG*", [1, 6], "0 1", "|GEG*"),
        (NEMOTRON, [14, 13, 13, 15], "0 1 2 3", f"{NEMOTRON[:13]}|{NEMOTRON[13:26]}|{NEMOTRON[26:39]}|{NEMOTRON[39:]}"),
    ],
)
def test_stages_are_parts_of_the_pattern(pattern: str, sizes: list[int], ranks: str, wanted: str, parser: Any) -> None:
    """Tests that every stage is a part of the pattern, and that Megatron gives its rank those layers and no others."""
    problem, plan = hybrid(pattern, sizes, ranks)
    flags = flags_of(problem, plan)
    assert flags["--hybrid-layer-pattern"] == [wanted]
    assert not {"--pipeline-model-parallel-layout", "--num-layers"} & set(flags)
    if parser is None:
        return
    num_ranks = int(flags["--pipeline-model-parallel-size"][0])
    assert parser.get_hybrid_total_layer_count(wanted) == len(pattern)
    assert parser.get_hybrid_total_pipeline_segment_count(wanted) == len(sizes)
    for number, stage in enumerate(plan.stages):
        chunk, rank = divmod(number, num_ranks)
        found, _ = parser.select_pipeline_segment(wanted, (rank, num_ranks), chunk if len(sizes) > num_ranks else None)
        assert found == [sublayer_of(name) for name in stage.layers if sublayer_of(name)]


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["layers.0.mamba", "layers.1", "layers.2.mlp"], "'layers.1': its name does not say what it is"),
        (["layers.0.mamba", "layers.1.mlp", "mtp.0"], "multi-token prediction stands behind /"),
        (["layers.0.attn", "layers.0.ffn", "layers.1.attn"], "are parts of a block"),
        (["layers.0.attention", "layers.0.moe", "layers.1.attention"], "are parts of a block"),
    ],
)
def test_layers_that_no_pattern_and_no_layout_has(names: list[str], told: str) -> None:
    """Tests that sublayers are never written as whole blocks, and a layer of no known kind is refused by its name."""
    with pytest.raises(ValueError, match=told):
        make_megatron_job(*hybrid("...", [3, 3], "0 1", names))


@pytest.mark.parametrize(
    ("name", "letter"),
    [
        ("backbone.layers.3.mamba_mixer", "M"), ("ssm.4", "M"), ("layers.1.linear_attn", "G"), ("GatedDeltaNet.7", "G"),
        ("decoder.2.self_attn", "*"), ("layers.9.attention", "*"), ("h.2.feed_forward", "-"), ("mlp.0", "-"),
        ("layers.3.moe", "E"), ("block.3.experts", "E"), ("layers.7", ""), ("classm.2", ""), ("transformer.h.3", ""),
    ],
)  # fmt: skip
def test_what_a_name_says(name: str, letter: str) -> None:
    """Tests that names of several libraries say their sublayer, and others nothing."""
    assert sublayer_of(name) == letter


def test_other_models_keep_their_layout() -> None:
    """Tests that a model without recurrent mixers has a layout as before."""
    problem = language_model(num_blocks=4)
    plan = cut(problem, [3, 4], "0 1")
    assert not is_hybrid(layer.name for layer in problem.profile.layers)
    assert flags_of(problem, plan)["--pipeline-model-parallel-layout"] == ["Ett|ttL"]
    assert pattern_of([["embedding", "a.mamba"], ["b.mlp", "head"]]) == "M|-"


def test_a_pattern_that_begins_as_a_flag_does() -> None:
    """Tests that a first layer `-` is joined to its flag, for argparse, which refuses it as a word of its own."""
    flags = [each[0] for each in make_megatron_job(*hybrid("-M*-", [3, 4], "0 1")).arguments]
    (pattern,) = (each for each in flags if each.startswith("--hybrid"))
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--hybrid-layer-pattern")
    name, _, value = pattern.partition("=")
    assert parser.parse_args([pattern]).hybrid_layer_pattern == value == "-M|*-"
    with pytest.raises(SystemExit):
        parser.parse_args([name, value])
    assert read_words(["pretrain.py", pattern]).values == {"hybrid_layer_pattern": value}
    with pytest.raises(ValueError, match=r"-M\|\*-: begins as a flag does; .* or --NAME=-M\|\*- for a value"):
        read_words(["pretrain.py", name, value])
