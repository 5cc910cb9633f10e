"""Whether an optimizer moves every element of a parameter for itself, so that replicas may shard its state.

Nothing that an optimizer says about itself tells, so it is tried: on small stand-ins for the parameters, once whole
and once in pieces, with the same gradients.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn

from planner.errors import ExecutionError
from planner.execute.model.user_code import OwnCodeError
from planner.execute.parallel.partial_steps import filled_groups, steps_by_parameter
from planner.execute.parallel.sharding import ShardPiece, is_cut
from planner.execute.parallel.update import make_optimizers, make_schedules, taking_step
from planner.execute.stage.stage_module import make_layer
from planner.execute.training import Training
from planner.plan import Plan

NUM_PIECES, NUM_STEPS, MOST_ALONG = 2, 2, 4
"""Pieces that a stand-in is cut into, steps that are taken, elements of a stand-in along a dimension."""
ALIKE = 1e-4
"""Of the largest step of a parameter: what rounding in float32 may make of two ways to the same numbers."""
_REMEDY = "use one that works element by element (SGD, Adam, AdamW, ...), or plan with "
_WHOLE = "shard = 'none'"


def require_sharding(
    plan: Plan, training: Training, *, trained: Mapping[str, nn.Parameter], device: torch.device
) -> None:
    """Raise ExecutionError, the same on every process, if a stage cannot shard its optimizer's state as planned, or if
    the devices of a group cannot each step the part of its layers that it holds, or processes their stages.

    `trained`: as `find_trained` gives it.
    """
    try:
        _require_separate_steps(_find_holdings(plan), training, trained=trained, device=device)
        for number, stage in enumerate(plan.stages):
            width = len(stage.replicas[0])
            if stage.shard != "none" or width > 1:
                named = _held_by(stage.layers, training, trained=trained)
                problem = _find_gaps(named) if stage.shard != "none" else ""
                instead = _WHOLE if width == 1 else "max_width = 1"
                if problem := problem or _find_joint_step(
                    training, named, every=trained, device=device, instead=instead
                ):
                    what = f"shard = {stage.shard!r}" if stage.shard != "none" else f"groups of {width} devices"
                    raise ExecutionError(f"stage {number} is planned with {what}, but {problem}")
    except (ValueError, OwnCodeError) as error:
        raise ExecutionError(str(error)) from error


def find_trained(training: Training) -> dict[str, nn.Parameter]:
    """The weights of all layers that are trained, on the meta device; as `layer:path`."""
    return {
        f"{layer}:{path}": parameter
        for layer in training.layers
        for path, parameter in make_layer(training, layer, device=torch.device("meta")).named_parameters()
        if parameter.requires_grad
    }


def _held_by(
    layers: Iterable[str], training: Training, *, trained: Mapping[str, nn.Parameter]
) -> dict[str, nn.Parameter]:
    """Those of some layers, a tied one once, by its first name."""
    first, held = {each: names[0] for names in training.tied for each in names}, dict[str, nn.Parameter]()
    for name, each in trained.items():
        if name.partition(":")[0] in layers:
            held.setdefault(first.get(name, name), each)
    return held


def _find_holdings(plan: Plan) -> list[tuple[str, ...]]:
    """The layers that a process holds, each set of them once."""
    holders = dict[str, list[str]]()
    for stage in plan.stages:
        for each in {each for group in stage.replicas for each in group}:
            holders.setdefault(each, []).extend(stage.layers)
    return sorted({tuple(layers) for layers in holders.values()})


def _require_separate_steps(
    holdings: Sequence[Sequence[str]],
    training: Training,
    *,
    trained: Mapping[str, nn.Parameter],
    device: torch.device,
) -> None:
    """Of processes that hold other layers each, if there are some; tried where the optimizer is not torch's."""
    named = _held_by(training.layers, training, trained=trained)
    values, *grads = _make_numbers(named, device=device)
    whole = [nn.Parameter(value.clone()) for value in values]
    made = make_optimizers(training, list(named.items()), stepped=whole)
    make_schedules(training, made)
    if all(map(steps_by_parameter, made)):
        return
    optimizers = _train(training, named, stepped=whole, grads=grads, whole=named)
    for layers in holdings if len(holdings) > 1 else ():
        held = _held_by(layers, training, trained=trained)
        own = {name: each for name, each in named.items() if name in held}
        places = [place for place, name in enumerate(named) if name in own]
        mine = [nn.Parameter(values[place].clone()) for place in places]
        _train(training, own, stepped=mine, grads=[[row[place] for place in places] for row in grads], whole=named)
        for name, place, one in zip(own, places, mine, strict=True):
            after = whole[place].detach()
            if _differs(one.detach(), after, most=_largest(after - values[place])):
                kinds = ", ".join(type(each).__name__ for each in optimizers)
                raise ExecutionError(
                    f"the plan's stages are stepped by several processes, but its optimizer ({kinds}) moves {name} "
                    "otherwise without the others' weights; use one that moves each by itself (clip by `max_norm`), or "
                    "plan for one device"
                )


