"""The layers of one stage as one module, and the shapes of everything that enters and leaves the stages."""

import copy
import hashlib
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _BatchNorm

from planner.errors import ExecutionError
from planner.execute.model.batch_norms import Exchange, TraitFinder, Traits
from planner.execute.model.cut.cut_layer import CutLayer
from planner.execute.model.deferred import WeightGradStore, is_compiled
from planner.execute.model.layer_run import LayerRun, Moment, seed_generators
from planner.execute.model.layer_state import ChangingBuffers, StatePlace
from planner.execute.model.memory_order import as_sent, dense, order_of
from planner.execute.model.random_layers import may_draw
from planner.execute.model.recomputed_forward import run_recomputed
from planner.execute.model.user_code import calling
from planner.execute.stage.shared_values import SharedValues
from planner.execute.table.wiring import BATCH, StageWiring
from planner.execute.training import Tensors, Training, as_tuple

Item = TypeVar("Item")


class SamplePlaces(NamedTuple):
    """Where the samples of a microbatch lie."""

    dims: Mapping[str, tuple[int | None, ...]]
    """Of the batch and of what each layer gives the dimension per tensor; None: it belongs to no sample."""
    num_samples: int
    """Of the replica here."""
    is_sum: bool
    """Whether what belongs to none is added up in the loss, not averaged."""


class MemoryTrial(NamedTuple):
    """What layers may not give other results for once they have seen a microbatch."""

    is_asked: Callable[[StatePlace], bool]
    """Whether something kept in a place is not what one process would keep there."""
    reason: str
    """Why, and what to do."""
    kept: Literal["", "in order", "of each"] = ""
    """Whether buffers may not depend on the order of microbatches, or on any beside the replica's own."""


