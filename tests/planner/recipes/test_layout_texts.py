"""Stages as programs read them, held against the programs' own code where it is unpacked."""

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.recipe_models import KIMI_K2, NEMOTRON_H
from planner.recipes import layout, layout_builder
from planner.recipes.layout_texts import megatron_text, part_bounds
from tests.integration.forked_ranks import run_script
from tests.planner.export.test_hybrid_pattern import fixture_parser
from tests.planner.export.test_targets import PARSERS, load_megatron_parser, parser_file

__all__ = ["fixture_parser"]

RECIPES = ("hybrid", "megatron", "bridge", "recipes")
TORCHTITAN = PARSERS / "torchtitan" / "distributed" / "pipeline_parallel.py"


def function_of(path: Path, *names: str) -> dict[str, Any]:
    """Functions of a module that cannot be imported here, by themselves."""
    nodes = [node for node in ast.parse(path.read_text()).body if getattr(node, "name", None) in names]
    for node in nodes:
        assert isinstance(node, ast.FunctionDef)
        for argument in (*node.args.args, *node.args.kwonlyargs):
            argument.annotation = None
        node.returns = None
    found: dict[str, Any] = {}
    exec(compile(ast.Module(body=list(nodes), type_ignores=[]), str(path), "exec"), found)
    return found


@pytest.mark.parametrize(
    ("config", "ranks", "virtual", "blocks", "predicting"),
    [("llama3-8b", 3, 2, 32, 0), ("deepseek-v3", 4, 2, 61, 1), ("deepseek-v3", 8, 1, 61, 1), (KIMI_K2, 7, 1, 61, 0)],
)
def test_megatron_reads_a_layout(config: Any, ranks: int, virtual: int, blocks: int, predicting: int, monkeypatch):
    """Tests that Megatron's own parser takes the text, and the lists, as the same stages, and finds them valid."""
    found = layout(config, ranks, virtual=virtual)
    assert "".join(found.stages).count("t") == blocks
    theirs = load_megatron_parser(monkeypatch)
    if theirs is None:
        return
    text, lists = theirs(found.value, ranks), theirs(found.as_lists(), ranks)
    text.validate_layer_layout(num_layers=blocks, mtp_num_layers=predicting or None)
    assert text.layout == lists.layout
    assert text.virtual_pipeline_model_parallel_size == virtual


def test_recipes_of_megatron_bridge_take_a_builder(monkeypatch: pytest.MonkeyPatch):
    """Tests that a builder stands where Kimi K2's recipe has its own, and that DeepSeek-V3's takes what it builds."""
    kimi = parser_file(*RECIPES, "kimi", "h100", "kimi_k2.py")
    deepseek = parser_file(*RECIPES, "deepseek", "h100", "deepseek_v3.py")
    if kimi is None or deepseek is None:
        pytest.skip("Megatron-Bridge was not unpacked (make parsers)")
    theirs, ours = function_of(kimi, "_get_kimi_k2_pipeline_layout"), layout_builder(KIMI_K2)
    for sizes in ((1, 1), (4, 1), (2, None), (8, 2)):
        built = ours(*sizes)
        if sizes == (2, None):
            assert built is not None
            assert len(built) == 2
            continue
        wanted = theirs["_get_kimi_k2_pipeline_layout"](*sizes)
        flat = [None if each is None else [word for stage in each for word in stage] for each in (built, wanted)]
        assert flat[0] == flat[1]
        assert built is None or wanted is None or len(built) == len(wanted)
    setter = function_of(deepseek, "set_deepseek_v3_pipeline_model_parallel_layout")
    model = SimpleNamespace(pipeline_model_parallel_layout=None)
    built = layout_builder("deepseek-v3")(8, 1)
    setter["set_deepseek_v3_pipeline_model_parallel_layout"](model, built)
    parser = load_megatron_parser(monkeypatch)
    if parser is not None:
        parser(model.pipeline_model_parallel_layout, 8).validate_layer_layout(num_layers=61, mtp_num_layers=1)


def test_megatron_reads_a_pattern(parser: Any):
    """Tests that Megatron gives every rank of a hybrid model the layers of its stages."""
    found = layout(NEMOTRON_H, 4, target="megatron-hybrid", virtual=2)
    assert "".join(found.stages) == NEMOTRON_H["hybrid_override_pattern"]
    with pytest.raises(ValueError, match="take value"):
        found.as_lists()
    if parser is None:
        return
    for number, stage in enumerate(found.stages):
        chunk, rank = divmod(number, 4)
        assert "".join(parser.select_pipeline_segment(found.value, (rank, 4), chunk)[0]) == stage


@pytest.mark.skipif(not TORCHTITAN.exists(), reason="torchtitan was not unpacked (make parsers)")
def test_torchtitan_splits_a_model_by_the_parts(tmp_path: Path):
    """Tests that torchtitan's own function leaves every part the modules that the layout names, and nothing else."""
    source = TORCHTITAN.read_text()
    (theirs,) = (ast.unparse(node) for node in ast.parse(source).body if getattr(node, "name", "") == "_split_module")
    parts = layout("llama3-8b", 4, target="torchtitan", virtual=2).value
    code = (
        "import copy\nfrom torch import nn\nfrom torch.nn import ModuleDict, ModuleList\n"
        f"{theirs}\n"
        "model = nn.Module()\n"
        "model.tok_embeddings, model.norm, model.lm_head = nn.Identity(), nn.Identity(), nn.Identity()\n"
        "model.layers = nn.ModuleDict({str(n): nn.Identity() for n in range(32)})\n"
        "order = ['tok_embeddings', *(f'layers.{n}' for n in range(32)), 'norm', 'lm_head']\n"
        f"splits = [dict(_split_module(model, part).named_modules()) for part in {parts!r}]\n"
        "print([[name for name in order if name in split] for split in splits])\n"
    )
    assert run_script(code, tmp_path / "theirs.py").strip() == str(parts)


def test_texts():
    """Tests that what repeats is written once, and that parts end where stages do."""
    assert megatron_text(["Ettt", "tt", "tt", "tt", "tmmL"]) == "Et*3|(tt|)*3tmmL"
    assert part_bounds(["Et", "ttt", "tmL"]) == [0, 2, 5, 8]
