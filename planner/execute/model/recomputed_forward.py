"""A forward that saves nothing for its backward but what it was given, and runs once more there.

As torch's `checkpoint(use_reentrant=False)` does it, stopping once everything that was saved is there again, in half of
the host's time: a layer that takes a host 0.06 ms forward and 0.07 back takes 0.09 and 0.19 so, with torch's 0.18 and
0.32. That is what short layers of a card wait for.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from planner.execute.training import as_tuple


class _EndError(Exception):
    """All that the backward needs has been computed again."""


class _Forgotten:
    """What one forward saved: first shapes and types alone, tensors once the backward asks for the first of them."""

    __slots__ = ("arguments", "found", "given", "name", "run", "seen")

    def __init__(self, run: Callable[..., Any], arguments: tuple[torch.Tensor, ...], *, name: str) -> None:
        self.run, self.arguments, self.name = run, arguments, name
        self.given: list[torch.Tensor] | None = None
        """Sums of what the first run gave, where another one is to be held against it."""
        self.seen: list[tuple[torch.Size, torch.dtype]] = []
        self.found: list[torch.Tensor | None] = []

    def pack(self, tensor: torch.Tensor) -> int:
        """Its number in place of a tensor."""
        seen = self.seen
        if self.found:  # a backward inside the forward asked for what was saved until then
            self.found = []
        seen.append((tensor.shape, tensor.dtype))
        return len(seen) - 1

    def unpack(self, number: int) -> torch.Tensor:
        """The tensor with a number, which is forgotten again: asked for twice, it is computed twice."""
        if number >= len(self.found) or self.found[number] is None:
            self._run_again()
        tensor, self.found[number] = self.found[number], None
        assert tensor is not None
        return tensor

    def _run_again(self) -> None:
        """Raises RuntimeError if it saves anything else than before."""
        found, count = list[torch.Tensor | None](), len(self.seen)

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            tensor = tensor.detach()
            found.append(tensor)
            if len(found) >= count and self.given is None:
                raise _EndError
            return tensor

        try:
            with torch.enable_grad(), saved_tensors_hooks(keep, _as_it_is):
                result = self.run(*self.arguments)
            self._require_same(result)
        except _EndError:
            pass
        again = [(tensor.shape, tensor.dtype) for tensor in found if tensor is not None]
        if again != self.seen:
            place = next((n for n, pair in enumerate(zip(again, self.seen, strict=False)) if pair[0] != pair[1]), None)
            what = f"{len(again)} tensors, {count} before" if place is None else f"another tensor as number {place}"
            raise RuntimeError(
                f"{self.name} that is recomputed saves {what}; let it compute the same each time it is given the same, "
                "or plan without recomputing it"
            )
        self.found = found

    def _require_same(self, result: Any) -> None:
        """Raise RuntimeError if a layer gives anything else the second time: it took what it has from elsewhere."""
        given, self.given = self.given, None
        if text := tell_difference(given or [], result):
            raise RuntimeError(
                f"{self.name} gives {text} when it is recomputed: something outside of it changed; keep that in its "
                "buffers or attributes, or plan without recomputing it"
            )


_ROUNDING = 1e-5
"""Of the sum of magnitudes: accelerators add in any order."""


def tell_difference(given: Sequence[torch.Tensor], result: Any) -> str:
    """What a layer gives other than before, of which the `sums_of` are given; or nothing."""
    for one, other in zip(given, sums_of(result) if given else (), strict=True):
        if abs(one[0] - other[0]) > _ROUNDING * one[1]:  # nan is like nan
            return f"{float(other[0]):.6g} instead of {float(one[0]):.6g} (sum of a result)"
    return ""


def sums_of(result: Any) -> list[torch.Tensor]:
    """Of every tensor the sum of every other element, and that of all magnitudes."""
    found = []
    for tensor in as_tuple(result):
        flat = getattr(tensor, "_local_tensor", tensor).detach().flatten()
        flat = flat if flat.is_floating_point() else flat.double()
        magnitudes = torch.linalg.vector_norm(flat, 1, dtype=torch.float64)
        found.append(torch.stack([flat[::2].sum(dtype=torch.float64), magnitudes]))
    return found


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    """For a backward inside the forward, which runs again, too."""
    return tensor


def run_recomputed(
    run: Callable[..., Any], *arguments: torch.Tensor, name: str = "a layer", is_compared: bool = False
) -> Any:
    """The result of a function of tensors, which its backward computes again.

    `is_compared`: its backward raises RuntimeError, with its `name`, where the result is another one then.

    Generators are as they come: `run` gives them the same numbers, if it draws. Under autocast torch's own takes care
    of the types.
    """
    device = arguments[0].device.type
    if torch.is_autocast_enabled(device) or torch.is_autocast_enabled("cpu"):
        return checkpoint(run, *arguments, use_reentrant=False, preserve_rng_state=False)
    forgotten = _Forgotten(run, arguments, name=name)
    with saved_tensors_hooks(forgotten.pack, forgotten.unpack):
        result = run(*arguments)
    forgotten.given = sums_of(result) if is_compared else None
    return result