class StageModule(nn.Module):
    """Runs the layers of a stage one after the other and hands on what later stages need."""

    def __init__(
        self,
        wiring: StageWiring,
        layers: Mapping[str, nn.Module],
        *,
        counts: Mapping[str, int],
        recompute: Collection[str] = (),
        kept: Collection[int] = (),
    ) -> None:
        """`counts`: how many tensors each arriving value has; `recompute`: its layers that recompute, not for `kept`
        microbatches.
        """
        super().__init__()
        self.wiring, self.counts = wiring, {name: counts[name] for name in wiring.arrives}
        self.recompute, self.kept = frozenset(recompute), frozenset(kept)
        self.microbatch = 0
        """The current one."""
        self.layers = nn.ModuleList(layers[name] for name in wiring.layers)
        self.offloading: Callable[..., AbstractContextManager[None]] | None = None
        """Around the forward of a microbatch whose saved tensors may travel to the host."""
        self.leaving_counts: dict[str, int] = {}
        self.moment: Moment | None = None
        """What the random numbers of the current microbatch depend on; None: they come as they come."""
        self._seeds: tuple[Moment, dict[str, int]] | None = None
        """Of all layers that draw, at a moment."""
        self.exchange: Exchange | None = None
        """How its replicas tell each other of their samples, if batch norms need that."""
        self.store: WeightGradStore | None = None
        """What its weight gradients wait in."""
        self.finder, self.traits = TraitFinder(), dict[str, Traits]()
        """What its layers were seen doing without data."""
        self._changing = {name: ChangingBuffers() for name in wiring.layers}
        self._is_row = _is_row(wiring, self.counts)
        self._rows = tuple((name, layers[name]) for name in wiring.layers)
        self._drawing: frozenset[str] | None = None
        """Layers that are given random numbers of their own: those that may take some, and the last, for the loss."""
        self.sharing: SharedValues | None = None
        """What is noted of its layers while they run without data."""
        self.trial: MemoryTrial | None = None
        """What layers are to be seen not to remember of microbatches, in the next one; None: they may."""
        self.decides = False
        """Whether a layer was seen to read values: then each microbatch of the first iteration is a trial."""
        self.places: SamplePlaces | None = None
        """Where samples lie, if each replica has a part of them: layers are to be seen to treat them apart."""
        self.is_loss_known = False
        """Whether the loss is known to take none."""
        self._row_calls: tuple[tuple[str, nn.Module, nn.Module | None], ...] = ()
        """Of a row the layers, and of those that are just called the modules that do so."""

    def layer(self, name: str) -> nn.Module:
        """The module of a layer, by its name in the plan."""
        return self.layers[self.wiring.layers.index(name)]

    def begin(self, microbatch: int, *, moment: Moment | None) -> None:
        """A microbatch begins; `moment`: of any one of its iteration."""
        now = None if moment is None else moment._replace(microbatch=microbatch)
        own = self.__dict__  # setting a module's attributes takes 2 us each
        own["microbatch"], own["moment"] = microbatch, now

    def forward(self, *arrived: torch.Tensor) -> torch.Tensor | Tensors:
        """Tensors as they arrive, in the order of the wiring; gives those that leave, alone if it is only one."""
        if self.offloading is None or arrived[0].is_meta:
            return self._run(arrived)
        with self.offloading(self.microbatch, module=self):
            return self._run(arrived)

    def _run(self, arrived: Tensors) -> torch.Tensor | Tensors:
        is_trying = self.trial is not None and torch.is_grad_enabled() and not arrived[0].is_meta
        if self._is_row and not arrived[0].is_meta and not is_trying:
            if self._drawing is None:
                self._settle()
            return self._run_row(arrived[0])
        values = unflatten(arrived, self.counts)
        for name, layer in self._rows:
            arguments = [tensor for source in self.wiring.takes[name] for tensor in values[source]]
            versions = [] if self.sharing is None else [tensor._version for tensor in arguments]
            given = as_tuple(self._call(name, layer, arguments=arguments))
            values[name] = tuple(map(dense, given))
            if self.sharing is not None:
                places = [(source, k) for source in self.wiring.takes[name] for k in range(len(values[source]))]
                self.sharing.note(name, places, tensors=arguments, versions=versions)
                self.sharing.note_copies(given, values[name])
                self.sharing.sizes[name] = tuple(tensor.shape for tensor in given)
        if is_trying and not self.decides:
            self.trial = None
        self.leaving_counts = {name: len(values[name]) for name in self.wiring.leaves}
        leaving = tuple(as_sent(tensor) for name in self.wiring.leaves for tensor in values[name])
        return leaving[0] if len(leaving) == 1 else leaving

    def _settle(self) -> None:
        """What of its layers has to be decided in every microbatch."""
        self._drawing = frozenset(each for each, own in self._rows if may_draw(own))
        self._drawing |= frozenset() if self.is_loss_known else {self.wiring.layers[-1]}
        decided = self._drawing | self.recompute
        calls = []
        for name, layer in self._rows:
            module = (layer.cut_only if isinstance(layer, CutLayer) else None) or layer
            calls.append((name, layer, module if self.exchange is None and name not in decided else None))
        self._row_calls = tuple(calls)

    def _run_row(self, tensor: torch.Tensor) -> torch.Tensor | Tensors:
        """Each layer takes what the one before it gives: no value needs a name."""
        given: torch.Tensor | Tensors = tensor
        for name, layer, module in self._row_calls:
            if module is not None and isinstance(given, torch.Tensor):
                given = layer(given) if layer._forward_hooks else module(given)
            else:
                given = self._call(name, layer, arguments=as_tuple(given))
            if not isinstance(given, torch.Tensor):
                given = tuple(map(dense, as_tuple(given)))
            elif not given.is_contiguous():
                given = dense(given)
        if not self.leaving_counts:
            self.leaving_counts = {self.wiring.layers[-1]: 1 if isinstance(given, torch.Tensor) else len(given)}
        if isinstance(given, torch.Tensor):
            return as_sent(given)
        return as_sent(given[0]) if len(given) == 1 else tuple(map(as_sent, given))

    def _call(self, name: str, layer: nn.Module, *, arguments: Sequence[torch.Tensor]) -> torch.Tensor | Tensors:
        result: torch.Tensor | Tensors
        if arguments[0].is_meta:
            with self.finder.finding(self.traits, name, layer=layer):
                result = layer(*arguments)
            return result
        seed = None
        if self._drawing is None:
            self._settle()
        if self.moment is not None and name in self._drawing:  # type: ignore[operator]
            if self._seeds is None or self._seeds[0] is not self.moment:  # all at once: the code is in the cache then
                numbers = {each: self.moment.number(each) for each in self._drawing or ()}
                self.__dict__["_seeds"] = (self.moment, numbers)
            seed = partial(seed_generators, self._seeds[1][name], arguments[0].device)  # type: ignore[index]
            seed()
        is_recomputed = name in self.recompute and self.microbatch not in self.kept and torch.is_grad_enabled()
        trial = self.trial if torch.is_grad_enabled() else None
        if not is_recomputed and self.exchange is None and trial is None:
            result = layer(*arguments)
            return result
        changing, versions = self._changing[name], [tensor._version for tensor in arguments]
        run = LayerRun(layer, changing=changing, exchange=self.exchange, store=self.store, seed=seed)
        if is_recomputed:
            is_first, changing.is_compared = not changing.is_compared, True
            result = run_recomputed(run, *arguments, name=f"layer {name!r}", is_compared=is_first)
        else:
            result = run(*arguments)
        if trial is not None and versions == [tensor._version for tensor in arguments]:
            _require_no_memory(run, arguments, name=name, trial=trial)
            if self.places is not None:
                _require_uncoupled(run, arguments, name=name, takes=self.wiring.takes[name], places=self.places)
                self.decides |= run.reads.is_seen
        return result


