"""A layer out of a model: the modules that it holds, under the paths that they had, and the calls around them."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from operator import attrgetter
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from planner.execute.model.cut.hooks import carry_weight_hooks, find_derived, find_strangers
from planner.execute.model.cut.recording import RecordedCall, with_gradient_hook
from planner.execute.model.cut.trees import (
    OwnDevice,
    OwnMode,
    Ref,
    ScaledLength,
    Sizes,
    change_leaves,
    leaves_of,
    tensors_of,
)

_AS_IT_IS, _LEAF, _DECIDED_LATER = nullcontext(), object(), (ScaledLength, OwnDevice, OwnMode)
_FEWEST_TOKENS = 2
"""The least of a length that differs: of 1, dimensions are expanded and masks left out."""


class CutLayer(nn.Module):
    """Takes tensors as they arrive, goes through its steps, gives what later layers take."""

    def __init__(
        self,
        steps: Sequence[RecordedCall],
        *,
        arrives: Sequence[int],
        leaves: Sequence[int],
        attributes: Mapping[int, str],
        sizes: Mapping[int, tuple[int, int, ScaledLength]],
        num_constant: int,
        told: Sequence[tuple[Any, torch.dtype, bool, torch.memory_format]],
    ) -> None:
        """`attributes`: of tensors that the steps take, the paths; `sizes`: which arriving tensor tells a size, and by
        which length; `num_constant`: steps at the beginning whose results are kept; `told`: of each tensor that leaves
        its shape, its type, whether it has a gradient, and how it lies in memory.
        """
        super().__init__()
        self._told = tuple(told)
        self.cut_changed: tuple[int, ...] = ()
        """Places of arriving tensors that it changes in place: it gets copies of them."""
        self.was_training = True
        """Whether the model was being trained when it was cut: then its buffers change in training only."""
        self._num_constant, self._kept = num_constant, dict[str, Any]()
        self._steps, self._arrives, self._leaves = tuple(steps), tuple(arrives), tuple(leaves)
        self._flat = tuple(_is_flat(step.arguments) for step in steps)
        """Whether a step's arguments can be given without a walk through trees, which takes as long as a layer."""
        self._plain = tuple(map(_plain_call, steps))
        self._casts = any(step.casting for step in steps)
        self._has_sizes = any(isinstance(leaf, ScaledLength) for step in steps for leaf in leaves_of(step.arguments))
        self._attributes, self._tellers = dict(attributes), dict(sizes)
        self.cut_moving: dict[int, str] = {}
        """Numbers that hang on a buffer alone which the forward changes, and its path."""
        self.cut_batch: tuple[Any, ...] = ()
        """Shapes of the model's inputs."""
        self.kept_only: tuple[str, ...] = ()
        """Paths of what it only keeps: no call of the model uses it, so that no update may change it."""
        self._last_use = self._find_last_uses()
        self._only = self._find_only()
        self.cut_text = "\n".join(self._render())

    def __deepcopy__(self, memo: dict[int, Any]) -> "CutLayer":
        """Without what was made for one device."""
        kept, self._kept = self._kept, {}
        try:
            made = CutLayer.__new__(CutLayer)
            memo[id(self)] = made
            made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        finally:
            self._kept = kept
        return made

    def forward(self, *arrived: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """The tensors that leave, alone if it is only one; those that only pass through as views of themselves.

        Without data they are what they were when the model was cut, where a module cannot do without (experts that look
        up who is sent to them, kernels with no such form): unless there are batch norms, which have to be found. They
        lie in memory as they did then: convolutions without data do not know their kernel's order.
        """
        if not arrived[0].is_meta:
            return self._run(arrived)
        try:
            found = self._run([each.float() if self._casts and each.is_floating_point() else each for each in arrived])
        except (RuntimeError, TypeError, ValueError):
            if any(isinstance(part, _BatchNorm) for part in self.modules()):
                raise
            return self._as_told(arrived)
        if self._casts:
            return self._as_told(arrived)  # there is no autocast without data
        pairs = zip(tensors_of(found), self._told, strict=True)
        leaving = [tensor.contiguous(memory_format=order) for tensor, (*_, order) in pairs]
        return leaving[0] if len(leaving) == 1 else tuple(leaving)

    @property
    def cut_only(self) -> nn.Module | None:
        """The module that is all there is, if one is: what arrives goes in, what it gives leaves."""
        return self._submodule(self._only) if self._only and not self.cut_changed else None

    @property
    def cut_steps(self) -> tuple[RecordedCall, ...]:
        """The calls, in order."""
        return self._steps

    @property
    def tensor_hooks(self) -> list[Any]:
        """Hooks on gradients of tensors that its steps make or take."""
        return [step.arguments[0][1] for step in self._steps if step.call is with_gradient_hook]

    def _sizes(self, arrived: Sequence[torch.Tensor]) -> Sizes:
        """Those that nothing here depends on are 0."""
        sizes = [0] * (1 + max(self._tellers, default=0))
        for size, (place, dimension, length) in self._tellers.items():
            sizes[size] = length.solve(arrived[place].shape[dimension])
        return tuple(sizes)

    def find_misfit(self, shapes: Sequence[Sequence[int]]) -> str:
        """Why the model cannot take inputs of these shapes, as it was cut; or nothing."""
        sizes: dict[int, int] = {}
        for lengths, known in zip(shapes, self.cut_batch, strict=True):
            for number, length in zip(lengths, known, strict=True):
                if not isinstance(length, ScaledLength):
                    if number != length:
                        return f"a length of {number} was {length} in all microbatches of iteration 0"
                    continue
                (size,) = length.needs
                if sizes.setdefault(size, length.solve(number)) != length.solve(number):
                    return f"lengths of {number} and {sizes[size]} were the same in all microbatches of iteration 0"
                if size and number < _FEWEST_TOKENS:
                    return f"a length of {number} is below {_FEWEST_TOKENS}, which models may treat otherwise"
        return ""

    def _as_told(self, arrived: Sequence[torch.Tensor]) -> torch.Tensor | tuple[torch.Tensor, ...]:
        sizes = self._sizes(arrived)
        leaving = []
        for shape, dtype, has_grad, order in self._told:
            lengths = [n.at(sizes) if isinstance(n, ScaledLength) else n for n in shape]
            made = torch.empty(lengths, dtype=dtype, device="meta", memory_format=order)
            leaving.append(made.requires_grad_(has_grad))
        return leaving[0] if len(leaving) == 1 else tuple(leaving)

    def _run(self, arrived: Sequence[torch.Tensor]) -> torch.Tensor | tuple[torch.Tensor, ...]:
        own = (tensor.clone() if place in self.cut_changed else tensor for place, tensor in enumerate(arrived))
        values: dict[int, torch.Tensor] = dict(zip(self._arrives, own, strict=True))
        sizes, device = self._sizes(arrived) if self._has_sizes or self._num_constant else (), arrived[0].device
        for number, path in self._attributes.items():
            values[number] = self.get_parameter_or_buffer(path)
        passing = {number: values[number] for number in self._leaves if number in values}
        self._add_constants(values, sizes=sizes, device=device)
        for number in range(len(self._steps) - self._num_constant):
            self._take(number + self._num_constant, values, sizes=sizes, device=device)
            for dead in self._last_use.get(number, ()):
                values.pop(dead, None)
        leaving = tuple(
            tensor.view_as(tensor) if number in passing and tensor is passing[number] else tensor
            for number, tensor in ((number, values[number]) for number in self._leaves)
        )
        return leaving[0] if len(leaving) == 1 else leaving

    def _add_constants(self, values: dict[int, torch.Tensor], *, sizes: Sizes, device: torch.device) -> None:
        """What is the same for every batch of the same sizes is made once, and again where it was changed in place."""
        if not self._num_constant:
            return
        buffers = {number: values[number] for number in self._attributes}
        key = sizes, device, _versions(buffers)
        if self._kept.get("key") != key or self._kept["versions"] != _versions(self._kept["made"]):
            made = dict(buffers)
            for number in range(self._num_constant):
                self._take(number, made, sizes=sizes, device=device)
            later = {number for step in self._steps[self._num_constant :] for number in step.takes} | {*self._leaves}
            made = {number: tensor for number, tensor in made.items() if number in later - {*buffers}}
            self._kept = {"key": key, "made": made, "versions": _versions(made)}
        values.update(self._kept["made"])

    def get_parameter_or_buffer(self, path: str) -> torch.Tensor:
        """By its path in the model."""
        owner, _, name = path.rpartition(".")
        found: torch.Tensor = getattr(self.get_submodule(owner), name)
        return found

    def _submodule(self, path: tuple[str, ...]) -> Any:
        module: Any = self
        for name in path:
            module = module._modules[name]  # an attribute of a module takes ten times as long
        return module

    def _take(self, number: int, values: dict[int, torch.Tensor], *, sizes: Sizes, device: torch.device) -> None:
        step, plain = self._steps[number], self._plain[number]
        if plain is not None:
            path, places, names = plain
            call: Any = self._submodule(path) if path else step.call
            given = {key: _at(each, values) for key, each in names}
            self._put(step, call(*(_at(each, values) for each in places), **given), values=values)
            return

        def actual(leaf: Any) -> Any:
            if isinstance(leaf, Ref):
                return values[leaf.number]
            if isinstance(leaf, ScaledLength):
                return leaf.at(sizes)
            if isinstance(leaf, OwnDevice):
                return device
            return self.training if isinstance(leaf, OwnMode) else leaf

        if self._flat[number]:
            args = tuple(map(actual, step.arguments[0]))
            named = {name: actual(leaf) for name, leaf in step.arguments[1].items()}
        else:
            args, named = change_leaves(step.arguments, actual)
        function = attrgetter(step.call)(self) if isinstance(step.call, str) else step.call
        if step.is_guard and device.type == "meta":
            return
        if step.writes and self.was_training and not self.training:
            values.update(zip(step.gives, args[:1], strict=True))
            return
        around: Any = _AS_IT_IS
        if step.casting and step.casting.is_around and device.type != "meta":
            around = torch.autocast(device.type, step.casting.dtype)
        with _AS_IT_IS if step.has_grad else torch.no_grad(), around:
            result = function(*args, **named)
        if step.is_guard:
            if result != step.expects:
                by, remedy = self._why_it_branches(number)
                told = f"{step.name} gave {step.expects} when it was cut, and gives {result} now"
                raise ValueError(f"the model branches on {by}: {told}; {remedy}")
            return
        self._put(step, args[0] if step.changes_first else result, values=values)

    def _why_it_branches(self, number: int) -> tuple[str, str]:
        """By what the step that looks at a value decides, and what to do."""
        seen, chance = set(self._steps[number].takes), ""
        for step in reversed(self._steps[:number]):
            if seen.intersection(step.gives):
                seen.update(step.takes)
                chance = step.name if step.is_random else chance
        held = [path for tensor, path in (self._attributes | self.cut_moving).items() if tensor in seen]
        if not seen & {*self._arrives} <= {*self.cut_moving} or not (chance or held):
            return "the values of its samples", "give it a mask of full size, or samples of one kind"
        if chance:
            return f"random numbers that it draws ({chance})", "set the chance to drop layers to 0 (layerdrop)"
        return f"{held[0]!r}, which changes", "compute both ways, and choose by torch.where"

    def _put(self, step: RecordedCall, result: Any, *, values: dict[int, torch.Tensor]) -> None:
        made = [result] if isinstance(result, torch.Tensor) else tensors_of(result)
        values.update(zip(step.gives, made, strict=True))

    def _find_only(self) -> tuple[str, ...]:
        """The path of the module that is all there is."""
        if len(self._steps) != 1 or self._num_constant or self._attributes or self._plain[0] is None:
            return ()
        path, args, named = self._plain[0]
        takes = tuple(each.number if type(each) is Ref else None for each in args)
        is_all = not named and takes == self._arrives and self._steps[0].gives == self._leaves
        return path if is_all and len(self._leaves) == 1 and self._leaves[0] not in self._arrives else ()

    def _find_last_uses(self) -> dict[int, list[int]]:
        last: dict[int, int] = {}
        for number, step in enumerate(self._steps[self._num_constant :]):
            last |= dict.fromkeys((*step.takes, *step.gives), number)
        uses: dict[int, list[int]] = {}
        for tensor, number in last.items():
            if tensor not in self._leaves:
                uses.setdefault(number, []).append(tensor)
        return uses

    def _render(self) -> Iterator[str]:
        """The steps as text that is the same for layers which are alike."""
        names: dict[Any, int] = {}
        for number in (*self._arrives, *self._attributes):
            names.setdefault(number, len(names))
        for step in self._steps:
            for number in step.gives:
                names.setdefault(number, len(names))
            call = "module" if isinstance(step.call, str) else step.name
            given = change_leaves(
                step.arguments, lambda leaf: names.get(leaf.number) if isinstance(leaf, Ref) else _plain(leaf)
            )
            yield f"{call}{given} {[names[n] for n in step.gives]} {step.has_grad} {step.casting}"
        yield f"takes {len(self._arrives)}, gives {[names[number] for number in self._leaves]}"


def _plain_call(step: RecordedCall) -> tuple[tuple[str, ...], tuple[Any, ...], tuple[tuple[str, Any], ...]] | None:
    """Path of a module (empty for a function) and arguments, where nothing has to be decided to call it."""
    args, named = step.arguments
    is_cast = step.casting is not None and step.casting.is_around
    is_special = step.is_guard or step.writes or step.changes_first or is_cast or not step.has_grad
    leaves = (*args, *named.values())
    if is_special or not _is_flat(step.arguments) or any(isinstance(leaf, _DECIDED_LATER) for leaf in leaves):
        return None
    path = tuple(step.call.split(".")) if isinstance(step.call, str) else ()
    return path, tuple(args), tuple(named.items())


def _at(leaf: Any, values: Mapping[int, torch.Tensor]) -> Any:
    return values[leaf.number] if type(leaf) is Ref else leaf


def _is_flat(arguments: Any) -> bool:
    """Whether every argument of a call, by position or by name, is a leaf."""
    args, named = arguments
    return all(change_leaves(each, lambda _: _LEAF) is _LEAF for each in (*args, *named.values()))


def _versions(tensors: Mapping[int, torch.Tensor]) -> tuple[int, ...]:
    return tuple(tensor._version for tensor in tensors.values())


def _plain(leaf: Any) -> str:
    return repr(leaf) if isinstance(leaf, bool | int | float | str | ScaledLength | None) else type(leaf).__name__


def copy_part(part: nn.Module, *, values: Mapping[int, torch.Tensor] | None) -> nn.Module:
    """A copy with weights and buffers of its own; `values`: of those that have others, by identity. None: without any
    values, on the meta device.
    """
    memo: dict[int, Any] = {id(owner): owner for owner in find_strangers(part)}
    for derived in find_derived(part):
        memo[id(derived)] = torch.empty_like(derived, device="meta" if values is None else None, requires_grad=False)
    memo |= {} if values is None else values
    for parameter in part.parameters() if values is None else ():
        empty = torch.empty_like(parameter, device="meta")
        memo[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
    for buffer in part.buffers() if values is None else ():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    made = copy.deepcopy(part, memo)
    unused = set(getattr(part, "kept_only", ()))
    for path, parameter in made.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and path not in unused)
    carry_weight_hooks(part, made)
    return made
