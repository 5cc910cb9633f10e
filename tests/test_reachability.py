"""Every module serves users: it is reached from the command line, the service or the executor."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.test_house_rules import PACKAGES, ROOT, assert_none, parse, python_files

ENTRY_POINTS = (
    "api.__main__",
    "planner.execute.__main__",
    "planner.execute.session",
    "planner.execute.transformers_trainer.__main__",
    "planner.export.torchtitan_recipe",
    "planner.dealt_stages",
    "planner.packing.loaders",
    "planner.packing.pack_times",
    "planner.execute.data.packed_rows",
    "planner.decisions.looped_order",
    "planner.decisions.fully_shard.option",
    "planner.decisions.max_active_stages.move",
    "planner.decisions.max_active_stages.option",
    "planner.decisions.offload.move",
    "planner.decisions.offload.option",
    "planner.decisions.price.driver",
    "planner.decisions.price.option",
    "planner.decisions.recompute",
    "planner.decisions.recompute_in_turn",
    "planner.decisions.recompute_layers.move",
    "planner.decisions.recompute_layers.option",
    "planner.decisions.recompute_microbatches.move",
    "planner.decisions.recompute_microbatches.option",
    "planner.decisions.sharded_optimizer",
    "planner.decisions.split_placement.move",
    "planner.decisions.split_placement.option",
    "planner.decisions.unequal_shares.move",
    "planner.decisions.unequal_shares.option",
    "planner.decisions.width",
)
"""`pipeplan` (the service and the launchers come with it), `python -m planner.execute`, the loop of one's own, and a
script with a Trainer of transformers, torchtitan's program, data loaders that deal and pack, and decisions found by
folder."""


@cache
def modules() -> dict[str, str]:
    """Every module of the packages and its file."""
    return {
        path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in python_files(*PACKAGES)
    }


def named(name: str) -> Iterator[str]:
    """The module of a dotted name and the packages that it is in; nothing for names of others."""
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        if (prefix := ".".join(parts[:length])) in modules():
            yield prefix


def uses(module: str) -> set[str]:
    """The modules that one imports, anywhere in it, and those that it starts by name (`python -m`)."""
    found: set[str] = set()
    for node in ast.walk(parse(modules()[module])):
        if isinstance(node, ast.Import):
            found.update(*(named(alias.name) for alias in node.names))
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update(*(named(f"{node.module}.{alias.name}") for alias in node.names))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in modules():
            found.update(named(node.value))
    return found


def reach(*starts: str) -> set[str]:
    """Everything that the modules use, and what that uses."""
    seen: set[str] = set()
    ahead = {prefix for start in starts for prefix in named(start)}
    while ahead:
        module = ahead.pop()
        seen.add(module)
        ahead |= uses(module) - seen
    return seen


def test_every_module_is_reached():
    """Tests that what users start reaches every module."""
    left = modules().keys() - reach(*ENTRY_POINTS)
    assert_none(sorted(left), "Serves nobody: move it to benchmarks/, or use it:")


def test_a_module_for_nobody_is_found(monkeypatch):
    """Tests that a module that only another unused one imports is not reached."""
    monkeypatch.setitem(modules(), "planner.unused", "planner/judge/__init__.py")
    assert "planner.unused" not in reach(*ENTRY_POINTS)
    assert Path(ROOT / modules()["planner.simulation.simulate"]).exists()
    assert "planner.layout.costs" in reach("planner.simulation.simulate")
