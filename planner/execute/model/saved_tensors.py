"""What a forward saves for its backward, as tensors that may travel; and a graph whose saved tensors are given to it.

An autograd graph cannot be sent. But what it computes with can: `SavedTensors` notes every tensor that a forward saves,
parameters by name, and `BackwardGraph` is the graph of some other forward of the same layers, which runs its backward
with the tensors that it is handed, as often as it is asked to.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks

from planner.execute.training import Tensors, as_tuple


class _Place(NamedTuple):
    """Where a saved tensor is: the `number`-th that is kept, or a view of the `number`-th parameter."""

    number: int
    view: tuple[tuple[int, ...], tuple[int, ...], int] | None = None
    """Of a parameter: size, stride and offset."""


class SavedTensors:
    """The tensors that one forward saves, each once; a parameter, or a view of one, is known by its number."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.tensors: list[torch.Tensor] = []
        """All that are no parameters, in the order in which they were saved first."""
        self.places: list[_Place] = []
        """Of everything that was saved, in order."""
        self._parameters = {each.untyped_storage().data_ptr(): k for k, each in enumerate(parameters) if each.numel()}
        self._known: dict[Any, int] = {}

    @contextmanager
    def noting(self, unpack: Callable[[_Place], torch.Tensor] | None = None) -> Iterator[None]:
        """Meanwhile note what is saved; `unpack` gives it back to a backward, if there will be one."""
        with saved_tensors_hooks(self._note, unpack or _no_backward):
            yield

    def _note(self, tensor: torch.Tensor) -> _Place:
        place = self._place(tensor)
        self.places.append(place)
        return place

    def _place(self, tensor: torch.Tensor) -> _Place:
        address = tensor.untyped_storage().data_ptr()
        if address in self._parameters:
            view = tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())
            return _Place(self._parameters[address], view)
        key = tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype
        if key not in self._known:
            self._known[key] = len(self.tensors)
            self.tensors.append(tensor.detach())
        return _Place(self._known[key])


def _no_backward(place: _Place) -> torch.Tensor:
    raise RuntimeError(f"a backward in a forward asks for tensor {place.number}, which goes elsewhere; leave that out")


class BackwardGraph:
    """The graph of one forward, without what it saved."""

    def __init__(
        self, module: nn.Module, inputs: Tensors, *, wants_grad: Sequence[bool], parameters: Sequence[nn.Parameter]
    ) -> None:
        """`inputs`: to be run on now; `wants_grad`: which of them have gradients; `parameters`: all of the module."""
        self.parameters = parameters
        self._given: Sequence[torch.Tensor] = ()
        saved = SavedTensors(parameters)
        leaves = [tensor.detach().requires_grad_(wants) for tensor, wants in zip(inputs, wants_grad, strict=True)]
        with torch.enable_grad(), saved.noting(self._unpack):
            outputs = as_tuple(module(*leaves))
        self.leaves = leaves
        self._roots = [get_gradient_edge(each) if each.requires_grad else None for each in outputs]
        self.places = saved.places
        self.likes = [torch.empty_like(tensor, device="meta") for tensor in saved.tensors]
        """Of the tensors that it is to be handed."""
        self.outputs = [torch.empty_like(tensor, device="meta", requires_grad=False) for tensor in outputs]

    def _unpack(self, place: _Place) -> torch.Tensor:
        if place.view is None:
            if not self._given:
                _no_backward(place)
            return self._given[place.number]
        size, stride, offset = place.view
        return self.parameters[place.number].detach().as_strided(size, stride, offset)

    def run(self, saved: Sequence[torch.Tensor], grads: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """The gradients of the inputs. Parameters' gradients are added up where they lie.

        `saved`: like `likes`; `grads`: of the outputs, None where nobody wants anything of one.
        """
        self._given = saved
        pairs = [
            (root, grad) for root, grad in zip(self._roots, grads, strict=True) if root is not None and grad is not None
        ]
        torch.autograd.backward([root for root, _ in pairs], [grad for _, grad in pairs], retain_graph=True)
        self._given = ()
        found = [leaf.grad for leaf in self.leaves]
        for leaf in self.leaves:
            leaf.grad = None
        return found
