"""A forward pass written down call by call: of modules that stay whole, and of torch's functions around them.

What Python decides on the way is decided once, on real samples. Where a decision hangs on a tensor's value it becomes
a guard: it is taken again in every forward, and another outcome is an error.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils.checkpoint import CheckpointFunction

from planner.execute.model.cut.held_state import HeldState
from planner.execute.model.cut.hooks import describe_hook, require_no_gradient_hooks
from planner.execute.model.cut.module_state import separate_generators
from planner.execute.model.cut.trees import (
    OwnDevice,
    OwnMode,
    Ref,
    ScaledLength,
    Sizes,
    change_leaves,
    leaves_of,
    merge_trees,
    refs_of,
    tensors_of,
)
from planner.execute.model.memory_order import order_of

READS = {"__bool__", "item", "__int__", "__float__", "__index__", "tolist", "is_nonzero", "equal", "allclose"}
"""Functions whose answer to Python hangs on the values of tensors."""

_RANDOM = ("rand", "dropout", "bernoulli", "multinomial", "normal_", "uniform_", "exponential_")

_ALREADY_THERE = (type(None), bool, int, float, str, torch.dtype, torch.layout, torch.memory_format)


class Casting(NamedTuple):
    """Autocast at a call."""

    is_around: bool
    """Whether it acts around the call, or begins within it."""
    dtype: torch.dtype | None = None
    """What it computes in around it; None: the device's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """A call of a module or function, with its arguments and its result."""

    call: str | Callable[..., Any]
    """The path of a module, or a function."""
    arguments: Any
    """Positional ones and those by name, with `Ref` in the place of tensors."""
    gives: tuple[int, ...]
    """Numbers of the tensors that it gives, in order."""
    has_grad: bool = True
    """Whether the calls around it were recorded by autograd."""
    casting: Casting | None = None
    """Autocast that acts around it or within it, so that its types are others without data."""
    expects: Any = None
    """Of a guard what it has to answer."""
    is_guard: bool = False
    """Whether it only sees that Python would decide as it did."""
    changes_first: bool = False
    """Whether it changes its first argument and gives that."""
    writes: tuple[str, ...] = ()
    """Paths of the model's buffers that it changes."""

    def __deepcopy__(self, _: Any) -> "RecordedCall":
        return self

    @property
    def takes(self) -> list[int]:
        """Numbers of the tensors that it is given."""
        return refs_of(self.arguments)

    @property
    def name(self) -> str:
        """What it is called in messages."""
        if self.is_own_function:
            return str(self.call.__self__.__name__)  # type: ignore[union-attr]
        return self.call if isinstance(self.call, str) else getattr(self.call, "__name__", repr(self.call))

    @property
    def is_own_function(self) -> bool:
        """Whether it is a `torch.autograd.Function`, with its own backward."""
        kind = getattr(self.call, "__self__", None)
        return isinstance(kind, type) and issubclass(kind, torch.autograd.Function)

    @property
    def is_random(self) -> bool:
        """Whether it draws random numbers, or may."""
        return self.is_own_function or (not isinstance(self.call, str) and any(part in self.name for part in _RANDOM))


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardRecording:
    """All calls of a forward pass."""

    steps: tuple[RecordedCall, ...]
    inputs: tuple[int, ...]
    """Numbers of the tensors of the batch."""
    attributes: Mapping[int, str]
    """Parameters and buffers that are used outside of the modules that stay whole, by number; and their paths."""
    constants: Mapping[int, torch.Tensor]
    """Tensors that come from nowhere else."""
    shapes: Mapping[int, Any]
    """Of every number; lengths are `ScaledLength` where they depend on the sizes."""
    kinds: Mapping[int, tuple[torch.dtype, bool, torch.memory_format]]
    """Of every number its type, whether it has a gradient, and how it lies in memory."""
    output: Any
    """What the model gave, with references."""
    is_traced: bool = False
    """Whether the model was told that it was traced."""
    acting: tuple[str, ...] = ()
    """What acts otherwise backward than forward outside of modules that stay whole, for messages."""

    @property
    def calls(self) -> list[Any]:
        """What is called in which mode, and which tensors the model gives."""
        return [refs_of(self.output), *((step.call, step.has_grad, step.casting) for step in self.steps)]

    def at(self, sizes: Sizes) -> "ForwardRecording":
        """Of a batch with these sizes; its shapes are left out."""
        fixed = functools.partial(
            change_leaves, change=lambda leaf: leaf.at(sizes) if isinstance(leaf, ScaledLength) else leaf
        )
        steps = tuple(replace(step, arguments=fixed(step.arguments)) for step in self.steps)
        return replace(self, steps=steps, shapes={})

    @property
    def written(self) -> set[str]:
        """Paths of buffers that change outside of modules that stay whole."""
        return {path for step in self.steps for path in step.writes}


