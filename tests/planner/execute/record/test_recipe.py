"""A recipe as the executor reads it: tests of planner/execute/record/recipe.py."""

import json
from pathlib import Path

import pytest

from planner.document import plan_sha256
from planner.execute.record.recipe import read_recipe, require_fit
from tests.planner.builders import make_layer, make_link, make_plan, make_problem

PROBLEM = make_problem([make_layer("x"), make_layer("y")], [make_link("a b")])
PLAN = make_plan(PROBLEM, ["x @ a", "y @ b"], {"a": "0F0 0B0", "b": "1F0 1B0"})


def write(folder: Path, **fields: object) -> Path:
    """A recipe that moves y to b, but for `fields`."""
    tree = {"format": "pipeline-recipe/1", "moves": [{"to": "b", "keys": ["layers/y:", "optimizer/y:"]}]} | fields
    path = folder / "recipe.json"
    path.write_text(json.dumps(tree), encoding="utf-8")
    return path


def test_a_recipe_is_read(tmp_path: Path):
    """Tests that layers are named once, and that what a recipe leaves open is None."""
    order = read_recipe(write(tmp_path, checkpoint="saved", iteration=5, copies={"plan_sha256": "0", "lost": ["c"]}))
    assert order.layers == (("b", "y"),)
    assert (order.checkpoint, order.iteration) == (Path("saved"), 5)
    assert order.copies is not None
    assert order.copies.lost == ("c",)
    bare = read_recipe(write(tmp_path))
    assert (bare.checkpoint, bare.iteration, bare.copies, bare.plan_sha256) == (None, None, None, None)
    require_fit(bare, PLAN)
    require_fit(read_recipe(write(tmp_path, plan_sha256=plan_sha256(PLAN))), PLAN)


@pytest.mark.parametrize(
    "fields", [{"format": "another"}, {"moves": None}, {"moves": [{}]}, {"copies": {}}, {"iteration": "x"}]
)
def test_what_is_no_recipe_is_refused(tmp_path: Path, fields: dict[str, object]):
    """Tests that every fault names the file."""
    with pytest.raises(ValueError, match=r"recipe.json: is not a recipe: "):
        read_recipe(write(tmp_path, **fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"plan_sha256": "0" * 64}, "the recipe is for the plan 0000000000000000…, but this plan is"),
        ({"moves": [{"to": "a", "keys": ["layers/y:"]}]}, "moves layer 'y' to a, which does not hold it in this plan"),
    ],
)
def test_a_recipe_of_another_plan_is_refused(tmp_path: Path, fields: dict[str, object], message: str):
    """Tests that the plan's hash and the places of layers are held against the plan."""
    with pytest.raises(ValueError, match=message):
        require_fit(read_recipe(write(tmp_path, **fields)), PLAN)
