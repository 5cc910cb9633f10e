"""Cuts models and compares them with themselves; prints what was found as JSON. Started by `test_cut.py`.

Arguments: nothing, or names of functions of `benchmarks.corpus_models`.
"""

import importlib
import json
import sys
import tempfile
import warnings
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))

import cut_models

from planner.execute.model.deferred_init import deferred_init, make_value
from planner.execute.stage.stage_module import make_layer
from planner.execute.training import Training


def chain(training: Training, layers: dict[str, nn.Module], *, number: int) -> torch.Tensor:
    """The loss of an iteration, layer by layer."""
    inputs, target = training.batch(number)
    values = {"": inputs}
    for name, layer in layers.items():
        found = layer(*(tensor for source in training.inputs[name] for tensor in values[source]))
        values[name] = found if isinstance(found, tuple) else (found,)
    return training.loss(values[name][0], target)


def make_and_keep(module_name: str, factory: str) -> tuple[Training, dict[str, Any]]:
    """What a factory makes by `from_module`, and what it gave to it."""
    given: dict[str, Any] = {}
    original = Training.from_module.__func__

    def keep(cls: Any, module: nn.Module, **named: Any) -> Training:
        given.update(named, module=module)
        return original(cls, module, **named)

    torch.manual_seed(0)
    with mock.patch.object(Training, "from_module", classmethod(keep)):
        training = getattr(importlib.import_module(module_name), factory)()
    return training, given


def compare(factory: str, *, is_trained: bool, module_name: str = "cut_models") -> dict[str, Any]:
    """The model as it is written against its layers: loss and gradients, with the same random numbers."""
    training, given = make_and_keep(module_name, factory)
    module = given["module"].train(is_trained)
    layers = {
        name: make_layer(training, name, device=torch.device("cpu")).train(is_trained) for name in training.layers
    }
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.no_grad():
        chain(training, layers, number=0)  # what is kept for later must not have been changed
    torch.manual_seed(1)
    batch = given["batch"](1)
    if isinstance(batch, dict):
        output = module(**batch)
        loss = output["loss"]
    else:
        output = module(**batch[0]) if isinstance(batch[0], dict) else module(batch[0])
        loss = given["loss"](output, batch[1])
    torch.manual_seed(1)
    cut = chain(training, layers, number=1)
    loss.backward()
    cut.backward()
    return {
        "layers": list(layers),
        "inputs": training.inputs,
        "tied": training.tied,
        "loss": abs(float((loss - cut).detach())),
        "gradients": worst_gradient(module, layers),
        "told": tell_shapes(training) == tell_shapes(training, layers),
        "handed": Counter(name for name, *_ in tell_shapes(training)),
        "keys": sorted(set(module.state_dict()) - {key for layer in layers.values() for key in layer.state_dict()}),
        "buffers": sorted(
            name
            for name, buffer in module.named_buffers()
            if is_trained is False and not torch.equal(buffer, before[name])
        ),
    }


def tell_shapes(training: Training, layers: dict[str, nn.Module] | None = None) -> list[Any]:
    """What each layer gives, without data unless there are layers."""
    device = torch.device("meta" if layers is None else "cpu")
    made = layers or {name: make_layer(training, name, device=device) for name in training.layers}
    values = {"": tuple(tensor.to(device) for tensor in training.batch(0)[0])}
    told: list[Any] = []
    for name, layer in made.items():
        found = layer(*(tensor for source in training.inputs[name] for tensor in values[source]))
        values[name] = found if isinstance(found, tuple) else (found,)
        told += [(name, tensor.shape, tensor.dtype, tensor.requires_grad) for tensor in values[name]]
    return told


def worst_gradient(module: nn.Module, layers: dict[str, nn.Module]) -> float:
    """Largest difference; those of a weight that several layers have are added up."""
    names: dict[int, list[str]] = {}
    for path, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(path)
    worst = 0.0
    for path, parameter in module.named_parameters():
        found = [
            own.grad
            for layer in layers.values()
            for other, own in layer.named_parameters()
            if other in names[id(parameter)]
        ]
        assert parameter.grad is not None, path
        worst = max(worst, float((parameter.grad - torch.stack(found).sum(0)).abs().max()))
    return worst


def uneven() -> dict[str, Any]:
    """The largest difference of a loss between layers and model, over microbatches of lengths that were not seen when
    it was cut; and what does not fit it."""
    torch.manual_seed(0)
    model = cut_models.Decoder().eval()
    training = Training.from_module(model, batch=cut_models.draw_texts, optimizer=cut_models.sgd)
    layers = {name: make_layer(training, name, device=torch.device("cpu")) for name in training.layers}
    worst = 0.0
    for number in (0, 1, 5):
        for place, given in enumerate(cut_models.draw_texts(number)):
            batch = training.batch(number)[place]
            found = chain(replace(training, batch=lambda _, batch=batch: batch), layers, number=0)
            worst = max(worst, abs(float((model(**given)["loss"] - found).detach())))
    shapes = {"alike": [(4, 6)] * 3, "short": [(4, 1)] * 3, "apart": [(4, 6), (4, 6), (4, 7)]}
    return {"loss": worst, "misfits": {name: layers["norm"].find_misfit(each) for name, each in shapes.items()}}