def _make_numbers(named: Mapping[str, nn.Parameter], *, device: torch.device) -> list[list[torch.Tensor]]:
    """Of stand-ins their values, and the gradients of each step."""
    noise = torch.Generator().manual_seed(0)
    shapes = [tuple(min(length, MOST_ALONG) for length in each.shape) for each in named.values()]
    return [[torch.randn(shape, generator=noise).to(device) for shape in shapes] for _ in range(1 + NUM_STEPS)]


def _find_gaps(named: Mapping[str, nn.Parameter]) -> str:
    for name, parameter in named.items():
        if not parameter.is_contiguous():
            return f"{name} does not lie in one row in memory; make it contiguous, or plan with shard = 'none'"
    return ""


def _find_joint_step(
    training: Training,
    named: Mapping[str, nn.Parameter],
    *,
    every: Mapping[str, nn.Parameter],
    device: torch.device,
    instead: str,
) -> str:
    """A sentence if the training's optimizers treat a piece otherwise than a whole, or keep what cannot be cut.

    `named`: the parameters, on any device; only their shapes count. `every`: those of all layers;
    `instead`: what to plan with, if so.
    """
    remedy = _REMEDY + instead
    values, *grads = _make_numbers(named, device=device)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        whole = [nn.Parameter(value.clone()) for value in values]
        _train(training, named, stepped=whole, grads=grads, whole=every)
        for replica in range(NUM_PIECES):
            pieces = [
                ShardPiece(nn.Parameter(value.clone()), replica=replica, num_replicas=NUM_PIECES) for value in values
            ]
            mine = [each.parameter if is_cut(each.whole) else each.whole for each in pieces]
            cut = [[_like(*pair) for pair in zip(pieces, row, strict=True)] for row in grads]
            optimizers = _train(training, named, stepped=mine, grads=cut, whole=every)
            for name, before, after, piece, own in zip(named, values, whole, pieces, mine, strict=True):
                if _differs(own.detach(), _like(piece, after.detach()), most=_largest(after.detach() - before)):
                    kinds = ", ".join(type(each).__name__ for each in optimizers)
                    return f"its optimizer ({kinds}) moves a part of {name} otherwise than the whole of it; {remedy}"
                if state := _find_uncut(optimizers, own):
                    return f"its optimizer keeps {state!r} of {name} in another shape than the parameter's; {remedy}"
    return ""


def _like(piece: ShardPiece, tensor: torch.Tensor) -> torch.Tensor:
    return piece.cut(tensor) if is_cut(piece.whole) else tensor


def _differs(mine: torch.Tensor, expected: torch.Tensor, *, most: float) -> bool:
    return bool((~((mine - expected).abs() <= ALIKE * most)).any())


def _largest(tensor: torch.Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def _train(
    training: Training,
    named: Mapping[str, nn.Parameter],
    *,
    stepped: Sequence[nn.Parameter],
    grads: Sequence[Sequence[torch.Tensor]],
    whole: Mapping[str, nn.Parameter],
) -> tuple[torch.optim.Optimizer, ...]:
    """The optimizers after a step for every row of gradients."""
    optimizers = make_optimizers(training, list(named.items()), stepped=stepped, whole=whole)
    for row in grads:
        for parameter, grad in zip(stepped, row, strict=True):
            parameter.grad = grad.clone()
        for optimizer in optimizers:
            with taking_step(optimizer), filled_groups(optimizer):
                optimizer.step()
    return optimizers


def _find_uncut(optimizers: Sequence[torch.optim.Optimizer], parameter: nn.Parameter) -> str:
    """The name of a state that is neither a single number nor of the parameter's shape."""
    for optimizer in optimizers:
        for name, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor) and value.numel() > 1 and value.shape != parameter.shape:
                return str(name)
    return ""