def _require_no_memory(run: LayerRun, arguments: Sequence[torch.Tensor], *, name: str, trial: MemoryTrial) -> None:
    """Raise ExecutionError if what a layer keeps of a microbatch changes what it gives of the next."""
    place, text = run.find_memory(*arguments, is_asked=trial.is_asked)
    if place:
        raise ExecutionError(
            f"layer {name!r} gives {text} once it has seen a microbatch, which {place} keeps, but {trial.reason}"
        )
    if trial.kept and (place := run.find_kept(*arguments, is_ordered=trial.kept == "in order")):
        raise ExecutionError(f"layer {name!r} keeps something of each microbatch in {place}, but {trial.reason}")


def _require_uncoupled(
    run: LayerRun, arguments: Sequence[torch.Tensor], *, name: str, takes: Sequence[str], places: SamplePlaces
) -> None:
    """Raise ExecutionError if what a layer gives for some samples depends on the others of their microbatch."""
    taken, made = [dim for source in takes for dim in places.dims[source]], places.dims[name]
    if text := run.find_coupling(arguments, taken=taken, made=made, count=places.num_samples, is_sum=places.is_sum):
        raise ExecutionError(
            f"layer {name!r} gives {text} for some samples of a microbatch if others are beside them, but each replica "
            "has a part of it; let it treat samples apart, or plan without replicas (pipeplan plan --max-replicas 1)"
        )


def _is_row(wiring: StageWiring, counts: Mapping[str, int]) -> bool:
    """Whether one tensor arrives, each layer takes what the one before it gives, and the last one's alone leaves."""
    befores = [*wiring.arrives, *wiring.layers]
    takes = all(wiring.takes[name] == (before,) for name, before in zip(wiring.layers, befores, strict=False))
    return takes and list(counts.values()) == [1] and wiring.leaves == (wiring.layers[-1],)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageShape:
    """What enters and leaves a stage, as meta tensors that know whether they need a gradient."""

    inputs: Tensors
    outputs: Tensors
    counts: Mapping[str, int]
    """How many tensors every arriving value has."""
    leaving_counts: Mapping[str, int]
    """How many tensors every value has that leaves."""
    parameters: tuple[str, ...]
    """Name, shape, type and trainability of every parameter, as text."""
    traits: Mapping[str, Traits] = field(default_factory=dict)
    """What each layer was seen doing."""
    compiled: tuple[str, ...] = ()
    """Layers that are compiled, in part or as a whole."""
    whole_inputs: frozenset[int] = frozenset()
    """Places of inputs that belong to no sample, and come from replicas with other shares of the samples."""
    whole_outputs: frozenset[int] = frozenset()
    """Places of outputs that belong to no sample, and go to such replicas."""

    def is_like(self, other: "StageShape") -> bool:
        """Whether the tensors of both differ in their shapes alone."""
        return self._kinds() == other._kinds()

    def _kinds(self) -> tuple[Any, ...]:
        kinds = [(tensor.dtype, tensor.requires_grad) for tensor in (*self.inputs, *self.outputs)]
        return dict(self.counts), dict(self.leaving_counts), kinds


