"""Weights whose results nobody made use of in an iteration: they end without gradients, as in one process.

Messages have one shape, so a stage that leaves an input alone sends zeros back, and what came before it runs a backward
of zeros. Each process knows at once which inputs it left alone; that one did is told beside whether all is finite.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from planner.errors import ExecutionError
from planner.execute.parallel.process_groups import gather
from planner.execute.parallel.update import Update
from planner.execute.run.local_model import LocalModel
from planner.execute.stage.stage_module import StageModule, StageTracer
from planner.execute.table.wiring import StageEdge
from planner.execute.training import as_tuple

Place = tuple[str, int]
"""A value between stages, and which of its tensors."""


class Reach(NamedTuple):
    """What a backward from some outputs of a stage comes to."""

    weights: frozenset[str]
    """As `layer:path`."""
    inputs: frozenset[Place]


def forget_unused_weights(model: LocalModel, update: Update) -> None:
    """Drop the gradients of weights that nobody used; a collective call. Of a tie all have to be such."""
    used = defaultdict[int, set[Place]](set)
    for told in gather({stage.stage_index: stage.used_places for stage in model.running}):
        for number, places in told.items():
            used[number] |= places
    edges, last = model.preparation.edges, model.layout.num_stages - 1
    reached = find_reached(used, edges, num_stages=last + 1, reach=partial(_reach_from, model))
    stage_of = {name: number for number, stage in enumerate(model.plan.stages) for name in stage.layers}
    copies = {name: names for names in model.training.tied for name in names}
    for name, parameter in model.named():
        own = [(each, stage_of[each.partition(":")[0]]) for each in copies.get(name, (name,))]
        if not any(_is_among(each, reached.get(number)) for each, number in own):
            update.stepped_for(parameter).grad = None


def find_reached(
    used: Mapping[int, Collection[Place]],
    edges: Sequence[StageEdge],
    *,
    num_stages: int,
    reach: Callable[..., Reach | None],
) -> dict[int, Reach | None]:
    """Of every stage but the last what somebody used; None: all of it.

    `used`: the inputs that got a gradient, if only of zeros; `reach`: (stage, `wanted` outputs) to what
    these come to.
    """
    found, taken = dict[int, Reach | None](), {num_stages - 1: frozenset(used.get(num_stages - 1, ()))}
    for number in reversed(range(num_stages - 1)):
        takers = [edge for edge in edges if edge.producer == number]
        wanted = frozenset(place for edge in takers for place in taken[edge.consumer] if place[0] in edge.values)
        found[number] = own = reach(number, wanted=wanted) if wanted else Reach(frozenset(), frozenset())
        arrived = frozenset(used.get(number, ()))
        taken[number] = arrived if own is None else own.inputs & arrived
    return found


def _reach_from(model: LocalModel, number: int, *, wanted: frozenset[Place]) -> Reach | None:
    """None: of everything, as where all outputs are wanted."""
    shape = model.preparation.shapes[number]
    made = _places(shape.leaving_counts)
    if wanted.issuperset(place for place, tensor in zip(made, shape.outputs, strict=True) if tensor.requires_grad):
        return None
    if number not in model.reaches:
        model.reaches[number] = dict(zip(made, _trace(model, number), strict=True))
    own = [model.reaches[number][place] for place in wanted]
    return Reach(*(frozenset[Any]().union(*sets) for sets in zip(*own, strict=True)))


def _trace(model: LocalModel, number: int) -> list[Reach]:
    """Of each output of a stage, without data; raises ExecutionError, on every process the same, where that fails."""
    preparation = model.preparation
    shape, wiring = preparation.shapes[number], preparation.wirings[number]
    layers = StageTracer(preparation.training, [wiring]).layers[0]
    weights = {f"{name}:{path}": each for name, layer in layers.items() for path, each in layer.named_parameters()}
    named = [*zip(_places(shape.counts), shape.inputs, strict=True), *weights.items()]
    names, leaves = zip(*((name, leaf) for name, leaf in named if leaf.requires_grad), strict=True)
    found = []
    try:
        for tensor in as_tuple(StageModule(wiring, layers, counts=shape.counts)(*shape.inputs)):
            grads: Sequence[torch.Tensor | None] = [None] * len(leaves)
            if tensor.requires_grad:
                like = torch.empty_like(tensor, requires_grad=False)
                grads = torch.autograd.grad(tensor, leaves, like, retain_graph=True, allow_unused=True)
            own = [name for name, grad in zip(names, grads, strict=True) if grad is not None]
            found.append(Reach(frozenset(own).intersection(weights), frozenset(own).difference(weights)))
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        raise ExecutionError(
            f"stage {number} gives something that nothing takes, and which weights get no gradient cannot be told, "
            f"as its backward does not run without data ({str(error).splitlines()[0]}); let it not give that"
        ) from error
    return found


def _places(counts: Mapping[str, int]) -> list[Place]:
    return [(name, k) for name, count in counts.items() for k in range(count)]


def _is_among(weight: str, reach: Reach | None) -> bool:
    return reach is None or weight in reach.weights
