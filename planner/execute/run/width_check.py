"""Whether the layers of a stage can be run by a group of devices together, and whether that comes to the same.

Fields are looked at before processes meet. What a parallel layer computes nothing tells beforehand, so it is tried:
before the first iteration every such layer is run whole and in parts, on one microbatch.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from planner.execute.model.deferred import is_conv1d
from planner.execute.model.layer_run import evaluating
from planner.execute.model.layer_state import ChangingBuffers
from planner.execute.model.memory_order import order_of
from planner.execute.model.user_code import calling
from planner.execute.parallel.group_parts import GroupPart, parts_of
from planner.execute.parallel.parallel_styles import ExpertsParallel
from planner.execute.parallel.parallel_table import parallelize_by_table
from planner.execute.stage.stage_module import make_layer
from planner.execute.training import Tensors, Training, as_tuple

ALIKE = {torch.float64: 1e-9, torch.float32: 1e-3}
"""Of the largest value: what rounding may make of sums in another order; 0.1 in shorter types."""
_REMEDY = "give `parallelize` styles that fit, or plan with max_width = 1"


def _styles_of(training: Training, name: str, *, layer: nn.Module, width: int) -> dict[str, ParallelStyle]:
    """How a layer is cut for a group: what the training says, or else the table; it may change the layer's counts."""
    if training.parallelize is None:
        return parallelize_by_table(layer, width)
    with calling(f"`parallelize` for layer {name!r}"):
        styles = dict(training.parallelize(name, layer, width))
    for path, style in styles.items():
        if not isinstance(path, str) or not isinstance(style, ParallelStyle):
            raise ValueError(
                f"`parallelize` gives layer {name!r} {path!r}: {type(style).__name__}; give paths of its parts, and "
                "styles of torch.distributed.tensor.parallel"
            )
    return styles


def require_widths(training: Training, stages: Sequence[tuple[str, ...]], *, widths: Sequence[int]) -> None:
    """Raise ValueError, the same on every process, if a stage cannot be run by a group of its width.

    `stages`: the layers of each; `widths`: of each, empty: 1.
    """
    uncut, has_cut = "", False
    for number, (names, width) in enumerate(zip(stages, widths, strict=bool(widths))):
        if width == 1:
            continue
        where = f"stage {number} spans {width} devices"
        cut = dict[str, list[str]]()
        for name in names:
            layer = make_layer(training, name, device=torch.device("meta"))
            try:
                cut[name] = _find_cut(layer, _styles_of(training, name, layer=layer, width=width), width=width)
            except ValueError as error:
                raise ValueError(f"{where}, but layer {name!r} cannot be cut: {error}") from None
        has_cut |= any(cut.values())
        uncut = uncut or ("" if any(cut.values()) else f"{where}, but of none of its layers ({names[0]!r} ...)")
        _require_untied(training, cut, where=where)
    if uncut and not has_cut:
        raise ValueError(
            f"{uncut} is known how to cut it; say so in `Training.parallelize`, or plan with max_width = 1"
        )


def _require_untied(training: Training, cut: Mapping[str, Sequence[str]], *, where: str) -> None:
    held = {f"{name}:{path}" for name, paths in cut.items() for path in paths}
    for name in (each for names in training.tied for each in names if each in held):
        raise ValueError(
            f"{where}, and {name} is tied, but would be cut; leave it whole in `parallelize`, or plan with "
            "max_width = 1"
        )


def _find_cut(layer: nn.Module, styles: Mapping[str, ParallelStyle], *, width: int) -> list[str]:
    """The paths of parameters that a style cuts; raises ValueError that names what does not fit."""
    found, owners = list[str](), dict[int, str]()
    for path, parameter in layer.named_parameters(remove_duplicate=False):
        owners[id(parameter)] = f"{owners[id(parameter)]} and {path}" if id(parameter) in owners else path
    for key, style in styles.items():
        parts = _matching(layer, key)
        if not parts:
            raise ValueError(f"`parallelize` names {key!r}, which is not a part of the model; {_REMEDY}")
        for path, part in parts.items():
            for name, parameter in part.named_parameters(recurse=False):
                if " and " in owners[id(parameter)]:
                    raise ValueError(f"{owners[id(parameter)]} are one tensor; {_REMEDY}")
                place = f"{path}.{name}".lstrip(".")
                found.append(place)
                if (cut := _cut_by(style, name, kind=type(part))) is not None:
                    _require_even(place, parameter, width=width, cut=cut)
    return found


