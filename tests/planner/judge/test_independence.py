"""The judge reads documents: what their classes derive from their fields is the core's reading, not its own."""

import ast
import dataclasses
from pathlib import Path

import planner.judge
from planner.actions import Action
from planner.judge.synchronisation import Ring
from planner.judge.traffic import Tensor
from planner.plan import Plan, Stage
from planner.problem import Options, Problem
from planner.simulation.timeline import PlayedChannel
from profiles.cluster import Cluster, Device, Link, Route
from profiles.model_profile import ActionOverhead, Edge, Layer, LayerCost, ModelProfile, WidthBytes

DOCUMENTS = (
    ActionOverhead,
    Cluster,
    Device,
    Edge,
    Layer,
    LayerCost,
    Link,
    ModelProfile,
    Options,
    Plan,
    Problem,
    Route,
    Stage,
    WidthBytes,
)

ALLOWED = {"profile_sha256", "cluster_sha256"}
"""Content hashes: what the plan names its question by."""

FOLDER = Path(planner.judge.__file__).parent


def derived_names() -> set[str]:
    """Names that classes of documents give to what is none of their fields."""
    fields = {field.name for kind in DOCUMENTS for field in dataclasses.fields(kind)} | set(Action._fields)
    names = {name for kind in DOCUMENTS for name in vars(kind) if not name.startswith("_")}
    return names - fields - ALLOWED


def test_nothing_derived_is_read():
    """Tests that no page of the judge uses a property or a method of a document's class."""
    forbidden = derived_names()
    assert {"is_trainable", "fused_backward_ns", "route", "by_name", "is_split", "is_whole", "overhead_ns"} <= forbidden
    own = {
        node.name
        for path in FOLDER.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    own |= {field for kind in (Ring, Tensor, PlayedChannel) for field in kind._fields}
    used = {
        f"{path.name}: {node.attr}"
        for path in sorted(FOLDER.glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in forbidden - own
    }
    assert used == set()
