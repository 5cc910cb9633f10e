"""What a compiled layer gains, and what its two gradients cost apart: why its weight gradients do not wait for W.

`python -m benchmarks.compiled_layers -o docs/benchmarks/compiled_layers.md`. Blocks of transformers, on one thread, in
its processor time. Needs a C++ compiler.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.norm_weights import BLOCKS, REPETITIONS, SAMPLES, TOKENS, Block, median_ms
from benchmarks.report import describe_commit, describe_machine, line
from planner.execute.deferred import make_deferring


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Of one block, in milliseconds."""

    forward: float
    backward: float
    """Whole."""
    input_grad: float
    """With the weight gradients left to W."""
    weight_grad: float


def time_apart(block: Block, module: nn.Module, *, is_compiled: bool) -> Times:
    """A plain block puts its weight gradients off as the executor does; a compiled one is asked for either."""
    x = block.inputs

    def forward() -> Callable[[], Any]:
        given = x.clone().requires_grad_()
        return lambda: block.call(module, given)

    def backward() -> Callable[[], Any]:
        y = block.call(module, x.clone().requires_grad_())
        return lambda: y.backward(torch.ones_like(y))

    whole = Times(forward=median_ms(forward), backward=median_ms(backward), input_grad=0.0, weight_grad=0.0)
    input_grad, weight_grad = _of_compiled(block, module) if is_compiled else _of_plain(block, module)
    return Times(
        forward=whole.forward,
        backward=whole.backward,
        input_grad=median_ms(input_grad),
        weight_grad=median_ms(weight_grad),
    )


def _of_plain(block: Block, module: nn.Module) -> tuple[Callable[[], Callable[[], Any]], ...]:
    store, x = make_deferring(module), block.inputs

    def input_grad() -> Callable[[], Any]:
        store.take_waiting()
        store.is_deferring = True
        y = block.call(module, x.clone().requires_grad_())
        return lambda: y.backward(torch.ones_like(y))

    def weight_grad() -> Callable[[], Any]:
        input_grad()()
        return store.take()

    return input_grad, weight_grad


def _of_compiled(block: Block, module: nn.Module) -> tuple[Callable[[], Callable[[], Any]], ...]:
    weights, x = list(module.parameters()), block.inputs

    def input_grad() -> Callable[[], Any]:
        given = x.clone().requires_grad_()
        y = block.call(module, given)
        return lambda: torch.autograd.grad(y, [given], torch.ones_like(y), retain_graph=True)

    def weight_grad() -> Callable[[], Any]:
        given = x.clone().requires_grad_()
        y = block.call(module, given)
        torch.autograd.grad(y, [given], torch.ones_like(y), retain_graph=True)
        return lambda: torch.autograd.grad(y, weights, torch.ones_like(y))

    return input_grad, weight_grad


def make_row(block: Block) -> str:
    """Both ways, of the same weights in one process."""
    module = block.make()
    plain = time_apart(block, module, is_compiled=False)
    other = block.make()
    other.load_state_dict(module.state_dict())
    other.compile()
    compiled = time_apart(block, other, is_compiled=True)
    cells = [f"{each:.1f}" for times in (plain, compiled) for each in (times.forward, times.backward)]
    for times in (plain, compiled):
        cells += [f"{each / times.backward:.2f}" for each in (times.input_grad, times.weight_grad)]
    gain = (compiled.forward + compiled.backward) / (plain.forward + plain.backward)
    return line((block.name, *cells, f"{gain:.2f}"))


HEAD = """# Compiled layers, whose weight gradients do not wait

Blocks of transformers as they are and by `compile()` (inductor), {samples} samples of {tokens} tokens, float32, one
thread, in milliseconds of its processor time, medians of {repetitions}; the ratios are within one process. Made by
`python -m benchmarks.compiled_layers -o docs/benchmarks/compiled_layers.md`.

Machine: {machine}. Commit: {commit}.

I and W are parts of the block's own whole backward B. A plain block puts its weight gradients off as the executor does.
A compiled one is asked for the gradient of its input, then for those of its weights (buffers not donated): its backward
is one piece of code that computes all of them whichever is asked for.

"""

COLUMNS = ("block and width", "F", "B", "F compiled", "B compiled", "I / B", "W / B", "I / B compiled")
COLUMNS += ("W / B compiled", "F + B compiled / plain")


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch._functorch.config.donated_buffer = False  # a graph that is walked twice must keep what it saved
    about = {"samples": SAMPLES, "tokens": TOKENS, "repetitions": REPETITIONS - 1}
    lines = [HEAD.format(machine=describe_machine(), commit=describe_commit(), **about).rstrip("\n") + "\n"]
    lines += [line(COLUMNS), "|" + " --- |" * len(COLUMNS)]
    for block in BLOCKS:
        lines.append(make_row(block))
        print(lines[-1], flush=True)
    if options.output is not None:
        options.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
