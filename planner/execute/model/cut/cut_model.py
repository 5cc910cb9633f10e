"""An unchanged model as layers: recorded with two numbers of samples, cut at its blocks, and tried with a third."""

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import nn

from planner.execute.model.cut.blocks import Blocks, find_blocks
from planner.execute.model.cut.cut_layer import CutLayer
from planner.execute.model.cut.hooks import describe_causes, require_dense_gradients
from planner.execute.model.cut.late_values import put_back, stand_ins_for_values
from planner.execute.model.cut.module_state import ModuleState
from planner.execute.model.cut.recording import ForwardRecording, merge, record
from planner.execute.model.cut.segments import BATCH, Liveness, Passing, find_decisions, find_segments, find_tellers
from planner.execute.model.cut.trees import Sizes, refs_of, tensors_of
from planner.execute.model.deferred import is_compiled
from planner.execute.model.named_tensors import kept_tensors
from planner.execute.model.user_code import OwnCodeError, RefusedModelError

FEWEST = 2
"""Samples of the first recording; others have one more, and the trial of the layers two."""

SHORTEST = 4
"""Of lengths that differ, with which a model is cut; recordings have one less or none, and the trial two."""

_OTHER_SIZE = "plan microbatches of another size (-m, --global-batch)"

_REMEDY = "give a planner.execute.training.Training whose `layers` name the model's parts (docs/how-to/run-it.md)"

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional ones and those by name."""

Uses = Callable[[Any], list[torch.Tensor]]
"""What the model gives to the tensors of it that are wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutModel:
    """The layers of a model; they share its weights."""

    layers: Mapping[str, CutLayer]
    """By name, in the order in which they run."""
    inputs: Mapping[str, tuple[str, ...]]
    """What each takes: names of layers, and `""` for the batch."""
    tied: tuple[tuple[str, ...], ...]
    """Weights that several layers have, as `layer:path`."""
    given: tuple[int, ...]
    """Numbers of the tensors that the last layer gives."""
    blocks: Blocks
    """The modules that it is cut at."""
    recording: ForwardRecording
    """What the layers do, for all sizes."""


def first_sizes(lengths: Sequence[int]) -> Sizes:
    """Of the first recording, where these lengths differ from microbatch to microbatch."""
    return FEWEST, *(length - 1 for length in lengths)


def trial_sizes(lengths: Sequence[int]) -> Sizes:
    """Likewise, that no recording has."""
    return FEWEST + 2, *(length - 2 for length in lengths)


def cut_model(
    module: nn.Module, arguments: Callable[[Sizes], Arguments], *, uses: Uses, lengths: Sequence[int] = ()
) -> CutModel:
    """`arguments`: of a call with these sizes; `uses`: which tensors of the first call's output are wanted; `lengths`:
    one of each that differs from microbatch to microbatch.

    Raises ValueError that says why the model cannot be cut. The module is left as it is.
    """
    if is_compiled(module):
        raise ValueError(f"{type(module).__name__} is compiled as a whole; give it uncompiled, or compile its layers")
    with refusing(module):
        _require_separate_weights(module)
    with torch.enable_grad(), stand_ins_for_values(module) as originals, kept_state(module) as state:
        with refusing(module):
            require_dense_gradients(module)
            base = first_sizes(lengths)
            blocks = find_blocks(module, arguments(base))
            state.restore()
            record_all = partial(_record_all, module, arguments, base=base, blocks=blocks, uses=uses, state=state)
            recording, places = _record_decided(record_all)
            cut = _assemble(module, recording, blocks=blocks, places=places)
            _try_out(module, cut, arguments=arguments(trial_sizes(lengths)), places=places, state=state)
        for layer in cut.layers.values():
            put_back(layer, originals)
    return cut


@contextmanager
def refusing(module: nn.Module) -> Iterator[None]:
    """What fails meanwhile becomes a ValueError that names the model, the reason and what to write instead."""
    try:
        yield
    except OwnCodeError as error:
        raise ValueError(f"{type(module).__name__}: {error}; make them fit") from error
    except Exception as error:
        few = "" if isinstance(error, ValueError) else f" (given {FEWEST} to {FEWEST + 2} samples of each tensor)"
        raise RefusedModelError(
            f"{type(module).__name__} cannot be cut into layers: {_why(error, module)}{few}; {_REMEDY}"
        ) from error