def unlike(factory: str) -> list[str]:
    """Parameters of a library's model that get other values when they are made later."""

    def make() -> nn.Module:
        torch.manual_seed(0)
        module = importlib.import_module("benchmarks.corpus_models")
        with mock.patch.object(Training, "from_module", lambda model, **_: model):
            return getattr(module, factory)()

    whole = make()
    with deferred_init():
        late = make()
    pairs = zip(whole.named_parameters(), late.named_parameters(), strict=True)
    return [name for (name, mine), (other, late) in pairs if name != other or not torch.equal(mine, make_value(late))]


def refusal(make: Any) -> str:
    try:
        make()
    except ValueError as error:
        return str(error)
    return ""


class Keeping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x * x.sum().item()


def conv1d() -> list[str]:
    """What is wrong with gradients of transformers' own layer that were put off."""
    from deferred_worker import faults
    from transformers.pytorch_utils import Conv1D

    return faults(lambda: (Conv1D(3, 5).double(), torch.randn(4, 2, 5, dtype=torch.float64)))


def compare_with_itself() -> dict[str, Any]:
    """A model of the corpus that the benchmark trains alone, held against its own losses and weights."""
    from safetensors.torch import save_file

    from benchmarks import model_corpus

    model, told = model_corpus.train_uncut("gpt2")
    with tempfile.TemporaryDirectory() as folder:
        losses, weights = Path(folder, "losses"), Path(folder, "model.safetensors")
        losses.write_text("\n".join(json.dumps({"losses": each}) for each in told))
        save_file({name: tensor.clone() for name, tensor in model.state_dict().items()}, weights)
        return {"told": told, **model_corpus.compare("gpt2", losses, weights)}


def casting() -> dict[str, Any]:
    """GPT-2 under autocast to bfloat16 as a whole, and layer by layer: losses, and the worst gradient's difference."""
    from planner.execute.transformers_trainer.trainer_training import make_casting

    training, given = make_and_keep("benchmarks.corpus_models", "gpt2")
    cast = replace(training, layers={name: partial(make_casting, make) for name, make in training.layers.items()})
    cpu = torch.device("cpu")
    layers = {name: make_layer(cast, name, device=cpu).train(False) for name in cast.layers}
    module, batch = given["module"].train(False), given["batch"](1)
    with torch.autocast("cpu", torch.bfloat16):
        whole = module(**batch).loss
    mine = chain(cast, layers, number=1)
    told = {
        "whole": float(whole.detach()),
        "layers": float(mine.detach()),
        "plain": float(module(**batch).loss.detach()),
    }
    whole.backward()
    mine.backward()
    return told | {"gradients": worst_gradient(module, layers)}


class Compiled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.compile(backend="eager")


def main() -> None:
    torch.set_num_threads(1)
    answers: dict[str, Any]
    warnings.simplefilter("ignore" if sys.argv[1:] else "error")  # other people's models may warn
    if sys.argv[1:]:
        found = {name: compare(name, is_trained=True, module_name="benchmarks.corpus_models") for name in sys.argv[1:]}
        late = {name: unlike(name) for name in sys.argv[1:]}
        answers = {"models": found, "conv1d": conv1d(), "late": late}
        answers |= {"alone": compare_with_itself(), "casting": casting()}
        sys.stdout.write(json.dumps(answers))
        return
    answers = {
        f"{name} {mode}": compare(name, is_trained=mode == "trained")
        for name in ("decoder", "named_decoder", "convolutions", "deciding", "mixture")
        for mode in ("trained", "evaluated")
    }
    loss, answers["uneven"] = nn.functional.cross_entropy, uneven()
    answers["refused"] = {
        "cache": refusal(lambda: cut_models.decoder(has_cache=True)),
        "value": refusal(
            lambda: Training.from_module(Keeping(), batch=cut_models.vectors, loss=loss, optimizer=cut_models.sgd)
        ),
        "compiled": refusal(
            lambda: Training.from_module(Compiled(), batch=cut_models.vectors, loss=loss, optimizer=cut_models.sgd)
        ),
        "no loss": refusal(
            lambda: Training.from_module(cut_models.Convolutions(), batch=cut_models.pictures, optimizer=cut_models.sgd)
        ),
    }
    sys.stdout.write(json.dumps(answers))


if __name__ == "__main__":
    main()
