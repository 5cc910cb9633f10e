"""A model cut into layers, trained under plans; its weights by the model's own names, written and read by its parts."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from planner.plan import Plan
from tests.planner.execute.orders import make_random_plan
from tests.planner.execute.test_enter import losses, messages, start_ranks, write

NAMES = ("words", "blocks.0", "blocks.1", "blocks.2", "norm")
MODEL = ["--model", "cut_models:named_decoder"]


def plan_of(*cut: int) -> Plan:
    """The decoder's five layers on as many devices as there are numbers."""
    made = make_random_plan(" ".join(map(str, range(len(cut)))), cut=cut, num_microbatches=3)
    names = iter(NAMES)
    stages = tuple(replace(stage, layers=tuple(next(names) for _ in stage.layers)) for stage in made.stages)
    return replace(made, stages=stages)


def train(folder: Path, plan: Path, count: int, *more: object) -> None:
    for code, said in start_ranks([[plan, *MODEL, *more]] * count):
        assert code == 0, said


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two iterations by two processes and by one, and a third by two that begin with the weights of the two."""
    place = tmp_path_factory.mktemp("cut")
    two, one = write(plan_of(2, 3), place / "two.json"), write(plan_of(5), place / "one.json")
    train(place, two, 2, "--steps", 2, "--losses", place / "two", "--save-weights", place / "by two")
    train(place, one, 1, "--steps", 2, "--losses", place / "one", "--save-weights", place / "by one")
    train(place, one, 1, "--weights", place / "by two", "--losses", place / "on one")
    train(place, two, 2, "--weights", place / "by one", "--losses", place / "on two")
    return place


def test_a_cut_model_is_trained_as_planned(folder: Path):
    """Tests that two processes have the losses of one, and that weights may change hands between plans."""
    assert len(losses(folder / "two")) == 2
    assert losses(folder / "two") == losses(folder / "one")
    assert losses(folder / "on two") == losses(folder / "on one") != losses(folder / "one")[:1]


@pytest.mark.parametrize("model", ["uneven_decoder", "late_decoder"])
def test_models_of_other_forms_train_as_one_process(folder: Path, model: str):
    """Tests that two processes have the losses of one where microbatches differ in length, other ones in every
    iteration, and where each process makes the weights of its own layers only."""
    for name, count in (("two", 2), ("one", 1)):
        told = folder / f"{model} {name}"
        train(folder, folder / f"{name}.json", count, "--model", f"cut_models:{model}", "--steps", 2, "--losses", told)
    assert losses(folder / f"{model} two") == losses(folder / f"{model} one")
    assert len(losses(folder / f"{model} two")) == 2
    assert (losses(folder / f"{model} two") == losses(folder / "two")) == (model == "late_decoder")


def test_weights_have_the_names_of_the_model(folder: Path):
    """Tests that each process writes its own part, and that the model reads the whole as its state dictionary, in which
    its hooks show three matrices for the one that it computes with."""
    import torch
    from safetensors.torch import load_file

    from tests.integration.cut_models import Decoder

    index = json.loads((folder / "by two" / "model.safetensors.index.json").read_text())["weight_map"]
    model = Decoder(has_names=True)
    assert "blocks.1.attention.k.weight" in index
    assert set(index) == set(model.state_dict())
    assert index["words.weight"] != index["head.weight"] == "model-00002-of-00002.safetensors"
    whole = {k: v for file in set(index.values()) for k, v in load_file(folder / "by two" / file).items()}
    model.load_state_dict(whole, strict=True)
    others = load_file(folder / "by one" / "model-00001-of-00001.safetensors")
    assert all(torch.allclose(value, others[key], atol=1e-6) for key, value in whole.items())
    torch.save(model.state_dict(), folder / "torch.bin")
    train(folder, folder / "two.json", 2, "--weights", folder / "torch.bin", "--losses", folder / "from torch")
    assert losses(folder / "from torch") == losses(folder / "on two")


def test_weights_of_another_model_are_refused(folder: Path):
    """Tests that a name that is missing is said, by all processes alike."""
    (folder / "nothing").mkdir()
    answers = start_ranks([[folder / "two.json", *MODEL, "--weights", folder / "nothing"]] * 2)
    assert all(code for code, _ in answers)
    assert "contains no weights; give a file of safetensors or torch" in "".join(messages(answers[0][1]))