def _why(error: Exception, module: nn.Module) -> str:
    """What failed; of an error that is none of ours also where."""
    lines = str(error).splitlines() or [type(error).__name__]
    if isinstance(error, ValueError):
        return lines[0]
    if type(error).__module__.startswith("torch._dynamo"):
        return "code around its blocks calls what torch.compile made, whose calls are not seen; call it uncompiled"
    paths, inner = {part: path for path, part in module.named_modules()}, "itself"
    for frame, _ in traceback.walk_tb(error.__traceback__):
        first = frame.f_locals.get(frame.f_code.co_varnames[0]) if frame.f_code.co_argcount else None
        inner = paths.get(first, inner) or "itself" if isinstance(first, nn.Module) else inner
    return f"module {inner!r} fails: {lines[0]}"


def require_same_calls(module: nn.Module, cut: CutModel, *, arguments: Arguments, sizes: Sizes) -> None:
    """Raise ValueError where the model, given these sizes, does something else than its layers; takes one forward."""
    what = f"{type(module).__name__}, given a microbatch of {' by '.join(map(str, sizes))}"
    tracing = mock.patch("torch.jit.is_tracing", return_value=True) if cut.recording.is_traced else nullcontext()
    try:
        with torch.enable_grad(), stand_ins_for_values(module), kept_state(module), tracing:
            torch.manual_seed(0)
            found = record(module, arguments, opened=cut.blocks.opened)[0]
    except Exception as error:
        raise RefusedModelError(f"{what}, fails: {_why(error, module)}; {_OTHER_SIZE}") from error
    try:
        merge([cut.recording.at(sizes), replace(found, shapes={})], base=())
    except ValueError as error:
        raise RefusedModelError(
            f"{what}, acts otherwise than it was cut ({FEWEST} to {FEWEST + 2} samples): {error}; decide by sizes "
            f"within a block, or {_OTHER_SIZE}"
        ) from error


def _record_decided(record_all: Callable[[], tuple[ForwardRecording, list[int]]]) -> tuple[ForwardRecording, list[int]]:
    """Where the model decides by values, it is asked once more as if it were traced: masks are then always made."""
    failed = None
    try:
        found = record_all()
        if not find_decisions(found[0]):
            return found
    except ValueError as error:
        failed = error
    try:
        with mock.patch("torch.jit.is_tracing", return_value=True):
            traced = record_all()
    except Exception as error:
        raise failed or error from error
    if decisions := find_decisions(traced[0]):
        raise ValueError(f"it branches on the values of its samples ({decisions[0].name})")
    return replace(traced[0], is_traced=True), traced[1]


def _record_all(
    module: nn.Module,
    arguments: Callable[[Sizes], Arguments],
    *,
    base: Sizes,
    blocks: Blocks,
    uses: Uses,
    state: ModuleState,
) -> tuple[ForwardRecording, list[int]]:
    """With every size as it is or larger by one, each time from the same state."""
    recordings, output = [], None
    for number in range(1 << len(base)):
        torch.manual_seed(0)
        sizes = tuple(size + (number >> bit & 1) for bit, size in enumerate(base))
        try:
            found, given = record(module, arguments(sizes), opened=blocks.opened)
        finally:
            state.restore()
        recordings.append(found)
        output = given if number == 0 else output
    used = {id(tensor) for tensor in uses(output)}
    places = [place for place, tensor in enumerate(tensors_of(output)) if id(tensor) in used]
    if not places:
        raise ValueError("the loss uses no output of the model")
    try:
        return merge(recordings, base=base), places
    except ValueError as error:
        causes = state.find_changed()
        raise ValueError(f"{error}{describe_causes(module, causes) if causes else ''}") from error


def _assemble(module: nn.Module, recording: ForwardRecording, *, blocks: Blocks, places: list[int]) -> CutModel:
    outputs = refs_of(recording.output)
    wanted = list(dict.fromkeys(outputs[place] for place in places))
    segments = find_segments(recording, blocks, module=module)
    buffers = {path for path, _ in module.named_buffers()}
    passings = Liveness(recording, segments, wanted=wanted, buffers=buffers).find_passings()
    layers, inputs, moving = {}, {}, _find_moving(recording)
    for segment, passing in zip(segments, passings, strict=True):
        sources = [recording.inputs if k == BATCH else passings[k].leaves for k in passing.takes]
        arrives = [number for source in sources for number in source]
        layers[segment.name] = _make_layer(module, recording, passing=passing, arrives=arrives)
        layers[segment.name].cut_moving = moving
        inputs[segment.name] = tuple("" if k == BATCH else segments[k].name for k in passing.takes)
    _require_one_holder(layers, recording=recording, passings=passings)
    _take_unused(layers, module=module)
    return CutModel(
        layers=layers,
        inputs=inputs,
        tied=_find_tied(layers),
        given=tuple(wanted),
        blocks=blocks,
        recording=recording,
    )