class _Cut(NamedTuple):
    """Where a style cuts a parameter."""

    dim: int
    num_fused: int
    """Matrices beside each other along it."""


def _cut_by(style: ParallelStyle, name: str, *, kind: type) -> _Cut | None:
    """None: not known, or not along a dimension that members share equally. `kind`: of the module."""
    if isinstance(style, ExpertsParallel):
        return _Cut(*style.CUTS[name]) if name in style.CUTS else None
    if name != "weight" or not isinstance(style, ColwiseParallel | RowwiseParallel):
        return None
    is_turned = issubclass(kind, nn.Embedding) or is_conv1d(kind)
    return _Cut(int(isinstance(style, ColwiseParallel) == is_turned), getattr(style, "num_fused", 1))


def _require_even(place: str, parameter: torch.Tensor, *, width: int, cut: _Cut) -> None:
    """Members hold equal parts."""
    if parameter.shape[cut.dim] % (width * cut.num_fused):
        parts = f"{cut.num_fused} matrices of {width} parts each" if cut.num_fused > 1 else f"{width} parts"
        raise ValueError(
            f"{place} has shape {tuple(parameter.shape)}, which cannot be cut along dimension {cut.dim} into {parts}; "
            f"{_REMEDY}"
        )


def _matching(layer: nn.Module, key: str) -> dict[str, nn.Module]:
    """Parts whose path a key of `parallelize_module` stands for, name by name."""
    parts = key.split(".") if key else []
    found = {}
    for path, part in layer.named_modules():
        names = path.split(".") if path else []
        if len(names) == len(parts) and all(map(fnmatchcase, names, parts)):
            found[path] = part
    return found


class _LayerAnswer(NamedTuple):
    """What one run of a layer gave."""

    outputs: Tensors
    input_grads: list[torch.Tensor | None]
    grads: dict[str, torch.Tensor | None]
    """By the path of the parameter."""


class GroupTrial:
    """Cuts the layers of one stage, one after the other, and runs each before and after."""

    def __init__(self, training: Training, *, group: Any, device: torch.device) -> None:
        """`group`: the processes that run the stage together."""
        self.training, self.group, self.width = training, group, distributed.get_world_size(group)
        self.mesh = DeviceMesh.from_group(group, device.type)
        self.problem = ""
        """The first that was found."""

    def cut(
        self, name: str, layer: nn.Module, *, arguments: Sequence[torch.Tensor]
    ) -> tuple[dict[str, GroupPart], Tensors]:
        """Cut a layer in place; gives its parts, and what it gives whole. A collective call of the group.

        `arguments`: one microbatch of what it takes; gradients of those that want one are compared.
        """
        with evaluating([layer]):
            whole = _run(layer, arguments, weights=None)
            styles = _styles_of(self.training, name, layer=layer, width=self.width)
            if styles:
                parallelize_module(layer, self.mesh, styles, src_data_rank=None)
            parts = parts_of(layer, group=self.group)
            if styles and not self.problem:
                self.problem = self._try(name, layer, parts=parts, arguments=arguments, whole=whole)
        return parts, whole.outputs

    def _try(
        self,
        name: str,
        layer: nn.Module,
        *,
        parts: Mapping[str, GroupPart],
        arguments: Sequence[torch.Tensor],
        whole: _LayerAnswer,
    ) -> str:
        """A sentence if the layer in parts gives something else."""
        told = f"layer {name!r} does not come to the same on {self.width} devices as on one"
        for path, part in parts.items():
            if part.dim is not None and part.shape[part.dim] % (self.width * part.num_fused):
                return f"{told}: {path} has shape {tuple(part.shape)}, which cannot be cut evenly; {_REMEDY}"
        try:
            mine = _run(layer, arguments, weights=whole.outputs)
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, AssertionError) as error:
            return f"{told}: {(str(error) or type(error).__name__).splitlines()[0]}; {_REMEDY}"
        if any(isinstance(tensor, DTensor) for tensor in mine.outputs):
            return f"{told}: it gives a DTensor; end with use_local_output = True"
        what = _find_difference(whole, mine, parts=parts)
        return f"{told}: {what} differs; {_REMEDY}" if what else ""


