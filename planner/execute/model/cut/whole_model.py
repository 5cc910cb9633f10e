"""A model that people have, with their batch and their loss, as the parts of a training."""

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from planner.execute.model.cut.cut_layer import copy_part
from planner.execute.model.cut.cut_model import (
    FEWEST,
    SHORTEST,
    Arguments,
    CutModel,
    cut_model,
    first_sizes,
    refusing,
    require_same_calls,
    trial_sizes,
)
from planner.execute.model.cut.late_values import LateValues, find_late_values
from planner.execute.model.cut.module_state import ReadState
from planner.execute.model.cut.recording import unpack
from planner.execute.model.cut.reduced_depth import reduce_model
from planner.execute.model.cut.trees import Ref, Sizes, change_leaves, leaves_of, tensors_of
from planner.execute.model.cut.trial_training import Sample, require_same_training
from planner.execute.model.named_tensors import kept_tensors
from planner.execute.model.user_code import OwnCodeError, RefusedModelError, calling
from planner.execute.model.weight_conversion import WeightConversion

_LABELS = "labels"
"""The name under which models that compute their own loss take the target."""

GivenBatch = Callable[[int], Any]
"""Number of an iteration to (inputs, target): inputs as one tensor, as a tuple for the places of the model's forward,
or as a dictionary for its names; or, where the model computes its own loss, to such a dictionary with `labels`. Or to
a list of these, a microbatch each, whose lengths may differ."""

Loss = Callable[..., torch.Tensor]

_TWO = [torch.Tensor, torch.Tensor]


class BatchReader:
    """The user's batch as a tuple of tensors, and the target; or so every microbatch, where they are listed."""

    def __init__(self, batch: GivenBatch, *, has_own_loss: bool) -> None:
        self.given, self.has_own_loss = batch, has_own_loss
        given = batch(0)
        microbatches = [self.read(each) for each in _listed(given).values()] if _is_listed(given) else []
        self.example, self.target = microbatches[0] if microbatches else self.read(given)
        if not microbatches:
            _require_like_counts([*tensors_of(self.example), self.target])
        self.lengths = _DifferingLengths([[*tensors_of(inputs), target] for inputs, target in microbatches])
        self.form = _form_of(self.example)
        self.reads: ReadState | None = None
        """Of the model, which no batch may change."""
        self.trial: Callable[[Sizes], None] | None = None
        """Raises ValueError where the model does not act alike on microbatches of these sizes."""
        is_one = type(self.example) is tuple and len(self.example) == 1 and isinstance(self.example[0], torch.Tensor)
        self._dimensions = self.example[0].dim() if is_one else None
        """Of the only tensor of a batch, where that is all: it needs no walk through trees, which takes 20 us."""

    def __call__(self, number: int) -> Any:
        """Of one iteration; raises ValueError if it has another form than the first one."""
        before = [] if self.reads is None else self.reads.outside()
        given = self.given(number)
        if self.reads is not None and (text := self.reads.find_changed(before, number=number)):
            raise RefusedModelError(
                f"it comes with a change of {text}, which the model reads, but layers were made with what it was; give "
                "the model what changes as one more tensor of the batch, or train on from its weights (--save-weights)"
            )
        if type(given) is tuple and [*map(type, given)] == _TWO and given[0].dim() == self._dimensions:
            return given[:1], given[1]
        if not _is_listed(given):
            return self._tensors(given, number=number)
        return {place: self._tensors(each, number=number) for place, each in _listed(given).items()}

    def _tensors(self, given: Any, *, number: int) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        inputs, target = self.read(given)
        if _form_of(inputs) != self.form:
            raise ValueError(
                f"the batch of iteration {number} has {_form_of(inputs)}, that of the first has {self.form}"
            )
        return tuple(tensors_of(inputs)), target

    def try_sizes(self, microbatches: Iterable[Sequence[Sequence[int]]]) -> None:
        """Raises ValueError where the model acts otherwise than its layers on the smallest or largest of these, each
        the shapes of its inputs.
        """
        found = sorted({self.lengths.of(shapes) for shapes in microbatches})
        if self.trial is not None:
            for sizes in {found[0], found[-1]} - {(FEWEST + more,) for more in range(3)}:
                self.trial(sizes)

    def inputs_of(self, sizes: Sizes) -> Any:
        """The example's, with other sizes."""
        places = iter(range(len(tensors_of(self.example))))
        return change_leaves(
            self.example,
            lambda leaf: self.lengths.take(leaf, next(places), sizes=sizes) if isinstance(leaf, torch.Tensor) else leaf,
        )

    def target_of(self, sizes: Sizes) -> torch.Tensor:
        """Likewise."""
        return self.lengths.take(self.target, len(tensors_of(self.example)), sizes=sizes)

    def read(self, given: Any) -> tuple[Any, torch.Tensor]:
        """Inputs as the model's forward takes them (a tuple, or by name), and the target."""
        if isinstance(given, Mapping):
            inputs, target = dict(given), given.get(_LABELS)
        elif isinstance(given, tuple | list) and len(given) == 2:
            inputs, target = given
            inputs = dict(inputs) if isinstance(inputs, Mapping) else inputs
        else:
            raise ValueError(f"the batch is a {type(given).__name__}; give (inputs, target), inputs as one tuple")
        if not isinstance(target, torch.Tensor):
            raise ValueError(
                f"the target is a {type(target).__name__}; give (inputs, target) with one tensor, or {_LABELS!r} by "
                "name; what else the loss needs are inputs of a model that gives its loss"
            )
        if self.has_own_loss and (not isinstance(inputs, dict) or _LABELS not in inputs):
            raise ValueError(f"without a loss the model has to compute it, of {_LABELS!r} in the batch; give a loss")
        return inputs if isinstance(inputs, dict | tuple | list) else (inputs,), target