def make_layer(training: Training, name: str, *, device: torch.device) -> nn.Module:
    """A layer on its device, with the same weights wherever it is made."""
    position = list(training.layers).index(name)
    # without accelerators `torch.manual_seed` keeps three tracebacks of every call, for when one is there
    seed = torch.manual_seed if device.type == "cuda" else torch.default_generator.manual_seed
    seed(training.seed * 1_000_003 + position)
    with torch.device(device), calling(f"the factory of layer {name!r}"):
        module = training.layers[name]()
    if not isinstance(module, nn.Module):
        raise ValueError(
            f"layer {name!r} is made as a {type(module).__name__}, not as a torch.nn.Module; "
            "return one from its factory"
        )
    _require_plain(module, name=name)
    if device.type == "meta" and any(not tensor.is_meta for tensor in (*module.parameters(), *module.buffers())):
        module = _copy_of(module)  # the factory hands out a module that exists: it must not lose its weights
    for part in module.modules() if device.type == "meta" else ():
        if isinstance(part, _BatchNorm) and part.momentum is None:
            part.momentum = 1.0  # a plain average would read how many batches there have been
    return module.to(device)


def _copy_of(module: nn.Module) -> nn.Module:
    made = copy.deepcopy(module)
    for mine, theirs in zip(made.modules(), module.modules(), strict=True):
        mine._compiled_call_impl = theirs._compiled_call_impl  # which copies are without
    return made


def _require_plain(module: nn.Module, *, name: str) -> None:
    """Wrappers that reduce gradients do so behind our back, and not at all after an I.

    Raises ValueError that names the layer.
    """
    for part in module.modules():
        kinds = [kind.__name__ for kind in type(part).__mro__]
        if "OptimizedModule" in kinds:
            raise ValueError(
                f"layer {name!r} is wrapped by torch.compile, which renames its weights; call the layer's `compile()` "
                "in the factory, and give the layer"
            )
        if "SyncBatchNorm" in kinds:
            raise ValueError(
                f"layer {name!r} has a SyncBatchNorm, which averages over all processes; give torch.nn.BatchNorm, "
                "which the executor averages over the stage's replicas"
            )
        if {"DistributedDataParallel", "FSDPModule", "FullyShardedDataParallel"} & set(kinds):
            raise ValueError(
                f"layer {name!r} is a {kinds[0]}, which reduces gradients by itself; give the layer alone, the "
                "executor reduces them over the plan's replicas"
            )
    for path, parameter in module.named_parameters():
        if isinstance(parameter, DTensor):
            raise ValueError(
                f"parameter {path!r} of layer {name!r} is a DTensor, which several processes hold already; give the "
                "whole layer, which the executor divides as planned (`parallelize`)"
            )


def _stop_compiling(layer: nn.Module) -> bool:
    """Let all parts of a layer run as they are written; whether any was compiled."""
    compiled = [part for part in layer.modules() if is_compiled(part)]
    for part in compiled:
        part._compiled_call_impl = None
    return bool(compiled)


