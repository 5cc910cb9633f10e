"""`pipeplan profile` on a model so small that it takes a second, in this process."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from api.cli import main
from profiles.load import load_workload

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")

TINY = "gpt:layers=2,width=8,heads=2,sequence=4,vocabulary=16"


def profile(tmp_path: Path, *options: str, model: str = TINY):
    target = str(tmp_path / "workload.json")
    assert main(["profile", model, "-b", "2", "-q", "-o", target, *options]) == 0
    return load_workload(target).profile


def test_every_layer_is_timed(tmp_path: Path):
    """Tests that F, I and W of all layers are measured, that blocks alike cost the same, and that weights are held."""
    found = profile(tmp_path, "--alone", "--no-links", "--repetitions", "1")
    _, first, second, *_, head = found.layers
    assert min(cost.forward_ns for layer in found.layers for cost in layer.costs) > 0
    assert first.costs == second.costs
    assert min(cost.weight_grad_ns for layer in (first, head) for cost in layer.costs) > 0
    assert first.parameter_bytes == 4 * (12 * 8 * 8 + 13 * 8)
    assert first.stash_bytes > 0


@pytest.mark.parametrize("model", [TINY, "resnet:width=4,image=32,classes=8"])
def test_an_estimate_measures_nothing(tmp_path: Path, model: str):
    """Tests that from shapes alone every layer has times, and that the profile says that they are estimates."""
    found = profile(tmp_path, "--estimate", "H100", model=model)
    assert min(cost.forward_ns for layer in found.layers for cost in layer.costs) > 0
    assert found.provenance.startswith("Source: estimated")
