"""Weight gradients put off on one device."""

import json
import weakref
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from tests.integration.forked_ranks import run_alone
from tests.long_runs import shortened

NETWORKS = ["DenseNet-121", "MobileNetV3", "transformer"]
"""Those of `benchmarks.one_device`, which imports torch: three seconds for every process that collects tests."""


def answer_of(module: str, *arguments: str) -> dict[str, Any]:
    """What a process with one thread prints."""
    answer: dict[str, Any] = json.loads(run_alone(module, *arguments))
    return answer


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
def test_training_is_the_same_to_the_bit(network: str):
    """Tests that losses, and parameters after half and all of dozens of steps, are the same with W put off or not."""
    steps = shortened(8, whole=80)
    answer = answer_of("benchmarks.one_device", network, "--steps", str(steps))
    assert answer["steps"] == [steps // 2, steps]
    assert answer["losses equal"]
    assert answer["parameters equal after half and all steps"] == [True, True]
    assert answer["weight gradients put off"] >= 18
    assert answer["losses"][0] != answer["losses"][1]


@pytest.mark.slow
@pytest.mark.parametrize("network", shortened(["transformer"], whole=NETWORKS))
def test_weight_grads_beside_regions_train_the_same(network: str):
    """Tests that training is the same to the bit with W on a second thread, and that the choice is the best foreseen.

    Which order is faster depends on the machine, so that no time is asserted.
    """
    answer = answer_of("benchmarks.co_runs", network, "--rounds", "2")
    assert answer["losses equal"]
    assert answer["parameters equal"]
    assert answer["steps"] == 9
    assert answer["losses"][0] != answer["losses"][1]
    predicted = answer["predicted_ns"]
    assert answer["bound_ns"] == predicted["chosen"] <= min(predicted.values())
    assert all(len(values) == 2 and min(values) > 0 for values in answer["seconds"].values())


def test_blocks_train_as_the_whole_network_does():
    """Tests that blocks with every W beside a region train in three steps as a plain backward of the whole does."""
    import torch
    from torch.nn import functional

    from benchmarks.co_runs import Blocks
    from benchmarks.one_device import NETWORKS as MAKERS
    from benchmarks.one_device import Momentum

    assert list(MAKERS) == NETWORKS
    blocks = Blocks("transformer")
    blocks.choice = [blocks.window(block)[-1] if block else None for block in range(blocks.count)]
    torch.manual_seed(5)
    model, optimizer, losses = MAKERS["transformer"](), Momentum(), []
    for _ in range(3):
        blocks.step()
        loss = functional.cross_entropy(model(blocks.x), blocks.y)
        loss.backward()
        losses.append(float(loss.detach()))
        for parameter in model.parameters():
            optimizer.update(parameter)
    blocks.finish()
    whole = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert list(map(float, blocks.losses)) == pytest.approx(losses, rel=1e-5)
    torch.testing.assert_close(blocks.parameters(), whole)
    beside = {(block, region) for block, region in enumerate(blocks.choice) if region is not None}
    assert len(beside) == blocks.count - 1
    assert all(len(blocks.own_ns[pair]) == 2 for pair in beside)


def test_what_runs_beside_is_held_until_the_streams_have_met(monkeypatch: pytest.MonkeyPatch):
    """Tests that nothing that a W reads on the second stream is let go of before: it would be the first one's memory.

    As far as the host knows, W has been computed once it was asked for.
    """
    import torch

    from benchmarks import co_runs

    blocks = co_runs.Blocks("MobileNetV3")
    blocks.forward()
    torch.autograd.backward(blocks.ends[-1])
    update = co_runs.WeightUpdate(blocks.store.take(), blocks.blocks[-1], optimizer=blocks.optimizer)
    grads = [each.grad for each in update.block.parameters() if each.grad is not None]
    assert grads
    assert update.grads.calls
    alive = [weakref.ref(tensor) for tensor in [*grads, *(call.grad for call in update.grads.calls)]]
    grads.clear()
    met: list[int] = []
    current = SimpleNamespace(wait_stream=lambda _: met.append(sum(each() is not None for each in alive)))
    monkeypatch.setattr(torch.cuda, "Stream", lambda: SimpleNamespace(wait_stream=lambda _: None))
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: SimpleNamespace(record=lambda _: None))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    second = co_runs.SecondStream()
    second.is_measuring = False
    second.run(lambda: None, [update])
    assert met == [len(alive)]
    assert not any(each() is not None for each in alive)
