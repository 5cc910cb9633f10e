"""Models without weights: their layers' values against those of models made whole, and what a process holds at most.

Prints what was found as JSON. Started by `test_late_values.py`; argument: a folder to write weights into.
"""

import gc
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))

import cut_models

from planner.execute.model.deferred_init import deferred_init
from planner.execute.record.memory_use import MemoryMeter
from planner.execute.stage.stage_module import StageTracer, make_layer
from planner.execute.table.wiring import make_wirings
from planner.execute.training import Training

WIDTH, BLOCKS, SAMPLES = 2048, 12, 2


class Inits(nn.Module):
    """Weights that are made in every way that people make them, and types that change on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.scaled, self.drawn = nn.Parameter(torch.randn(3, 4) * 0.02), nn.Parameter(torch.randn(5, 5))
        self.linear, self.table = nn.Linear(4, 4), nn.Embedding(7, 4, padding_idx=2)
        nn.init.orthogonal_(self.linear.weight)
        nn.init.trunc_normal_(self.table.weight)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.table.weight
        self.attention, self.convolution = nn.MultiheadAttention(4, 2), nn.Conv2d(3, 4, 3)
        weight = nn.Parameter(torch.empty(6, 6))
        self.weight = weight
        weight.data.normal_(generator=torch.Generator().manual_seed(7))
        with torch.no_grad():
            self.convolution.weight.mul_(3)
            self.linear.bias[1:3] = 7
            self.convolution.bias.copy_(torch.rand(4))
        self.double()
        self.norm, self.last = nn.BatchNorm1d(4), nn.Linear(9, 9)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(self.norm(x))


class Bulky(nn.Module):
    """Twelve blocks of 16 MiB each."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def vectors(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    noise = torch.Generator().manual_seed(number)
    return torch.randn(SAMPLES, WIDTH, generator=noise), torch.randint(WIDTH, (SAMPLES,), generator=noise)


def train(model: nn.Module, **more: Any) -> Training:
    given = {"batch": vectors, "loss": nn.functional.cross_entropy, "optimizer": cut_models.sgd} | more
    return Training.from_module(model, **given)


def made(make: Callable[[], nn.Module], *, is_late: bool) -> tuple[nn.Module, torch.Tensor]:
    """A model, and what is drawn after it."""
    torch.manual_seed(0)
    if not is_late:
        return make(), torch.rand(3)
    with deferred_init():
        model = make()
    return model, torch.rand(3)


def differences(one: Training, other: Training) -> list[str]:
    """Weights and buffers of layers that are not those of the same layer, to the bit."""
    cpu, found = torch.device("cpu"), []
    for name in one.layers:
        mine, theirs = (make_layer(each, name, device=cpu).state_dict() for each in (one, other))
        found += [f"{name}:{path}" for path in mine if not torch.equal(mine[path], theirs[path])]
        assert mine.keys() == theirs.keys()
    return found


def compare(make: Callable[[], nn.Module], folder: Path, **more: Any) -> dict[str, Any]:
    """Layers of one model made whole, of one without weights, and of one whose weights are in a file."""
    (whole, after), (late, after_late) = (made(make, is_late=is_late) for is_late in (False, True))
    torch.save(whole.state_dict(), folder / "weights.bin")
    with torch.device("meta"):
        empty = make()
    for name, buffer in whole.named_buffers():
        owner, _, key = name.rpartition(".")
        empty.get_submodule(owner)._buffers[key] = buffer
    expected = train(whole, **more)
    return {
        "is_empty": all(parameter.is_meta for parameter in late.parameters()),
        "draws": torch.equal(after, after_late),
        "late": differences(expected, train(late, **more)),
        "read": differences(expected, train(empty, weights=folder / "weights.bin", **more)),
        "is_left": all(parameter.is_meta for each in (late, empty) for parameter in each.parameters()),
        "tied": [train(late, **more).tied == expected.tied],
    }


def replayed() -> list[str]:
    """Parameters that do not get the values that they would have had."""
    from planner.execute.model.deferred_init import make_value

    (whole, after), (late, after_late) = (made(Inits, is_late=is_late) for is_late in (False, True))
    assert torch.equal(after, after_late)
    pairs = zip(whole.named_parameters(), late.parameters(), strict=True)
    return [name for (name, mine), theirs in pairs if not _are_same(mine, make_value(theirs))]


def _are_same(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    return torch.equal(mine, theirs) and mine.dtype == theirs.dtype and mine.stride() == theirs.stride()


def peaks() -> dict[str, int]:
    """What a process of a run takes at most for one block of twelve, with a model made whole and without weights."""
    found = {}
    for is_late in (True, False, True):  # the first time torch loads what it needs for a run without data
        meter = MemoryMeter(torch.device("cpu"))
        with mock.patch.dict(os.environ, {"RANK": "0"}):
            training = train(made(Bulky, is_late=is_late)[0])
        names = list(training.layers)
        StageTracer(training, make_wirings([names], names, inputs=training.inputs)).trace(vectors(0)[:1])
        layer = make_layer(training, names[3], device=torch.device("cpu"))
        used = meter.read()
        assert used is not None
        found["late" if is_late else "whole"] = used.peak_bytes
        found["part"] = sum(parameter.numel() * 4 for parameter in layer.parameters())
        del training, layer
        gc.collect()
    return found


def refusal(model: nn.Module, **more: Any) -> str:
    try:
        train(model, **more)
    except ValueError as error:
        return str(error)
    return ""


def refusals(folder: Path) -> dict[str, str]:
    with torch.device("meta"):
        empty = Bulky()
    changed = made(Bulky, is_late=True)[0].double()
    torch.save({}, folder / "nothing.bin")
    training = train(empty, weights=folder / "nothing.bin")
    try:
        make_layer(training, "blocks.0", device=torch.device("cpu"))
        missing = ""
    except Exception as error:
        missing = f"{error} {error.__cause__}"
    return {"empty": refusal(empty), "changed": refusal(changed), "missing": missing}


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    named = partial(compare, folder=folder, batch=cut_models.named, loss=cut_models.score_loss)
    answers: dict[str, Any] = {
        "decoder": named(cut_models.Decoder),
        "decoder with other names": named(partial(cut_models.Decoder, has_names=True)),
        "convolutions": compare(cut_models.Convolutions, folder, batch=cut_models.pictures),
        "replayed": replayed(),
        "peaks": peaks(),
        "refused": refusals(folder),
    }
    sys.stdout.write(json.dumps(answers))


if __name__ == "__main__":
    main()