class StageTracer:
    """Runs the whole model without data, as often as there are sizes of microbatches; makes its layers once."""

    def __init__(self, training: Training, wirings: Sequence[StageWiring]) -> None:
        """Make all layers on the meta device; raises ValueError that names one which cannot be made."""
        _require_own_parameters(training)
        self.wirings, self.order = wirings, list(training.layers)
        meta = torch.device("meta")
        self.layers = [{name: make_layer(training, name, device=meta) for name in wiring.layers} for wiring in wirings]
        """Per stage; nothing in them is compiled."""
        self.sizes: dict[str, tuple[torch.Size, ...]] = {}
        """Of the batch and what each layer gives, in the last trace."""
        self.compiled = {name for own in self.layers for name, each in own.items() if _stop_compiling(each)}

    def trace(self, batch: Tensors) -> tuple[StageShape, ...]:
        """The shapes of every stage; raises ValueError that names the stage and the layers where it fails.

        `batch`: what one replica's first stage is given for one microbatch (its shapes and types count, not its
        values).
        """
        values: dict[str, Tensors] = {BATCH: tuple(torch.empty_like(tensor, device="meta") for tensor in batch)}
        shapes, sharing = [], SharedValues(self.wirings, self.order)
        for number, (wiring, layers) in enumerate(zip(self.wirings, self.layers, strict=True)):
            arriving = tuple(tensor for name in wiring.arrives for tensor in values[name])
            module = StageModule(wiring, layers, counts={name: len(values[name]) for name in wiring.arrives})
            module.sharing = sharing
            leaving = _run(module, arriving, number=number)
            shapes.append(
                StageShape(
                    inputs=arriving,
                    outputs=leaving,
                    counts=module.counts,
                    leaving_counts=module.leaving_counts,
                    parameters=tuple(_describe(layers)),
                    traits=module.traits,
                    compiled=tuple(name for name in wiring.layers if name in self.compiled),
                )
            )
            values |= unflatten(
                tuple(tensor.detach().requires_grad_(tensor.requires_grad) for tensor in leaving), module.leaving_counts
            )
        sharing.require_unseen()
        self.sizes = sharing.sizes | {BATCH: tuple(tensor.shape for tensor in batch)}
        return tuple(shapes)


def unflatten(tensors: Sequence[Item], counts: Mapping[str, int]) -> dict[str, tuple[Item, ...]]:
    """What belongs to each value, of things that stand one after the other."""
    remaining = iter(tensors)
    return {name: tuple(itertools.islice(remaining, count)) for name, count in counts.items()}


def _run(module: StageModule, arriving: Tensors, *, number: int) -> Tensors:
    try:
        with torch.enable_grad():
            return as_tuple(module(*arriving))
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
        first, last = module.wiring.layers[0], module.wiring.layers[-1]
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
        raise ValueError(
            f"stage {number} (layers {first!r} to {last!r}) cannot take what it is given: {reason}; "
            "give the model and the batch that the plan was made for, and change copies of tensors (`clone()`)"
        ) from error


def _describe(layers: Mapping[str, nn.Module]) -> list[str]:
    return [
        f"{name}:{path} {tuple(parameter.shape)} {parameter.dtype} {parameter.requires_grad}"
        for name, layer in layers.items()
        for path, parameter in layer.named_parameters()
    ]


def _require_own_parameters(training: Training) -> None:
    """Two layers made apart share nothing; factories that hand out one and the same tensor would be trained twice."""
    owner: dict[int, str] = {}
    kept = []
    for name, make in training.layers.items():
        with torch.device("meta"), calling(f"the factory of layer {name!r}"):
            module = make()
        kept.append(module)
        for path, parameter in module.named_parameters() if isinstance(module, nn.Module) else ():
            other = owner.setdefault(id(parameter), f"{name}:{path}")
            if not other.startswith(f"{name}:"):
                raise ValueError(
                    f"{name}:{path} and {other} are one tensor; make each layer its own and declare them in `tied`"
                )


def fingerprint(shapes: Sequence[StageShape]) -> str:
    """Hash of all parameters and of everything that crosses a stage boundary: equal if the models are alike."""
    lines = [line for shape in shapes for line in shape.parameters]
    lines += [
        f"{tuple(tensor.shape)} {tensor.dtype} {order_of(tensor)}" for shape in shapes for tensor in shape.outputs
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