def _find_moving(recording: ForwardRecording) -> dict[int, str]:
    """The buffer that each number hangs on, and nothing of the batch, where the forward changes that buffer."""
    found: dict[int, str] = {}
    for step in recording.steps:
        paths = [*step.writes, *(found[number] for number in step.takes if number in found)]
        if paths and {*step.takes} <= {*found, *recording.attributes, *recording.constants}:
            found |= dict.fromkeys(step.gives, paths[0])
    return found


def _make_layer(
    module: nn.Module, recording: ForwardRecording, *, passing: Passing, arrives: Sequence[int]
) -> CutLayer:
    order = sorted(passing.steps, key=lambda place: (place not in passing.constant, place))
    steps = [recording.steps[place] for place in order]
    taken = {number for step in steps for number in step.takes} | set(passing.leaves)
    attributes = {number: recording.attributes[number] for number in sorted(taken & set(recording.attributes))}
    constants = {number: recording.constants[number] for number in sorted(taken & set(recording.constants))}
    layer = CutLayer(
        steps,
        arrives=arrives,
        leaves=passing.leaves,
        attributes=attributes | {number: f"constant_{number}" for number in constants},
        sizes=find_tellers(recording, arrives),
        num_constant=len(passing.constant),
        told=[(recording.shapes[number], *recording.kinds[number]) for number in passing.leaves],
    )
    for number, constant in constants.items():
        layer.register_buffer(f"constant_{number}", constant, persistent=False)
    for path in dict.fromkeys(step.call for step in steps if isinstance(step.call, str)):
        _put_module(layer, path, module=module)
    for path in attributes.values():
        _put_tensor(layer, path, module=module)
    layer.training = layer.was_training = module.training
    layer.cut_batch = tuple(recording.shapes[number] for number in recording.inputs)
    return layer


def _require_one_holder(
    layers: Mapping[str, CutLayer], *, recording: ForwardRecording, passings: Sequence[Passing]
) -> None:
    """A buffer that the forward changes has to be in one layer."""
    for path in sorted(recording.written):
        holders = [
            name
            for (name, layer), passing in zip(layers.items(), passings, strict=True)
            if path in _kept_paths(layer) or any(path in recording.steps[place].writes for place in passing.steps)
        ]
        if len(holders) > 1:
            raise ValueError(
                f"buffer {path!r} changes in every forward, and layers {holders[0]!r} and {holders[1]!r} use it; give "
                "it to one block, or give each block its own"
            )


def _kept_paths(layer: nn.Module) -> set[str]:
    """The paths of all buffers of a layer."""
    return {path for path, _ in layer.named_buffers(remove_duplicate=False)}


def _take_unused(layers: Mapping[str, CutLayer], *, module: nn.Module) -> None:
    """What a state dictionary has and no layer uses goes with the last layer, to be saved and loaded."""
    *_, last = layers.values()
    held = {path for layer in layers.values() for path in _kept_paths(layer)}
    weights = {id(parameter) for layer in layers.values() for parameter in layer.parameters()}
    for path, tensor in kept_tensors(module).items():
        if path not in held and id(tensor) not in weights:
            _put_tensor(last, path, module=module)
            last.kept_only = (*last.kept_only, path)


def _owner(layer: nn.Module, path: str, *, module: nn.Module) -> nn.Module:
    """The module of the layer at a path; empty ones are made on the way."""
    owner = layer
    for depth, name in enumerate(path.split(".") if path else ()):
        if name not in owner._modules:
            _require_free(owner, name)
            holder = nn.Module()
            holder.training = module.get_submodule(".".join(path.split(".")[: depth + 1])).training
            owner.add_module(name, holder)
        owner = owner.get_submodule(name)
    return owner


def _put_module(layer: nn.Module, path: str, *, module: nn.Module) -> None:
    place, _, name = path.rpartition(".")
    owner = _owner(layer, place, module=module)
    _require_free(owner, name)
    owner._modules[name] = module.get_submodule(path)


def _require_free(owner: nn.Module, name: str) -> None:
    """ValueError for the name of a module, weight or buffer that layers of a cut model have for something else."""
    if hasattr(type(owner), name) or name in vars(owner):
        raise ValueError(f"its {name!r} has a name that layers have for something of their own; call it otherwise")


def _put_tensor(layer: nn.Module, path: str, *, module: nn.Module) -> None:
    place, _, name = path.rpartition(".")
    owner, source = _owner(layer, place, module=module), module.get_submodule(place)
    _require_free(owner, name)
    if name in source._parameters:
        owner._parameters[name] = source._parameters[name]
    elif name not in owner._buffers:
        is_persistent = name not in source._non_persistent_buffers_set
        owner.register_buffer(name, source._buffers[name], persistent=is_persistent)


