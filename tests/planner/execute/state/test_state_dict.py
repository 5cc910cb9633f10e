"""Weights under the model's own names, written over others and read back, and lines of losses after a kill."""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.planner.execute.model.cut.test_module_state import MODEL, plan_of, train
from tests.planner.execute.test_enter import losses, messages, start_ranks, write

pytest.importorskip("safetensors")

CUT_OFF = """
from cut_models import named_decoder
from planner.execute.state import state_dict

whole = state_dict._write

def cut_off(path, tensors):
    whole(path, tensors)
    path.write_bytes(path.read_bytes()[:100])
    raise OSError("killed")

state_dict._write = cut_off
"""
"""Every process ends while it writes its weights."""

INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of two processes, the weights that they begin with, and the losses of an iteration from those."""
    place = tmp_path_factory.mktemp("weights")
    write(plan_of(2, 3), place / "two.json")
    train(place, place / "two.json", 2, "--steps", 1, "--save-weights", place / "first")
    train(place, place / "two.json", 2, "--weights", place / "first", "--losses", place / "from first")
    return place


@pytest.fixture
def kept(folder: Path, tmp_path: Path) -> Path:
    """A copy of the weights."""
    return shutil.copytree(folder / "first", tmp_path / "kept")


@pytest.mark.filterwarnings("ignore:ComplexHalf", "ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("dtype", ["complex128", "complex32", "complex64", "int4", "qint8", "float16", ""])
def test_values_that_files_cannot_hold_are_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
):
    """Tests that a type is named that safetensors has not, shorter complex ones are none, and state that is no tensor
    is named as well, on every process."""
    import torch

    from planner.execute.state import state_dict

    class Noting(torch.nn.Module):
        def get_extra_state(self) -> Any:
            return {"calls": 3}

    told: list[Any] = []
    monkeypatch.setattr(state_dict, "gather", lambda own: told.append(own) or [own])
    layer = torch.nn.Module() if dtype else Noting()
    if dtype:
        layer.register_buffer("filter", torch.empty(2, dtype=getattr(torch, dtype)))
    execution: Any = SimpleNamespace(
        layer=lambda _: layer,
        stages=[SimpleNamespace(stage_index=0)],
        plan=SimpleNamespace(stages=[SimpleNamespace(layers=["a"])]),
        training=SimpleNamespace(conversion=None),
    )
    message = rf"'filter' is {dtype}, .* \(--save\)" if dtype else r"'_extra_state' is a dict .*; keep it in a buffer"
    is_held = dtype in ("complex64", "float16")
    with nullcontext() if is_held else pytest.raises(ValueError, match=message):
        state_dict.require_savable(execution, tmp_path)
    assert len(told) == 2 + is_held


def files_of(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_weights_are_whole_when_the_writing_of_new_ones_ends(
    folder: Path, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Tests that a process that ends while it writes leaves the weights that stood there, and that the next run ends
    with its own alone, by turns under two names."""
    (tmp_path / "cut_off.py").write_text(CUT_OFF)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run = [folder / "two.json", "--model", "cut_off:named_decoder", "--steps", 2, "--save-weights", kept]
    answers = start_ranks([run] * 2)
    assert "the writing of weights: OSError: killed" in "".join(said for _, said in answers), answers
    train(tmp_path, folder / "two.json", 2, "--weights", kept, "--losses", tmp_path / "again")
    assert losses(tmp_path / "again") == losses(folder / "from first")
    for stem in ("weights", "model"):
        train(tmp_path, folder / "two.json", 2, "--steps", 2, "--save-weights", kept)
        named = set(json.loads((kept / INDEX).read_text())["weight_map"].values())
        assert named == {f"{stem}-0000{rank}-of-00002.safetensors" for rank in (1, 2)} == files_of(kept) - {INDEX}


def test_weights_that_are_read_first_are_no_place_for_others(folder: Path, kept: Path):
    """Tests that no weights are written where a file hides them, before anything is trained."""
    (kept / "model.safetensors").write_bytes(b"")
    for code, said in start_ranks([[folder / "two.json", *MODEL, "--save-weights", kept]] * 2):
        assert code
        assert "would be read in place of the new weights; name another folder, or remove it" in said
        assert "iteration 0" not in said


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda kept: shutil.copy(kept / INDEX, kept / f"model.fp16.{INDEX[6:]}"), "may state different weights; keep"),
        (lambda kept: (kept / "model.safetensors").touch(), "may state different weights; keep one of them"),
        (lambda kept: (kept / INDEX).write_text("{"), "is no index of weights"),
        (lambda kept: (kept / INDEX).write_text('{"weight_map": []}'), "is no index of weights"),
        (lambda kept: (kept / "model-00002-of-00002.safetensors").unlink(), "cannot be read as weights"),
        (lambda kept: (kept / "model-00002-of-00002.safetensors").write_bytes(b"123"), "cannot be read as weights"),
        (
            lambda kept: (
                (kept / INDEX).unlink(),
                shutil.copy(kept / "model-00002-of-00002.safetensors", kept / "other.safetensors"),
            ),
            "is also in model-00002-of-00002.safetensors; keep the weights of one model",
        ),
    ],
)  # fmt: skip
def test_files_that_are_not_one_models_are_refused(folder: Path, kept: Path, spoil: object, message: str):
    """Tests that indices, shards and names that are broken or stand there twice are named."""
    spoil(kept)  # type: ignore[operator]
    for code, said in start_ranks([[folder / "two.json", *MODEL, "--weights", kept]] * 2):
        assert code
        assert message in "".join(messages(said))


def test_losses_that_a_kill_cut_off_are_taken_up(folder: Path, tmp_path: Path):
    """Tests that a run that goes on keeps whole lines, and that other lines are refused."""
    told, run = tmp_path / "losses", [folder / "two.json", *MODEL, "--losses", tmp_path / "losses"]
    train(tmp_path, folder / "two.json", 2, "--steps", 2, "--losses", told, "--save", tmp_path / "c")
    first = told.read_text()
    told.write_text(first + '{"iteration": 2, "los')
    train(tmp_path, folder / "two.json", 2, "--losses", told, "--load", tmp_path / "c")
    assert told.read_text().startswith(first)
    assert [json.loads(line)["iteration"] for line in told.read_text().splitlines()] == [0, 1, 2]
    told.write_text("step 0: 3.5\n")
    code, said = start_ranks([[*run, "--load", tmp_path / "c"]] * 2)[0]
    assert code
    assert "holds other lines than losses; name another file with --losses" in said