def _is_listed(given: Any) -> bool:
    """Whether microbatches are given one by one: in a list, or by their numbers."""
    if isinstance(given, Mapping):
        return bool(given) and all(isinstance(key, int) for key in given)
    return isinstance(given, tuple | list) and not any(isinstance(each, torch.Tensor) for each in given)


def _listed(given: Any) -> dict[int, Any]:
    return dict(given) if isinstance(given, Mapping) else dict(enumerate(given))


def _require_like_counts(tensors: Sequence[torch.Tensor]) -> None:
    """ValueError for tensors that cannot be cut with the samples, such as masks of all or offsets of packed sequences:
    pieces of them would be taken for whole ones.
    """
    counts = [each.shape[0] if each.dim() else 0 for each in tensors]
    if len(set(counts)) > 1:
        raise RefusedModelError(
            f"the batch's tensors have {', '.join(map(str, counts))} samples along dimension 0 (inputs, then target), "
            "but microbatches are cut along it; expand those that are the same for all samples, keep tables in "
            "buffers, and give packed sequences as rows with position ids, or list microbatches in place of cu_seqlens"
        )


class _DifferingLengths:
    """Which lengths of inputs and target differ from microbatch to microbatch, and which of them always agree."""

    def __init__(self, microbatches: Sequence[Sequence[torch.Tensor]]) -> None:
        self.sizes: dict[tuple[int, int], int] = {}
        """By tensor and dimension, which of the sizes it is; 0 is the number of samples."""
        self.shortest: list[int] = []
        """Of each length, but not below what a model is cut with."""
        seen: dict[tuple[int, ...], int] = {}
        for place, alike in enumerate(zip(*microbatches, strict=True)):
            for dimension in range(1, alike[0].dim()):
                lengths = tuple(tensor.shape[dimension] for tensor in alike)
                if len(set(lengths)) > 1:
                    self.sizes[place, dimension] = seen.setdefault(lengths, len(seen) + 1)
        self.shortest = [max(SHORTEST, min(lengths)) for lengths in seen]

    def of(self, shapes: Sequence[Sequence[int]]) -> Sizes:
        """The sizes of a microbatch whose inputs have these shapes; of the target, as short as they come."""
        found = [shapes[0][0], *self.shortest]
        for (place, dimension), size in self.sizes.items():
            if place < len(shapes):
                found[size] = shapes[place][dimension]
        return tuple(found)

    def take(self, tensor: torch.Tensor, place: int, *, sizes: Sizes) -> torch.Tensor:
        """The first of a tensor in every dimension, again from the first where there are not so many."""
        if tensor.dim() == 0 or not tensor.shape[0]:
            raise ValueError("the batch has no samples along dimension 0; give at least one")
        for dimension in range(tensor.dim()):
            size = self.sizes.get((place, dimension), None if dimension else 0)
            if size is not None:
                enough = -(-sizes[size] // tensor.shape[dimension])
                tensor = torch.cat([tensor] * enough, dimension).narrow(dimension, 0, sizes[size])
        return tensor.clone()


def _form_of(inputs: Any) -> str:
    names = f"{', '.join(map(str, inputs))} " if isinstance(inputs, dict) else ""
    kinds = [
        f"{leaf.dim()}-dimensional" if isinstance(leaf, torch.Tensor) else repr(leaf) for leaf in leaves_of(inputs)
    ]
    return f"{names}({', '.join(kinds)})"


def make_parts(
    module: nn.Module,
    *,
    batch: GivenBatch,
    loss: Loss | None,
    weights: Path | None,
    conversion: WeightConversion | None = None,
) -> dict[str, Any]:
    """Fields of a `Training` by their names, from the model cut on samples of the first batch.

    Raises ValueError that says why it cannot be cut. `weights`: files with the values that its layers start with;
    `conversion`: between its names and theirs.
    """
    with refusing(module):
        _require_followable(module)
    values = find_late_values(module, weights=weights, conversion=conversion)
    reader = BatchReader(batch, has_own_loss=loss is None)
    further = _further_arguments(module)

    def arguments(sizes: Sizes) -> Arguments:
        given = reader.inputs_of(sizes)
        return ((), given | further) if isinstance(given, dict) else (tuple(given), further)

    lengths = reader.lengths.shortest

    def uses(output: Any) -> list[torch.Tensor]:
        if loss is None:
            return [_own_loss(output)]
        target = reader.target_of(first_sizes(lengths))
        _require_no_weights(loss, output, target=target, module=module)
        return _used_by(loss, output, target=target)

    cut_again = partial(cut_model, arguments=arguments, uses=uses, lengths=lengths)
    cut = cut_again(module)
    not_compared = tuple(path for path, _ in module.named_children() if os.environ.get("PIPEPLAN_COMPARES") == "never")
    if is_compared_here():
        first, others = first_sizes(lengths), trial_sizes(lengths)
        samples = [
            Sample(arguments=arguments(first), target=reader.target_of(first)),
            Sample(arguments=_behind_first(arguments(others)), target=_behind_first(reader.target_of(others))),
        ]

        reader.trial = lambda sizes: require_same_calls(module, cut, arguments=arguments(sizes), sizes=sizes)
        not_compared = _compare(module, cut, cut_again=cut_again, samples=samples, loss=loss)
    reader.reads = ReadState(module)
    return {
        "layers": {name: partial(_make_copy, layer, name=name, values=values) for name, layer in cut.layers.items()},
        "inputs": cut.inputs,
        "tied": cut.tied,
        "aliases": _find_aliases(module, cut),
        "order": _find_order(module, cut),
        "batch": reader,
        "loss": _loss_of_last(loss, cut),
        "not_compared": not_compared,
    }


def _loss_of_last(loss: Loss | None, cut: CutModel) -> Loss:
    return _given_loss if loss is None else _OutputLoss(loss, cut)


def _compare(
    module: nn.Module,
    cut: CutModel,
    *,
    cut_again: Callable[[nn.Module], CutModel],
    samples: Sequence[Sample],
    loss: Loss | None,
) -> tuple[str, ...]:
    """Hold the training of layers against that of the model, or of one with fewer blocks; gives what is left out."""
    everything = tuple(path for path, _ in module.named_children())
    if "RANK" in os.environ and any(each.is_meta for each in module.parameters()):
        return everything  # a process of a run takes the memory of its own layers only: `--check` compares
    reduced = reduce_model(module, blocks=tuple(cut.blocks.lists))
    tried = reduced.module
    if tried is None:
        return reduced.left_out
    if tried is not module:
        try:
            cut = cut_again(tried)
        except ValueError:
            if not reduced.left_out:
                raise
            return everything  # its forward wants all of its blocks
    whole_loss = (lambda output, _: _own_loss(output)) if loss is None else loss
    is_done = require_same_training(tried, cut, samples=samples, loss=whole_loss, cut_loss=_loss_of_last(loss, cut))
    return reduced.left_out if is_done else everything


def _behind_first(tree: Any) -> Any:
    """The same without the first samples."""
    return change_leaves(tree, lambda leaf: leaf[FEWEST:] if isinstance(leaf, torch.Tensor) else leaf)


def is_compared_here() -> bool:
    """Whether this process compares: of several that make the same model, the first one of a run alone."""
    if os.environ.get("PIPEPLAN_COMPARES") in ("0", "never"):
        return False
    rank = os.environ.get("RANK")
    return "LOCAL_RANK" not in os.environ if rank is None else rank == "0"


_WEIGHT_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_BLIND = "let it group those that it is given by place or shape, as often as it is called, or give `settings` by name"


def require_blind_factory(module: nn.Module, optimizer: Callable[[list[Any]], Any]) -> None:
    """ValueError for a factory that goes by the identity of the model's weights: layers train copies of them."""
    own = [each for each in module.parameters() if each.requires_grad]
    told: object
    try:
        told = _groups_of(optimizer, [nn.Parameter(each.detach()) for each in own])
    except OwnCodeError as error:
        told = error
    hooks = [(each, name, set(getattr(each, name) or ())) for each in own for name in _WEIGHT_HOOKS]
    try:
        seen = _groups_of(optimizer, own)
    finally:
        for weight, name, before in hooks:
            for key in {*(getattr(weight, name) or ())} - before:
                del getattr(weight, name)[key]
    if told != seen:
        raise RefusedModelError(
            "the optimizer's factory goes by the weights of the model itself, but layers train copies of them; "
            f"{_BLIND}"
        )


def _groups_of(optimizer: Callable[[list[Any]], Any], given: list[nn.Parameter]) -> list[object]:
    """The places of the weights in each group, in order (-1: one that was not given), and what the group is told."""
    places = {id(each): place for place, each in enumerate(given)}
    with calling("the optimizer's factory", remedy=_BLIND):
        made = optimizer(list(given)) if given else ()
    several = made if isinstance(made, Sequence) else [made]
    groups = [dict(group) for each in several for group in getattr(each, "param_groups", ())]
    rows = [sorted(places.get(id(each), -1) for each in group.pop("params")) for group in groups]
    told = [repr([pair for pair in group.items() if isinstance(pair[1], float | str | tuple)]) for group in groups]
    return [rows, told]


def _find_aliases(module: nn.Module, cut: CutModel) -> dict[str, str]:
    homes: dict[int, str] = {}
    known: set[str] = set()
    for name, layer in cut.layers.items():
        for path, tensor in kept_tensors(layer).items():
            homes.setdefault(id(tensor), f"{name}:{path}")
            known.add(path)
    kept = kept_tensors(module)
    return {key: homes[id(tensor)] for key, tensor in kept.items() if key not in known and id(tensor) in homes}


def _find_order(module: nn.Module, cut: CutModel) -> dict[str, int]:
    """Where the model's own list of weights has each; copies of one are at one place."""
    places = {id(each): place for place, each in enumerate(module.parameters())}
    named = [(name, *pair) for name, layer in cut.layers.items() for pair in layer.named_parameters()]
    return {f"{name}:{path}": places[id(each)] for name, path, each in named if id(each) in places}


def _further_arguments(module: nn.Module) -> dict[str, Any]:
    """Models of transformers keep keys and values unless they are told not to."""
    parameters = inspect.signature(module.forward).parameters
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    has_caches = getattr(getattr(module, "config", None), "use_cache", None) is not None
    return {"use_cache": False} if "use_cache" in parameters or (takes_any and has_caches) else {}


def _make_copy(layer: nn.Module, *, name: str, values: LateValues) -> nn.Module:
    is_empty = torch.get_default_device().type == "meta"
    return copy_part(layer, values=None if is_empty else values.make(layer, name=name))


def _own_loss(output: Any) -> torch.Tensor:
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if not isinstance(loss, torch.Tensor):
        raise ValueError(f"the model's output ({type(output).__name__}) contains no loss; give `loss`")
    return loss


def _given_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    """The last layer computes it."""
    return output


class _OutputLoss:
    """The user's loss of what the model gives, of which the last layer gives the part that the loss uses."""

    def __init__(self, loss: Loss, cut: CutModel) -> None:
        self.user_loss, self.output, self.given = loss, cut.recording.output, cut.given
        self._is_output = type(self.output) is Ref and list(cut.given) == [self.output.number]

    def __call__(self, output: Any, target: torch.Tensor) -> torch.Tensor:
        """Of one microbatch."""
        if self._is_output and isinstance(output, torch.Tensor):
            return self.user_loss(output, target)
        values = dict(zip(self.given, output if isinstance(output, tuple | list) else (output,), strict=True))
        given = change_leaves(self.output, lambda leaf: values.get(leaf.number) if isinstance(leaf, Ref) else leaf)
        return self.user_loss(given, target)


class _Touched(TorchFunctionMode):
    """Notes which tensors functions are given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, *given: Any) -> Any:
        args, named = unpack(given)
        self.seen.update(id(tensor) for tensor in tensors_of((args, named)))
        return func(*args, **named)


def _require_followable(module: nn.Module) -> None:
    """Raise ValueError for modules of whose weights nothing is known, or whose calls are compiled."""
    for path, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule) or hasattr(part, "_orig_mod"):
            how = "wrapped by torch.compile" if hasattr(part, "_orig_mod") else "compiled by torch.jit"
            raise ValueError(f"module {path or 'itself'!r} is {how}; give it as it was before")
        if isinstance(part, nn.SyncBatchNorm):
            raise ValueError(
                f"module {path!r} is a SyncBatchNorm, which averages over all processes; give torch.nn.BatchNorm, "
                "which the executor averages over a stage's replicas"
            )
        for name, tensor in (*part._parameters.items(), *part._buffers.items()):
            if is_lazy(tensor):
                raise ValueError(f"{name!r} of module {path or 'itself'!r} has no shape yet; call the model once first")
            if tensor is not None and tensor.layout is not torch.strided:
                raise ValueError(f"{name!r} of module {path or 'itself'!r} is {tensor.layout}; keep it dense")


def _require_no_weights(loss: Loss, output: Any, *, target: torch.Tensor, module: nn.Module) -> None:
    """Raise ValueError where a loss has a gradient of its own: no layer would train what it is taken of."""
    bare = change_leaves(output, lambda leaf: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf)
    given = " and ".join(str(tuple(each.shape)) for each in tensors_of(bare)[:3])
    with calling(f"the loss of the model's output {given} and the target {tuple(target.shape)} of {FEWEST} samples"):
        found = loss(bare, target)
        if not isinstance(found, torch.Tensor) or found.numel() != 1:
            raise TypeError(f"it gives {getattr(found, 'shape', type(found).__name__)}, but has to give one number")
    if not found.requires_grad:
        return
    holders = [module, loss] if isinstance(loss, nn.Module) else [module]
    names = {id(each): path for holder in holders for path, each in holder.named_parameters()}
    used = [names.get(id(leaf), f"a tensor {tuple(leaf.shape)}") for leaf in _trained_leaves(found)]
    raise ValueError(
        f"its loss uses {', '.join(used[:2])} beside what the model gives, which layers would not train; let the model "
        "compute its loss (a batch with labels), or freeze what is not to be trained"
    )


def _trained_leaves(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """What the graph of a tensor begins with."""
    seen, open_nodes = set(), [tensor.grad_fn]
    while open_nodes:
        node = open_nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            yield leaf
        open_nodes += [each for each, _ in node.next_functions]


def _used_by(loss: Loss, output: Any, *, target: torch.Tensor) -> list[torch.Tensor]:
    """The tensors of the output that the loss looks at."""
    with _Touched() as touched:
        touched.seen.add(id(loss(output, target)))  # of a model that computes it, one of its own
    return [tensor for tensor in tensors_of(output) if id(tensor) in touched.seen]
