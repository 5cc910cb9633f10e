"""What it would gain, and cost, if the weight gradients of norms waited for W as well.

`python -m benchmarks.norm_weights -o docs/benchmarks/norm_weights.md`. Blocks of transformers, on one thread, in its
processor time.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.report import describe_commit, describe_machine, line
from planner.execute.model.deferred import make_deferring

TOKENS, SAMPLES, REPETITIONS = 512, 2, 8
"""Tokens of a sample; samples; and how often each is timed: the first is not counted, of the others the median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block, how it is called, and its norms."""

    name: str
    width: int
    make: Callable[[], nn.Module]
    call: Callable[[nn.Module, torch.Tensor], torch.Tensor]

    @property
    def inputs(self) -> torch.Tensor:
        """Noise."""
        return torch.randn(SAMPLES, TOKENS, self.width)

    def norms(self, block: nn.Module) -> list[nn.Module]:
        """Modules with a weight of one dimension that are no linear layer."""
        return [part for part in block.modules() if type(part).__name__.endswith("Norm") and hasattr(part, "weight")]


def _first(output: Any) -> torch.Tensor:
    return output if isinstance(output, torch.Tensor) else output[0]


def _gpt2(width: int) -> nn.Module:
    from transformers import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block

    more = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "attn_implementation": "sdpa"}
    return GPT2Block(GPT2Config(n_embd=width, n_head=width // 64, **more), layer_idx=0)


def _llama(width: int) -> nn.Module:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    more = {"intermediate_size": 4 * width, "attn_implementation": "sdpa"}
    return LlamaDecoderLayer(LlamaConfig(hidden_size=width, num_attention_heads=width // 64, **more), layer_idx=0)


def _call_llama(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    angles = torch.ones(1, TOKENS, 64)
    return _first(block(x, position_embeddings=(angles.cos(), angles.sin())))


BLOCKS = [
    Block(name=f"{name} {width}", width=width, make=lambda make=make, width=width: make(width), call=call)
    for name, make, call in (("GPT-2", _gpt2, lambda block, x: _first(block(x))), ("Llama", _llama, _call_llama))
    for width in (256, 768)
]


def median_ms(run: Callable[[], Callable[[], Any]]) -> float:
    """Of what `run` gives, made anew each time."""
    taken = []
    for _ in range(REPETITIONS):
        timed = run()
        begin = time.thread_time_ns()
        timed()
        taken.append(time.thread_time_ns() - begin)
    return statistics.median(taken[1:]) / 1e6


def backward_ms(call: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> float:
    """Of a whole backward."""

    def run() -> Callable[[], Any]:
        y = call(x.clone().requires_grad_())
        grad = torch.ones_like(y)
        return lambda: y.backward(grad)

    return median_ms(run)


def norm_row(block: Block) -> str:
    """What the weights of a block's norms take of its backward, and what W would hold for them."""
    module, x = block.make(), block.inputs
    whole, weights = backward_ms(lambda given: block.call(module, given), x), 0.0
    norms = block.norms(module)
    for norm in norms:
        trained = backward_ms(norm, x)
        weights += trained - backward_ms(norm.requires_grad_(requires_grad=False), x)
    store = make_deferring(module)
    store.is_deferring = True
    y = block.call(module, x.clone().requires_grad_())
    y.backward(torch.ones_like(y))
    held = {tensor.data_ptr(): tensor.nbytes for call in store.take_waiting() for tensor in (call.x, call.grad)}
    more = 2 * len(norms) * x.nbytes
    share, growth = f"{weights / whole:.2%}", f"{more / sum(held.values()):.0%}"
    return line((block.name, str(len(norms)), f"{whole:.1f}", f"{weights:.2f}", share, growth))


HEAD = """# Weights of norms, which do not wait

What I computes although W could (docs/reference/executor.md). Blocks of transformers, {samples}
samples of {tokens} tokens, float32, one thread, in milliseconds of its processor time, medians of {repetitions}.
Made by `python -m benchmarks.norm_weights -o docs/benchmarks/norm_weights.md`.

Machine: {machine}. Commit: {commit}.

The part of a block's whole backward that the weights of its norms take: the backward of each norm with and without
them. If they waited, what they are computed of would be held from I to W as well: beside what W holds already.

"""


def _told(*cells: str) -> list[str]:
    return [line(cells), "|" + " --- |" * len(cells)]


def _seen(row: str) -> str:
    print(row, flush=True)
    return row


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    about = {"samples": SAMPLES, "tokens": TOKENS, "repetitions": REPETITIONS - 1}
    lines = [HEAD.format(machine=describe_machine(), commit=describe_commit(), **about)]
    lines += _told("block and width", "norms", "backward", "their weights", "share", "W holds more by")
    lines += [_seen(norm_row(block)) for block in BLOCKS]
    if options.output is not None:
        options.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