def _find_tied(layers: Mapping[str, CutLayer]) -> tuple[tuple[str, ...], ...]:
    holders: dict[int, list[str]] = {}
    for name, layer in layers.items():
        for path, parameter in layer.named_parameters():
            if parameter.requires_grad:
                holders.setdefault(id(parameter), []).append(f"{name}:{path}")
    return tuple(tuple(names) for names in holders.values() if len(names) > 1)


def _require_separate_weights(module: nn.Module) -> None:
    """ValueError for two parameters over one memory: stages would train each for itself."""
    owners: dict[tuple[int, int], str] = {}
    kept = []  # no other takes the address of a storage that is made when it is asked for
    for path, each in module.named_parameters():
        kept.append(each.untyped_storage())
        place = kept[-1]._cdata, int(each.storage_offset())
        other = owners.setdefault(place, path) if each.numel() else path
        if other != path:
            raise ValueError(
                f"weights {other!r} and {path!r} are two parameters over one memory, as load_state_dict(assign=True) "
                "leaves those that were tied; tie them again after it"
            )


def _run_layers(cut: CutModel, batch: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """What the last layer gives when all run one after the other; notes which change what they are given."""
    values: dict[str, tuple[torch.Tensor, ...]] = {"": tuple(batch)}
    name = ""
    for name, layer in cut.layers.items():
        arriving = [tensor for source in cut.inputs[name] for tensor in values[source]]
        before = [tensor._version for tensor in arriving]
        found = layer(*arriving)
        changed = [place for place, tensor in enumerate(arriving) if tensor._version != before[place]]
        layer.cut_changed = tuple(sorted({*layer.cut_changed, *changed}))
        values[name] = found if isinstance(found, tuple) else (found,)
    return values[name]


def _try_out(module: nn.Module, cut: CutModel, *, arguments: Arguments, places: list[int], state: ModuleState) -> None:
    """Raises ValueError where the layers together do not give what the model gives, or do not leave what it leaves."""

    def run() -> list[torch.Tensor]:
        torch.manual_seed(1)
        return tensors_of(module(*arguments[0], **arguments[1]))

    def run_layers() -> tuple[torch.Tensor, ...]:
        torch.manual_seed(1)
        return _run_layers(cut, tensors_of(arguments))

    state.restore_all()
    given, own = run(), ModuleState(module)
    run()
    moving = own.find_moved()
    leaving: tuple[torch.Tensor, ...] = ()
    before: list[tuple[int, ...]] = []
    while not leaving or _copies_more(cut, before):
        before = [layer.cut_changed for layer in cut.layers.values()]
        state.restore()
        leaving = run_layers()
    found = dict(zip(cut.given, leaving, strict=True))
    numbers = refs_of(cut.recording.output)
    for place in places:
        one, other = given[place], found[numbers[place]]
        if one.shape != other.shape or not torch.allclose(one, other, rtol=_NEAR, atol=_NEAR, equal_nan=True):
            causes = describe_causes(module, [*state.find_changed(), *cut.recording.acting])
            raise ValueError(f"its layers in sequence give another result{causes}")
    if not moving:
        return
    state.restore_all()
    run()
    unsteady = moving & own.find_moved()  # such as times
    state.restore_all()
    run_layers()
    lost, last = moving & own.find_moved() - unsteady, ModuleState(module)
    run_layers()
    if lost := lost | unsteady - last.find_moved():
        raise ValueError(
            f"its code around the blocks runs once, to be recorded, but there is {min(lost)}, which changes from call "
            "to call: keep what results hang on in a buffer of one block, draw by torch's random numbers, and count "
            "and time for logs alone in a hook of a block, or in your own loop"
        )


def _copies_more(cut: CutModel, before: Sequence[tuple[int, ...]]) -> bool:
    """Whether a run changed what arrives, and had no copies of it yet."""
    return [layer.cut_changed for layer in cut.layers.values()] != before


_NEAR = 1e-5
"""Masks that are always made may send attention through another kernel, which rounds otherwise."""


@contextmanager
def kept_state(module: nn.Module, *, has_weights: bool = False) -> Iterator[ModuleState]:
    """The model, and random numbers, are afterwards what they were."""
    state = ModuleState(module, has_weights=has_weights)
    devices = {each.device.index for each in module.parameters() if each.device.type == "cuda"}
    try:
        with torch.random.fork_rng(devices=sorted(devices)):
            yield state
    finally:
        state.restore()
