"""A recipe (`pipeline-recipe/1`) as the executor reads it: from which step every layer of a new plan continues."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.document import plan_sha256
from planner.plan import Plan

FORMAT = "pipeline-recipe/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiesOrder:
    """Copies in host memory that may be read."""

    plan_sha256: str
    """The plan under which they were made."""
    lost: tuple[str, ...]
    """Devices whose copies are left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeOrder:
    """The checkpoint, layers and live copies that a recipe names."""

    plan_sha256: str | None
    """Hash of the plan; None in recipes that name none."""
    checkpoint: Path | None
    """Where all layers are read from; None if it leaves that to the command line."""
    iteration: int | None
    """How many iterations the checkpoint is to have; None if it does not say."""
    layers: tuple[tuple[str, str], ...]
    """(device, layer) pairs that are to be read."""
    copies: CopiesOrder | None
    """The live copies that are taken instead, where they have every layer; None: none are."""
    sha256: str
    """Of the document."""


def read_recipe(path: Path) -> RecipeOrder:
    """Read a recipe; raises ValueError that names it, or OSError."""
    data = path.read_bytes()
    try:
        tree: Any = json.loads(data)
        if tree["format"] != FORMAT:
            raise ValueError(f"its format is {tree['format']!r}, not {FORMAT!r}")
        keys = [(move["to"], key) for move in tree["moves"] for key in move["keys"]]
        place, iteration = tree.get("checkpoint"), tree.get("iteration")
        return RecipeOrder(
            plan_sha256=tree.get("plan_sha256"),
            checkpoint=None if place is None else Path(place),
            iteration=None if iteration is None else int(iteration),
            copies=_copies_of(tree),
            layers=tuple(dict.fromkeys((to, key.partition("/")[2].removesuffix(":")) for to, key in keys)),
            sha256=hashlib.sha256(data).hexdigest(),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: is not a recipe: {type(error).__name__} {error}") from None
    except ValueError as error:
        raise ValueError(f"{path}: is not a recipe: {error}") from None


def _copies_of(tree: Any) -> CopiesOrder | None:
    told = tree.get("copies")
    return None if told is None else CopiesOrder(plan_sha256=told["plan_sha256"], lost=tuple(told["lost"]))


def require_fit(order: RecipeOrder, plan: Plan) -> None:
    """Raise ValueError if the recipe is for another plan."""
    if order.plan_sha256 is not None and order.plan_sha256 != (mine := plan_sha256(plan)):
        raise ValueError(
            f"the recipe is for the plan {order.plan_sha256[:16]}…, but this plan is {mine[:16]}…; give the recipe of "
            "this plan"
        )
    held = {
        (device, name) for stage in plan.stages for group in stage.replicas for device in group for name in stage.layers
    }
    if foreign := [pair for pair in order.layers if pair not in held]:
        device, layer = foreign[0]
        raise ValueError(
            f"the recipe moves layer {layer!r} to {device}, which does not hold it in this plan; "
            "give the recipe of this plan"
        )
