"""The tables of aiconfigurator-core themselves, where the extra `tables` is installed."""

import importlib.util

import pytest

from profiles.estimates.achieved_rates import known_rates
from profiles.estimates.composed_profile import CompositionQuestion, compose
from profiles.estimates.model_shapes import ModelShape
from profiles.importers.aiconfigurator.default_rates import default_rates_of
from profiles.importers.aiconfigurator.rates import MeasuredRates
from profiles.importers.aiconfigurator.tables import find_package
from profiles.importers.aiconfigurator.workloads import find_shape

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("aiconfigurator_core") is None, reason="needs the extra `tables`"),
]

LLAMA_8B = ModelShape(
    name="llama3-8b",
    blocks=1,
    hidden=4096,
    heads=32,
    key_value_heads=8,
    head_width=128,
    inner=14336,
    vocabulary=128256,
)


@pytest.mark.parametrize("gpu", ["a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "gb200"])
def test_they_are_near_the_tables(gpu: str):
    """Tests that F, I and W of a Llama-3-8B block at 4,096 tokens are within 10 % of what the tables say."""
    sums = []
    for rates in (known_rates()[gpu], default_rates_of(gpu)):
        profile, _ = compose(CompositionQuestion(shape=LLAMA_8B, rates=[rates], sequence=4096))
        cost = profile.layers[1].costs[0]
        sums.append((cost.forward_ns, cost.input_grad_ns, cost.weight_grad_ns))
    for ours, theirs in zip(*sums, strict=True):
        assert ours == pytest.approx(theirs, rel=0.1)


def test_the_real_tables():
    """Tests that a Llama-3-8B block at 4,096 tokens takes 2.5 to 3.1 ms forward on H100 and 7.5 to 8.5 on A100."""
    package = find_package()
    rates = [MeasuredRates(package=package, gpu=package.find_gpu(name)) for name in ("h100", "a100")]
    profile, _ = compose(CompositionQuestion(shape=find_shape(package, "llama3-8b"), rates=rates, sequence=4096))
    h100, a100 = profile.layers[1].costs
    assert 2.5e6 < h100.forward_ns < 3.1e6
    assert 7.5e6 < a100.forward_ns < 8.5e6


PUBLISHED_BILLIONS = {
    "llama3-8b": 8.03,
    "llama3-70b": 70.6,
    "llama3-405b": 405.9,
    "qwen3-32b": 32.8,
    "qwen3-30b-a3b": 30.5,
    "qwen3-235b-a22b": 235.1,
    "deepseek-v3": 671.0,
    "gpt-oss-20b": 20.9,
    "gpt-oss-120b": 116.8,
    "mixtral-8x7b": 46.7,
    "mixtral-8x22b": 140.6,
}


@pytest.mark.parametrize("model", PUBLISHED_BILLIONS)
def test_the_real_models(model: str):
    """Tests that a model has the weights that its makers state, and a time on every GPU at degrees 1 to 8."""
    package = find_package()
    gpus = ("a100", "h100", "h200", "b200", "gb200")
    rates = [MeasuredRates(package=package, gpu=package.find_gpu(name)) for name in gpus]
    question = CompositionQuestion(shape=find_shape(package, model), rates=rates, sequence=4096, degrees=(1, 2, 4, 8))
    profile, _ = compose(question)
    weights = sum(layer.parameter_bytes for layer in profile.layers) / 2e9
    assert weights == pytest.approx(PUBLISHED_BILLIONS[model], rel=0.01)
    assert len(profile.layers[-2].costs) == 20