def _version_of(arguments: Any) -> int | None:
    """What grows with every change in place of the first argument; `float()` of a float32 tensor gives it unchanged."""
    first = arguments[0][0] if arguments[0] else None
    return first._version if isinstance(first, torch.Tensor) and not first.is_inference() else None


def _first_of(tensor: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """A tensor that changed because another did that shares its memory."""
    return tensor


def with_gradient_hook(tensor: torch.Tensor, hook: Callable[..., Any]) -> torch.Tensor:
    """The same tensor; a hook sees its gradient, and may change it."""
    seen = tensor.view_as(tensor)
    if seen.requires_grad:
        seen.register_hook(hook)  # type: ignore[no-untyped-call]
    return seen


@torch.no_grad()
def _assign_buffer(buffer: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """What `self.buffer = value` comes to."""
    return buffer.copy_(value)


def _stays_whole(module: nn.Module) -> bool:
    """Whether a module that is not opened is called as one: torch's own, those with weights or hooks on gradients, and
    those that act otherwise in evaluation; what has none of these is gone through.
    """
    if module._backward_hooks or module._backward_pre_hooks:
        return True
    if type(module).__module__.startswith("torch.nn") or next(module.parameters(), None) is not None:
        return True
    return "training" in inspect.unwrap(type(module).forward).__code__.co_names


@dataclass(kw_only=True)
class _Notes:
    """What is written down while the model runs."""

    root: nn.Module
    opened: set[nn.Module]
    kind: str  # of the device that it runs on
    steps: list[RecordedCall] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)
    attributes: dict[int, str] = field(default_factory=dict)
    constants: dict[int, torch.Tensor] = field(default_factory=dict)
    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    kinds: dict[int, tuple[torch.dtype, bool]] = field(default_factory=dict)
    live: list[torch.Tensor] = field(default_factory=list)
    is_inside: bool = False
    """While a module, or an autograd function, runs that stays whole."""
    given: set[int] | None = None
    """While an autograd function runs, the tensors that it was given."""
    acting: list[str] = field(default_factory=list)
    has_casts: bool = False  # autocast began while the last module ran
    autocasts: list[Any] = field(default_factory=list)  # that have begun
    unsettled: int | None = None
    """The step of an autograd function whose outputs autograd has not taken over yet."""

    def __post_init__(self) -> None:
        self.paths = {module: path for path, module in self.root.named_modules()}
        self.own = {id(tensor): path for path, tensor in self.root.named_parameters()}
        self.buffers = {path for path, _ in self.root.named_buffers()}
        self.own |= {id(tensor): path for path, tensor in self.root.named_buffers()}

    def new(self, tensor: torch.Tensor) -> int:
        """The next number, for this tensor from now on."""
        number = len(self.shapes)
        self.numbers[id(tensor)], self.shapes[number] = number, tuple(tensor.shape)
        self.kinds[number] = tensor.dtype, tensor.requires_grad
        self.live.append(tensor)  # so that no other gets its identity
        return number

    def ref(self, leaf: Any) -> Any:
        """A reference to an argument: the number of a recorded tensor, or the value itself."""
        self.settle()
        if isinstance(leaf, torch.Tensor):
            if id(leaf) not in self.numbers:
                number = self.new(leaf)
                if id(leaf) in self.own:
                    self.attributes[number] = self.own[id(leaf)]
                elif leaf.grad_fn is not None:
                    raise ValueError(
                        f"a tensor {tuple(leaf.shape)}{self._find_keeper(leaf)} is no output of its calls: an "
                        "undivided module or a hook stores it, so its gradient would be lost; let a forward return it"
                    )
                else:
                    self.constants[number] = leaf.detach().clone()
            return Ref(self.numbers[id(leaf)])
        held = HeldState(leaf, has_copies=False).tensors
        if any(key in self.numbers or tensor.requires_grad for key, tensor in held.items()):
            raise ValueError(
                f"a call is given a {type(leaf).__name__} that holds what was computed of the batch, which no layer "
                "can hand on; give such tensors in tuples or dictionaries"
            )
        return OwnDevice() if isinstance(leaf, torch.device) else leaf

    def _find_keeper(self, tensor: torch.Tensor) -> str:
        """The attribute that keeps a tensor, for messages."""
        for part, path in self.paths.items():
            for name, value in vars(part).items():
                if value is tensor:
                    return f" ({path}.{name})"
        return ""

    def call_module(self, module: nn.Module, *, arguments: Any, run: Callable[[], Any]) -> Any:
        """A module that stays whole."""
        path = self.paths[module]
        self._require_own_weights(module, path=path)
        given = change_leaves(arguments, self.ref)
        _require_plain(given, path=path)
        self.has_casts = False
        result = run()
        gives, step = tuple(self.new(tensor) for tensor in tensors_of(result)), self._call(path, given)
        within = Casting(is_around=False) if self.has_casts else None
        self.steps.append(replace(step, gives=gives, casting=step.casting or within))
        return result

    def _call(self, call: str | Callable[..., Any], arguments: Any) -> RecordedCall:
        has_grad, casting = torch.is_grad_enabled(), None
        if torch.is_autocast_enabled(self.kind):
            has_dtype = not self.autocasts or getattr(self.autocasts[-1], "has_dtype", True)
            casting = Casting(is_around=True, dtype=torch.get_autocast_dtype(self.kind) if has_dtype else None)
        return RecordedCall(call=call, arguments=arguments, gives=(), has_grad=has_grad, casting=casting)

    def _require_own_weights(self, module: nn.Module, *, path: str) -> None:
        for name, parameter in module.named_parameters():
            if id(parameter) not in self.own:
                raise ValueError(
                    f"{path} is called with another tensor for its weight {name!r} (torch.func.functional_call, or "
                    "weights that are exchanged); let the module compute it itself (torch.nn.utils.parametrize)"
                )

    def call_own_function(self, kind: Any, *, arguments: Any, run: Callable[[], Any]) -> Any:
        """The forward of an autograd function, with its own backward; autograd itself is off meanwhile."""
        given = change_leaves(arguments, self.ref)
        versions = {id(tensor): tensor._version for tensor in tensors_of(arguments)}
        self.is_inside, self.given = True, set(versions)

        def as_given(leaf: Any) -> Any:
            """Autograd gives a view in the place of an input that comes back unchanged."""
            is_same = isinstance(leaf, torch.Tensor) and versions.get(id(leaf)) == leaf._version
            return leaf.view_as(leaf) if is_same else leaf

        try:
            result = change_leaves(run(), as_given)
        finally:
            self.is_inside, self.given = False, None
        self.acting.append(f"autograd function {kind.__name__!r}")
        own, found = len(self.steps), tensors_of(result)
        step = replace(self._call(kind.apply, given), has_grad=True)
        if found and arguments[0] and found[0] is arguments[0][0]:
            self._changed(found[0], step)
        else:
            self.steps.append(replace(step, gives=tuple(self.new(tensor) for tensor in found)))
        self.unsettled = own
        return result

    def settle(self) -> None:
        """Once the last autograd function has returned, its outputs show whether autograd recorded it."""
        if self.unsettled is None:
            return
        own, self.unsettled = self.unsettled, None
        for number in (each for step in self.steps[own:] for each in step.gives):
            self.kinds[number] = self.kinds[number][0], self.live[number].requires_grad
        has_grad = any(self.kinds[number][1] for number in self.steps[own].gives)
        self.steps[own] = replace(self.steps[own], has_grad=has_grad)

    def require_given(self, tensors: Sequence[torch.Tensor], *, function: str) -> None:
        """Raise ValueError if an autograd function uses what it was not given."""
        for tensor in tensors:
            if self.given is not None and id(tensor) not in self.given and id(tensor) in {*self.own, *self.numbers}:
                what = self.own.get(id(tensor), "a tensor of the forward")
                raise ValueError(
                    f"an autograd function of its own uses {what} ({function}) that is no argument, so its backward "
                    "cannot be traced; pass all tensors as arguments, or put it inside a block"
                )

    def note_assigned(self, before: Mapping[tuple[nn.Module, str], torch.Tensor | None]) -> None:
        """Buffers in whose place there are other tensors now, outside of modules that stay whole."""
        whole = tuple(f"{step.call}." for step in self.steps if isinstance(step.call, str))
        for (module, name), buffer in before.items():
            now, path = module._buffers.get(name), f"{self.paths[module]}.{name}".removeprefix(".")
            if now is buffer or path.startswith(whole):
                continue
            if buffer is None:
                raise ValueError(f"its forward makes buffer {path!r}, which is None before; make it with the model")
            if now is None or id(now) not in self.numbers or now.shape != buffer.shape:
                raise ValueError(
                    f"buffer {path!r} is replaced in the forward by a tensor from outside its calls; compute it in a "
                    "module"
                )
            arguments: Any = (self.ref(buffer), Ref(self.numbers[id(now)])), {}
            maker = next((k for k, step in enumerate(self.steps) if self.numbers[id(now)] in step.gives), -1)
            step = RecordedCall(
                call=_assign_buffer,
                arguments=arguments,
                gives=(self.new(torch.empty(0)),),
                has_grad=False,
                writes=(path,),
            )
            self.steps.insert(maker + 1, step)

    def call_function(self, function: Callable[..., Any], *, arguments: Any, run: Callable[[], Any]) -> Any:
        """A function of torch's."""
        name = getattr(function, "__name__", "")
        given = change_leaves(_with_markers(function, arguments), self.ref)
        if any(isinstance(leaf, torch.Generator) for leaf in leaves_of(given)):
            raise ValueError(f"{name} draws from a torch.Generator of its own, which processes cannot share")
        version = _version_of(arguments)
        result = run()
        step = self._call(function, given)
        if name in READS:
            self.steps.append(replace(step, is_guard=True, expects=result))
        elif name == "register_hook":
            self._hooked(*arguments[0][:2], given=given)
        elif name == "__setitem__":
            self._changed(arguments[0][0], replace(step, changes_first=True))
        elif name == "__set__" and id(arguments[0][0]) in self.own:
            raise ValueError(f"its forward changes weight {self.own[id(arguments[0][0])]!r} (.data); let a block do it")
        elif name == "requires_grad_":
            raise ValueError("an intermediate tensor is made to require a gradient (requires_grad_)")
        elif found := tensors_of(result):
            if arguments[0] and found[0] is arguments[0][0] and step.takes and version != _version_of(arguments):
                self._changed(found[0], step)
            else:
                self.steps.append(replace(step, gives=tuple(self.new(tensor) for tensor in found)))
        return result

    def _hooked(self, tensor: torch.Tensor, hook: Any, *, given: Any) -> None:
        """A hook on a tensor's gradient: the one that takes the tensor from now on takes it through the hook."""
        if id(tensor) in self.own:
            raise ValueError(
                f"its forward registers {describe_hook(hook)} on {self.own[id(tensor)]}; register it once, before"
            )
        self.acting.append(f"{describe_hook(hook)} of a tensor")
        step = RecordedCall(call=with_gradient_hook, arguments=((given[0][0], hook), {}), gives=(self.new(tensor),))
        self.steps.append(step)

    def _changed(self, tensor: torch.Tensor, step: RecordedCall) -> None:
        """In place: whatever shares its memory changed as well."""
        changed = self.new(tensor)
        place = tensor.untyped_storage()._cdata
        sharing = {id(other): other for other in self.live if other.untyped_storage()._cdata == place}
        written = [self.own[each] for each in {**sharing, id(tensor): tensor} if each in self.own]
        if weights := [path for path in written if path not in self.buffers]:
            raise ValueError(f"its forward changes weight {weights[0]!r} in place ({step.name}); let a block do it")
        self.steps.append(replace(step, gives=(changed,), writes=tuple(written)))
        for other in sharing.values():
            if other is not tensor and id(other) in self.numbers:
                before = Ref(self.numbers[id(other)])
                gives = (self.new(other),)
                self.steps.append(RecordedCall(call=_first_of, arguments=((before, Ref(changed)), {}), gives=gives))


def _with_markers(function: Callable[..., Any], arguments: Any) -> Any:
    """A mode of training is the layer's; a tensor made without a device is made on that of the layer."""
    given, named = arguments
    if isinstance(named.get("training"), bool):
        named = named | {"training": OwnMode()}
    if function in _device_constructors() and named.get("device") is None and "device" not in named:
        named = named | {"device": torch.get_default_device()}
    return given, named


def _require_plain(arguments: Any, *, path: str) -> None:
    def check(leaf: Any) -> None:
        if isinstance(leaf, (*_ALREADY_THERE, Ref, OwnDevice, OwnMode)):
            return
        kind = type(leaf).__name__
        if "cache" in kind.lower():
            raise ValueError(f"{path} is given a {kind} that layers write to; call the model without caches")
        held = vars(leaf).values() if hasattr(leaf, "__dict__") else ()
        if any(isinstance(value, torch.Tensor) for value in held):
            raise ValueError(f"{path} is given a {kind} with tensors in it, which cannot be traced")

    change_leaves(arguments, check)


def unpack(given: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional arguments and those by name, of what a mode is told."""
    args = given[0] if given else ()
    return args, (given[1] or {}) if len(given) > 1 else {}


class _Listening(TorchFunctionMode):
    def __init__(self, notes: _Notes) -> None:
        super().__init__()
        self.notes = notes

    def __torch_function__(self, func: Any, types: Any, *given: Any) -> Any:
        args, named = unpack(given)

        def run() -> Any:
            return func(*args, **named)

        if self.notes.is_inside:
            if self.notes.given is not None:
                self.notes.require_given(tensors_of((args, named)), function=getattr(func, "__name__", repr(func)))
            return run()
        if getattr(func, "__name__", "") == "__get__" and getattr(func, "__self__", None) not in _VIEWING:
            if getattr(func, "__self__", None) == torch.Tensor.grad_fn:
                self.notes.acting.append("a node of autograd's graph (grad_fn)")
            return run()  # an attribute: a shape, a type
        return self.notes.call_function(func, arguments=(args, named), run=run)


_VIEWING = [getattr(torch.Tensor, name) for name in ("T", "mT", "H", "mH", "real", "imag", "data")]


@contextmanager
def _calls_told(notes: _Notes) -> Any:
    """Calls of modules that are not opened are told, those of others gone into."""
    original = nn.Module.__call__

    def call(module: nn.Module, *args: Any, **named: Any) -> Any:
        if notes.is_inside or module in notes.opened or module not in notes.paths or not _stays_whole(module):
            return original(module, *args, **named)

        def run() -> Any:
            notes.is_inside = True
            try:
                return original(module, *args, **named)
            finally:
                notes.is_inside = False

        return notes.call_module(module, arguments=(args, named), run=run)

    with mock.patch.object(nn.Module, "__call__", call):
        yield


def _telling(kind: Any, notes: _Notes) -> Any:
    """The forward of a kind of autograd function, told whole."""
    original, has_context = kind.forward, kind.setup_context is Function.setup_context

    @functools.wraps(original)
    def forward(*given: Any, **named: Any) -> Any:
        def run() -> Any:
            return original(*given, **named)

        if notes.is_inside:
            return run()
        return notes.call_own_function(kind, arguments=(given[has_context:], named), run=run)

    return staticmethod(forward)


def _kinds_of(kind: Any) -> Iterator[Any]:
    for each in type.__subclasses__(kind):
        yield each
        yield from _kinds_of(each)


@contextmanager
def _own_functions_told(notes: _Notes) -> Any:
    """Autograd functions are told whole, by their forward: an `apply` that somebody kept cannot be seen since torch
    2.14. A reentrant checkpoint is what it computes, which autograd then records.
    """

    def tell(kind: Any) -> None:
        if kind.__module__ != CheckpointFunction.__module__:
            stack.enter_context(mock.patch.object(kind, "forward", _telling(kind, notes)))

    def make(kind: Any, *given: Any, **named: Any) -> None:
        making(kind, *given, **named)
        if Function in kind.__mro__:
            tell(kind)

    def check_point(*args: Any) -> Any:
        if notes.is_inside:
            return applying(*args)
        notes.acting.append("a reentrant checkpoint (use_reentrant=False is better)")
        return args[0](*args[2:])  # after whether random numbers are kept

    def enter(hooks: Any) -> Any:
        if not notes.is_inside:
            notes.acting.append("hooks on saved tensors, or a checkpoint, whose function runs again in the backward")
        return original(hooks)

    original: Any = saved_tensors_hooks.__enter__
    applying: Any = CheckpointFunction.apply
    making: Any = type(Function).__init__
    with ExitStack() as stack:
        for kind in set(_kinds_of(Function)):
            tell(kind)
        stack.enter_context(mock.patch.object(type(Function), "__init__", make))
        stack.enter_context(mock.patch.object(CheckpointFunction, "apply", check_point))
        stack.enter_context(mock.patch.object(saved_tensors_hooks, "__enter__", enter))
        yield


def _autocast_told(notes: _Notes) -> Any:
    """What autocast computes in, and whether it was told or takes the default of the device that it runs on."""

    def begin(context: Any, device_type: str, dtype: torch.dtype | None = None, *args: Any, **named: Any) -> None:
        outer = notes.autocasts[-1:]  # whose type is the default within it
        context.has_dtype = dtype is not None or any(getattr(each, "has_dtype", True) for each in outer)
        beginning(context, device_type, dtype, *args, **named)

    def cast(context: Any) -> Any:
        notes.has_casts |= context._enabled
        if context._enabled and context.device != notes.kind and not notes.is_inside:
            raise ValueError(f"its forward casts on {context.device} only; write torch.autocast(x.device.type, ...)")
        if context._enabled and context._cache_enabled:
            notes.acting.append("autocast, which casts a weight once for all its uses (not with cache_enabled=False)")
        notes.autocasts.append(context)
        return casting(context)

    def end_cast(context: Any, *error: Any) -> Any:
        notes.autocasts.pop()
        return ending(context, *error)

    beginning: Any = torch.autocast.__init__
    casting: Any = torch.autocast.__enter__
    ending: Any = torch.autocast.__exit__
    return mock.patch.multiple(torch.autocast, __init__=begin, __enter__=cast, __exit__=end_cast)


def record(
    module: nn.Module, arguments: tuple[tuple[Any, ...], dict[str, Any]], *, opened: set[nn.Module]
) -> tuple[ForwardRecording, Any]:
    """Run the module, and write down what it calls; gives what it gave as well.

    `opened`: modules that are gone into; the others with weights stay whole. Raises ValueError for what cannot be
    followed.
    """
    require_no_gradient_hooks(module, opened=opened | {module})
    kind = next((tensor.device.type for tensor in tensors_of(arguments)), "cpu")
    notes = _Notes(root=module, opened=opened | {module}, kind=kind)
    buffers = {(part, n): each for part in module.modules() for n, each in part._buffers.items()}
    versions = {path: each._version for path, each in module.named_parameters()}
    inputs = tuple(notes.new(tensor) for tensor in tensors_of(arguments))
    drawn = HeldState(separate_generators())
    with ExitStack() as stack:
        stack.enter_context(_calls_told(notes))
        stack.enter_context(_own_functions_told(notes))
        stack.enter_context(_autocast_told(notes))
        stack.enter_context(_Listening(notes))
        output = module(*arguments[0], **arguments[1])
    notes.settle()
    notes.note_assigned(buffers)
    changed = [path for path, each in module.named_parameters() if each._version != versions.get(path)]
    notes.acting += [f"weight {path!r}, which its forward changes (let it be a buffer)" for path in changed]
    if not drawn.is_like(drawn.value):
        notes.acting.append("random numbers of Python's or NumPy's that its forward draws")
    recording = ForwardRecording(
        steps=tuple(notes.steps),
        inputs=inputs,
        attributes=notes.attributes,
        constants=notes.constants,
        shapes=notes.shapes,
        kinds={number: (*kind, order_of(notes.live[number])) for number, kind in notes.kinds.items()},
        output=change_leaves(output, notes.ref),
        acting=tuple(dict.fromkeys(notes.acting)),
    )
    return recording, output


def merge(recordings: Sequence[ForwardRecording], *, base: Sizes) -> ForwardRecording:
    """One recording for all sizes, of as many as `merge_trees` wants; raises ValueError where they went other ways."""
    first = recordings[0]
    for each in recordings[1:]:
        if first.calls != each.calls:
            raise ValueError("the model calls other functions for other numbers of samples or lengths")
        if first.attributes != each.attributes:
            raise ValueError("the model uses other weights for other numbers of samples or lengths")
        for number, tensor in first.constants.items():
            if not torch.equal(tensor, each.constants[number]):
                raise ValueError("the model makes tensors that cannot be traced")
    steps = []
    for alike in zip(*(each.steps for each in recordings), strict=True):
        one = alike[0]
        if one.is_guard and any(one.expects != other.expects for other in alike):
            raise ValueError(f"the model branches on the values of its samples ({one.name})")
        steps.append(replace(one, arguments=merge_trees([each.arguments for each in alike], base=base)))
    shapes = {n: merge_trees([each.shapes[n] for each in recordings], base=base) for n in first.shapes}
    return replace(first, steps=tuple(steps), shapes=shapes)