def _run(layer: nn.Module, arguments: Sequence[torch.Tensor], *, weights: Tensors | None) -> _LayerAnswer:
    """Forward and backward, without leaving anything behind; `weights`: tensors of the outputs' shapes."""
    changing = ChangingBuffers()
    given = [each.detach().clone().requires_grad_(each.requires_grad) for each in arguments]
    named = [(path, parameter) for path, parameter in layer.named_parameters() if parameter.requires_grad]
    with changing.put_back(changing.copies(layer)), torch.enable_grad():
        outputs = as_tuple(layer(*given))
        noise = torch.Generator().manual_seed(0)
        pairs = [
            (mine, torch.randn(like.shape, generator=noise).to(like))
            for mine, like in zip(outputs, outputs if weights is None else weights, strict=True)
            if mine.requires_grad
        ]
        leaves = [each for each in given if each.requires_grad] + [parameter for _, parameter in named]
        grads: Sequence[torch.Tensor | None] = [None] * len(leaves)
        if pairs and leaves:
            roots, seeds = zip(*pairs, strict=True)
            grads = torch.autograd.grad(roots, leaves, seeds, allow_unused=True)
    count = len(leaves) - len(named)
    own = {path: grad for (path, _), grad in zip(named, grads[count:], strict=True)}
    kept = tuple(tensor.detach().requires_grad_(tensor.requires_grad) for tensor in outputs)
    return _LayerAnswer(kept, list(grads[:count]), own)


def _find_difference(whole: _LayerAnswer, mine: _LayerAnswer, *, parts: Mapping[str, GroupPart]) -> str:
    """What is not the same, in words; empty if nothing."""
    for place, (a, b) in enumerate(zip(whole.outputs, mine.outputs, strict=True)):
        if a.shape != b.shape or _differs(a, b, most=_largest([a])):
            return f"output {place}" if a.shape == b.shape else f"the shape of output {place}"
    most = _largest(whole.input_grads)
    for place, (one, other) in enumerate(zip(whole.input_grads, mine.input_grads, strict=True)):
        if _grad_differs(one, other, most=most):
            return f"the gradient of input {place}"
    most = _largest(whole.grads.values())
    for path, grad in whole.grads.items():
        found, part = mine.grads[path], parts.get(path)
        if part is not None and grad is not None:
            grad = part.cut(grad)
        if part is not None and isinstance(found, DTensor):
            is_summand = part.dim is None and found.placements[0].is_partial()
            if found.placements != part.whole.placements and not is_summand:
                return f"the placement of the gradient of {path} ({found.placements[0]})"
            found = found.redistribute(placements=part.whole.placements).to_local()
        if _grad_differs(grad, found, most=most):
            return f"the gradient of {path}"
    return ""


def _grad_differs(one: torch.Tensor | None, other: torch.Tensor | None, *, most: float) -> bool:
    """None is zero."""
    if one is None or other is None:
        found = one if other is None else other
        return found is not None and _differs(found, torch.zeros_like(found), most=most)
    return one.shape != other.shape or _differs(one, other, most=most)


def _differs(one: torch.Tensor, other: torch.Tensor, *, most: float) -> bool:
    if not one.is_floating_point():
        return not torch.equal(one, other)
    return bool(((one - other).abs() > ALIKE.get(one.dtype, 0.1) * most).any())


def _largest(tensors: Any) -> float:
    numbers = (each for each in tensors if each is not None and each.dtype is not torch.bool)
    found = [tensor.abs().max() for tensor in numbers if tensor.numel()]
    return max((float(each) for each in found if each.isfinite()), default=0.0)


def stand_ins(likes: Tensors, *, device: torch.device, seed: int = 1) -> Tensors:
    """Tensors that a layer can be tried on: noise, and ones for whole numbers, which index whatever is there.

    They want a gradient where those of `likes` do.
    """
    noise = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(like.shape, generator=noise)
        .to(device, like.dtype, memory_format=order_of(like))
        .requires_grad_(like.requires_grad)
        if like.is_floating_point()
        else torch.ones(like.shape, dtype=like.dtype, device=device)
        for like in likes
    )
