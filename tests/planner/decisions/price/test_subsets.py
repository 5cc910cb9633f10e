"""Branching over subsets of the devices: tests of planner/decisions/price/subsets.py."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from planner.batch_problem import BatchProblem
from planner.decisions.price.bound import check_subsets, write_boxes
from planner.decisions.price.subsets import Subsets
from planner.planning import SearchParams
from tests.planner.decisions.price.test_device_kinds import priced, star
from tests.planner.test_batch_problem import random_batch


def priced_batch(rng: Random) -> BatchProblem:
    """A chain on two devices with prices, at two sizes of microbatches."""
    batch = random_batch(rng)
    prices = {device.name: rng.choice([0, 1, 2, 3.25]) for device in batch.cluster.devices}
    devices = tuple(replace(device, price_per_hour=prices[device.name]) for device in batch.cluster.devices)
    options = replace(batch.options, objective="cost", deadline_ns=rng.choice([None, rng.randint(20, 200)]))
    return replace(batch, cluster=replace(batch.cluster, devices=devices), options=options)


def spoil_cover(certificate: dict[str, Any]) -> None:
    del certificate["boxes"][0]


def spoil_twice(certificate: dict[str, Any]) -> None:
    certificate["boxes"].append(certificate["boxes"][0])


def spoil_value(certificate: dict[str, Any]) -> None:
    certificate["value"] += 1


def spoil_proof(certificate: dict[str, Any]) -> None:
    box = certificate["boxes"][-1]
    box.pop("certificate", None)
    box["infeasible"] = "it does not fit"


def spoil_classes(certificate: dict[str, Any]) -> None:
    certificate["classes"] = [["a", "b"], ["c"]]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_cover, "leave subsets out"),
        (spoil_twice, "two boxes hold"),
        (spoil_value, "but proves"),
        (spoil_proof, "nothing proves that no plan fits"),
        (spoil_classes, "are not those of the cluster"),
    ],
)
def test_spoilt_certificates(spoil: Any, words: str):
    """Tests that a certificate that leaves subsets out, or states more than it proves, is refused."""
    problem = priced(star("a b c"), dict.fromkeys("abc", 2.0))
    subsets = Subsets(problem, SearchParams())
    subsets.branch(below=None, wanted=1_000, has_time=lambda: True)
    certificate = write_boxes(subsets.kinds, subsets.boxes, deadline_ns=None)
    assert check_subsets(problem, certificate) == certificate["value"]
    spoil(certificate)
    with pytest.raises(ValueError, match=words):
        check_subsets(problem, certificate)


def test_a_box_without_a_size_is_refused():
    """Tests that with a global batch every box needs an entry of every size."""
    question = priced_batch(Random(2))
    subsets = Subsets(question, SearchParams())
    certificate = write_boxes(subsets.kinds, subsets.boxes, deadline_ns=None)
    del certificate["boxes"][0]["certificate"]["sizes"][0]
    with pytest.raises(ValueError, match=r"it has entries for \[.*\], not for"):
        check_subsets(question.candidates[0], certificate)
