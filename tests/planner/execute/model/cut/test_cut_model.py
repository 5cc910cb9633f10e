"""Models as they are written, cut into layers: the same loss and gradients to the bit, or refused with a remedy."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.forked_ranks import run_alone
from tests.long_runs import IS_LONG

WORKER = Path(__file__).parents[4] / "integration/cut_worker.py"
MODELS = ("decoder", "named_decoder", "convolutions", "deciding", "mixture")


TRANSFORMERS = ("gpt2", "llama", "mistral", "qwen", "mixtral", "bert", "t5", "whisper", "vit", "albert")
PICTURES = (
    "resnet18",
    "resnet50",
    "torchvision_vit",
    "convnext",
    "mobilenetv3",
    "densenet",
    "timm_vit",
    "efficientnet",
)
CORPUS = (*TRANSFORMERS, *PICTURES) if IS_LONG else ("gpt2", "t5")


@pytest.fixture(scope="module")
def answers() -> Any:
    """What the worker found."""
    return work()


@pytest.fixture(scope="module")
def corpus() -> Any:
    """Likewise of models of transformers, torchvision and timm; skipped without transformers."""
    if not is_there("transformers"):
        pytest.skip("transformers is not installed: pip install '.[models]'")
    return work(*(name for name in CORPUS if name not in PICTURES or is_there("torchvision")))


def is_there(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def work(*models: str) -> Any:
    return json.loads(run_alone(str(WORKER), *models))


@pytest.mark.parametrize("mode", ["trained", "evaluated"])
@pytest.mark.parametrize("model", MODELS)
def test_layers_compute_what_the_model_computes(answers: Any, model: str, mode: str):
    """Tests that loss and all gradients of the layers are those of the model, bit by bit, dropout included, that the
    model keeps its buffers, that no key of its state dictionary is lost, and that shapes are known without data."""
    found = answers[f"{model} {mode}"]
    assert (found["loss"], found["gradients"], found["buffers"], found["keys"]) == (0.0, 0.0, [], [])
    assert found["told"]


def test_a_decoder_is_a_chain_of_its_blocks(answers: Any):
    """Tests that masks and angles are made anew where they are taken, and what the first block makes is handed on."""
    found = answers["decoder trained"]
    assert found["layers"] == ["words", "blocks.0", "blocks.1", "blocks.2", "norm"]
    assert found["inputs"]["blocks.2"] == ["", "blocks.1"]
    assert found["handed"] == {"words": 1, "blocks.0": 2, "blocks.1": 2, "blocks.2": 1, "norm": 1}  # two: with a bias
    assert answers["named_decoder trained"]["layers"] == found["layers"]
    assert answers["named_decoder trained"]["inputs"]["norm"] == ["blocks.2"]
    assert found["tied"] == [["words:words.weight", "norm:head.weight"]]


def test_lengths_may_differ_from_microbatch_to_microbatch(answers: Any):
    """Tests that layers cut with listed microbatches compute what the model computes at lengths that they have not
    seen, and that lengths which always agreed may not differ, nor one be 1."""
    assert answers["uneven"]["loss"] == 0.0
    assert answers["uneven"]["misfits"] == {
        "alike": "",
        "short": "a length of 1 is below 2, which models may treat otherwise",
        "apart": "lengths of 7 and 6 were the same in all microbatches of iteration 0",
    }


def test_stages_of_blocks_are_cut_at_their_blocks(answers: Any):
    """Tests that lists in lists are gone into, lists inside a block are not, and skips go straight to their end."""
    found = answers["convolutions trained"]
    blocks = [f"stages.{stage}.{block}" for stage, count in enumerate((2, 3)) for block in range(count)]
    assert found["layers"] == ["stem", *blocks, "head"]
    assert found["inputs"]["head"] == ["stem", blocks[-1]]


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("cache", "blocks.0 is given a Cache that layers write to; call the model without caches"),
        ("value", "branches on the values of its samples (item)"),
        ("compiled", "Compiled is compiled as a whole; give it uncompiled, or compile its layers"),
        ("no loss", "without a loss the model has to compute it, of 'labels' in the batch; give a loss"),
    ],
)
def test_models_that_cannot_be_cut_are_refused(answers: Any, model: str, reason: str):
    """Tests that what would go wrong without a word is refused, with what to write instead."""
    assert reason in answers["refused"][model]


def test_models_of_libraries_are_cut_exactly(corpus: Any):
    """Tests that loss and gradients of the layers are those of the models as their libraries make them, but for the
    order in which some add up; all of the corpus is tried with PIPEPLAN_LONG=1."""
    models = corpus["models"]
    differences = {name: (found["loss"], found["gradients"]) for name, found in models.items()}
    assert len(differences) >= 2
    assert all(max(each) <= 1e-6 for each in differences.values()), differences
    assert all(len(found["layers"]) > 4 or name == "albert" for name, found in models.items())
    # The blocks of ALBERT share their weights: they are one layer, and its head is the other.
    assert len(models.get("albert", {"layers": "ab"})["layers"]) == 2


def test_the_corpus_is_compared_with_the_uncut_model(corpus: Any):
    """Tests that the benchmark trains a model alone, and finds no difference to its own losses and weights."""
    found = corpus["alone"]
    assert [len(losses) for losses in found["told"]] == [4, 4, 4]
    assert found["told"][0] != found["told"][1]
    assert (found["loss_difference"], found["weight_difference"]) == (0, 0)


def test_layers_cast_as_the_whole_model(corpus: Any):
    """Tests that layers which compute under autocast have the loss and the gradients of the model under it, to the
    rounding of bfloat16, and not those of the model in float32."""
    found = corpus["casting"]
    assert found["layers"] == pytest.approx(found["whole"], abs=1e-6)
    assert abs(found["plain"] - found["whole"]) > 1e-5
    assert found["gradients"] < 2**-7


def test_models_of_libraries_get_their_weights_later(corpus: Any):
    """Tests that a library's model made without weights gets, one by one, those that it would have had, to the bit."""
    assert corpus["late"]
    assert not any(corpus["late"].values()), corpus["late"]


def test_weights_of_transposed_layers_wait(corpus: Any):
    """Tests that gradients of transformers' Conv1D are put off, and are those of a plain backward to the bit."""
    assert corpus["conv1d"] == []
