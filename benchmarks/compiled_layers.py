"""What the two gradients of a compiled layer cost apart: `python -m benchmarks.compiled_layers -o FILE` (2 minutes).

Blocks of transformers, as they are and compiled by inductor, on one thread, in its processor time.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from benchmarks.norm_weights import BLOCKS, REPETITIONS, SAMPLES, TOKENS, Block, median_ms
from benchmarks.report import Table, make_parser

HEADER = (
    "block and width", "compiled", "forward ms", "whole backward ms", "of inputs alone ms", "of weights alone ms",
    "apart / whole",
)  # fmt: skip


def forward_ms(block: Block, module: nn.Module) -> float:
    """Of a forward that a backward may follow."""

    def run() -> Callable[[], Any]:
        x = block.inputs.requires_grad_()
        return lambda: block.call(module, x)

    return median_ms(run)


def gradients_ms(block: Block, module: nn.Module, *, wants: Sequence[str]) -> float:
    """Of a backward that is asked for the gradients of the `inputs`, the `weights`, or both, and of nothing else."""
    weights = [parameter for parameter in module.parameters() if parameter.requires_grad]

    def run() -> Callable[[], Any]:
        x = block.inputs.requires_grad_()
        y = block.call(module, x)
        wanted = [*([x] if "inputs" in wants else []), *(weights if "weights" in wants else [])]
        grad = torch.ones_like(y)
        return lambda: torch.autograd.grad(y, wanted, grad)

    return median_ms(run)


def rows_of(block: Block) -> list[list[str]]:
    """A block as it is, and compiled in place as docs/reference/executor.md says."""
    rows = []
    for is_compiled in (False, True):
        torch.manual_seed(0)
        module = block.make()
        if is_compiled:
            module.compile()
        whole, inputs, weights = (
            gradients_ms(block, module, wants=wants) for wants in (("inputs", "weights"), ("inputs",), ("weights",))
        )
        figures = (forward_ms(block, module), whole, inputs, weights)
        rows.append(
            [
                block.name,
                "yes" if is_compiled else "no",
                *(f"{each:.1f}" for each in figures),
                f"{(inputs + weights) / whole:.2f}",
            ]
        )
    return rows


PREFACE = (
    "# Compiled layers, and their gradients apart",
    "",
    f"Blocks of transformers, {SAMPLES} samples of {TOKENS} tokens, float32, one thread, milliseconds of its",
    f"processor time, medians of {REPETITIONS - 1}; `layer.compile()` with inductor. *Apart / whole*: a backward that",
    "is asked for the gradient of the inputs alone and one that is asked for those of the weights alone, over one",
    "asked for both. At 2 each of them is a whole backward: W would cost one more. What is not compiled is below that,",
    "since only what both share is computed twice; the executor's own split keeps that from I to W.",
    "",
)


def main() -> None:
    """Print the table, and write it where `-o` says."""
    given = make_parser(__doc__).parse_args()
    torch.set_num_threads(1)
    table = Table(preface=PREFACE, header=HEADER, output=given.output)
    for block in BLOCKS[:1] if given.quick else BLOCKS:
        for row in rows_of(block):
            table.add(row)
    table.close()


if __name__ == "__main__":
    main()
