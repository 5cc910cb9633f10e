"""Microbatches of different size, given one by one and dealt whole, on gloo processes against one process."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from planner.plan import Plan
from planner.progress import Limits
from tests.integration.forked_ranks import run_script
from tests.long_runs import long_only, shortened
from tests.planner.execute.orders import make_random_plan
from tests.planner.execute.run.test_execution import Case, drawn, named, run_cases, shard
from tests.planner.execute.test_enter import start_ranks, write
from tests.planner.export.chains import make_chain
from tests.planner.hasty import make_plan


def dealt(placement: str, *hands: Sequence[int], steps: int = 3, model: str = "lengths", **more: Any) -> Case:
    """Pipelines side by side: replica k of every stage runs those of hand k, each pipeline in an order of its own."""
    stages = [stage.split("/") for stage in placement.split()]
    seed, cut = more.pop("seed", None), more.pop("cut", None) or [1] * len(stages)
    plans = [
        make_random_plan(
            " ".join(stage[number] for stage in stages),
            num_microbatches=len(hand),
            seed=None if seed is None else seed + number,
            cut=cut,
            **more,
        )
        for number, hand in enumerate(hands)
    ]
    schedule = {
        device: tuple(action._replace(microbatch=hand[action.microbatch]) for action in row)
        for plan, hand in zip(plans, hands, strict=True)
        for device, row in plan.schedule.items()
    }
    held = zip(*(plan.stages for plan in plans), strict=True)
    joined = tuple(replace(each[0], replicas=tuple(one.replicas[0] for one in each)) for each in held)
    problem = replace(plans[0].problem, num_microbatches=sum(map(len, hands)))
    plan = replace(plans[0], problem=problem, stages=joined, schedule=schedule, dealing=tuple(map(tuple, hands)))
    return Case(plan=plan, kinds="w" * sum(cut), model=model, steps=steps)


def one_by_one(placement: str, *, num_microbatches: int = 4, model: str = "dealt", **more: Any) -> Case:
    """The plan cuts its microbatches and has orders of its own; the training deals, and all run 1F1B."""
    return drawn(placement, num_microbatches=num_microbatches, model=model, **({"steps": 3} | more))


@cache
def planned() -> Case:
    """What the planner makes of a chain and listed microbatches (those of `uneven_models.of_planned_sizes`)."""
    sizes = (2, 9, 4, 1, 6, 3)
    problem = make_chain("wwww", num_devices=4, num_microbatches=len(sizes))
    profile = replace(problem.profile, microbatch_size=3, scaling="linear")
    problem = replace(problem, profile=profile, microbatches=sizes)
    plan = make_plan(problem, limits=Limits(time_limit_s=60, max_rounds=1))
    assert plan.dealing
    return Case(plan=plan, kinds="wwww", model="of_planned_sizes", steps=2)


def with_then(case: Case, plan: Plan) -> Case:
    """It goes on under another plan after the first iteration."""
    return replace(case, then=plan)


def sharded(case: Case) -> Case:
    """Replicas shard the optimizer's state."""
    return replace(case, plan=shard(case.plan))


TWO = {
    "lengths, chunks": drawn("0 1 0 1", num_microbatches=4, model="lengths", steps=3),
    "sizes, skip edges": drawn(
        "0 1 0 1", cut=(1, 2, 1, 1), kinds="wwwww", num_microbatches=3, model="skipping_sizes", steps=3
    ),
    "dealt to replicas of one stage": dealt("0/1", (2, 0), (1, 3, 4), cut=(3,)),
    "one batch, dealt": dealt("0/1 0/1", (3,), (2, 1, 0), model="vectors"),
    "dealt anew": one_by_one("0/1", cut=(3,)),
}
"""Plans for two processes."""

FOUR = {
    "dealt, tied and clipped": dealt("0/2 1/3", (3, 0), (1, 2, 4), cut=(2, 2), seed=3, model="lengths_tied"),
    "dealt anew, tokens that count": one_by_one("0/2 1/3", cut=(2, 2), model="dealt_counted", steps=4),
    "dealt anew, goes on in one pipeline": with_then(
        one_by_one("0/1 2/3", cut=(2, 2)), one_by_one("3 1 0 2", cut=(1, 1, 1, 1)).plan
    ),
}
"""Plans for four processes."""

if shortened(False, whole=True):
    TWO |= {
        "lengths, recomputed": drawn("0 1", cut=(2, 2), num_microbatches=4, model="lengths", recompute="yy", steps=3),
        "lengths, whole backward": drawn("0 1", cut=(2, 2), num_microbatches=5, model="lengths", backward="B", steps=3),
        "lengths, sum of losses": drawn("0 1", cut=(2, 2), num_microbatches=3, model="lengths_summed", steps=3),
        "lengths, tokens that count": drawn("0 1", cut=(2, 2), num_microbatches=3, model="lengths_counted", steps=3),
        "lengths, random order": drawn("0 1 1 0", num_microbatches=5, model="lengths", seed=5, steps=3),
        "dealt, sharded": sharded(dealt("0/1 0/1", (2, 0), (1, 3, 4), cut=(2, 2), seed=1)),
        "sizes, dealt with skip edges": dealt(
            "0/1 0/1 0/1", (1, 0), (2,), cut=(2, 2, 1), model="skipping_sizes", edges="0-1 0-2 1-2"
        ),
        "dealt anew, accumulating": one_by_one("0/1", cut=(3,), model="dealt_accumulating", steps=4),
        "dealt anew, sharded": sharded(one_by_one("0/1", cut=(3,))),
    }
    FOUR |= {
        "lengths, four stages": drawn("0 1 2 3", num_microbatches=6, model="lengths", steps=3, seed=2),
        "dealt to two groups": dealt("0+1/2+3", (1, 0), (2,), cut=(2,), model="wide_sizes"),
        "dealt to four": dealt("0/1/2/3", (4,), (0, 1), (2,), (5, 3), cut=(3,)),
        "dealt to two, chunks": dealt("0/2 1/3 0/2 1/3", (4, 0), (1, 3, 2), seed=7),
        "dealt to two, summed": dealt("0/2 1/3", (4, 0), (1, 3, 2), cut=(2, 2), model="lengths_summed"),
        "dealt anew, accumulating": one_by_one("0/2 1/3", cut=(2, 2), model="dealt_accumulating", steps=4),
        "dealt anew, sharded": sharded(one_by_one("0/2 1/3", cut=(2, 2))),
        "dealt, goes on in one pipeline": with_then(
            dealt("0/2 1/3", (1, 0), (2, 3), cut=(2, 2)), make_random_plan("3 1 2 0", num_microbatches=4)
        ),
    }

REFUSED = {
    "lengths to replicas without a dealing": (
        drawn("0/1", cut=(3,), num_microbatches=3, model="lengths"),
        "stage 0 cuts every microbatch for 2 replicas, but microbatches are given one by one, to be run whole; give",
    ),
    "batch norms of dealt microbatches": (
        dealt("0/1", (0,), (1, 2), cut=(2,), model="normed"),
        "layer 'l0' of stage 0 keeps averages over microbatches, but each of its 2 replicas",
    ),
    "dealt anew with several stages per device": (
        drawn("0 1 0", cut=(1, 1, 1), num_microbatches=2, model="dealt"),
        "`Training.deal` lets every pipeline run 1F1B, for which a device holds one stage, but d0 holds 0, 2; plan",
    ),
    "dealt anew to pipelines of two sizes": (
        drawn("0 0/1", cut=(2, 2), num_microbatches=3, model="dealt"),
        "`Training.deal` deals whole microbatches to equal pipelines, but the plan has stages of 1 and 2 replicas;",
    ),
    "a microbatch too few": (
        drawn("0 1", cut=(2, 2), num_microbatches=3, model="too_few"),
        "iteration 1: 2 microbatches were given instead of 3, of which the plan orders the actions; give as many, or",
    ),
    "a list after a batch": (
        drawn("0/1", cut=(3,), num_microbatches=3, model="late_list"),
        "iteration 1 is given as microbatches, but that of `Training.batch(0)` is one batch, to be cut into equal ones",
    ),
    "a shape that no layer takes": (
        drawn("0 1", cut=(2, 2), num_microbatches=3, model="wrong_type"),
        "stage 0 (layers 'l0' to 'l1') cannot take what it is given: ",
    ),
    "dealt by each process in its own way": (
        one_by_one("0/1", cut=(3,), model="dealt_apart"),
        "iteration 0: rank 1 (d1) deals the microbatches otherwise than rank 0 (d0); `deal` has to depend on the",
    ),
    "a pipeline without a microbatch": (
        one_by_one("0/1", cut=(3,), model="dealt_to_one"),
        "iteration 0: `deal` gives [[0, 1, 2, 3, 4, 5], []]: pipeline 1 has none; give each at least one",
    ),
    "other texts on one process": (
        dealt("0/1", (0,), (1, 2), cut=(3,), model="other_targets_of_texts"),
        "iteration 0: target of microbatch 0 of rank 1 (d1) differs from those of rank 0 (d0), so outputs would",
    ),
    "other shapes on one process": (
        dealt("0/1", (0,), (1, 2), cut=(3,), model="other_shapes"),
        "iteration 1: microbatch 1 of rank 1 (d1) has other shapes than that of rank 0 (d0); every process has to be",
    ),
}
"""Not run, or not to its end, and in which words."""

CASES = {f"2 processes: {name}": case for name, case in TWO.items()}
CASES |= {f"4 processes: {name}": case for name, case in FOUR.items()}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What every rank says about every case."""
    answers = {}
    refused = {name: case for name, (case, _) in REFUSED.items()}
    for world_size, cases in [(2, TWO | refused), (4, FOUR | {"planned": planned()})]:
        found = run_cases(cases, world_size, folder=tmp_path_factory.mktemp(f"dealt{world_size}"))
        answers |= {f"{world_size} processes: {name}": told for name, told in found.items()}
    return answers


@pytest.mark.parametrize("name", CASES)
def test_it_trains_as_one_process(outcomes, name: str):
    """Tests that losses, gradients and weights of several iterations of other sizes are those of one process."""
    require_one_process(CASES[name], outcomes[name])


def test_a_planned_dealing_trains_as_one_process(outcomes):
    """Tests that what the planner deals to two pipelines, I and W apart, is run as one process would train it."""
    answers = outcomes["4 processes: planned"]
    require_one_process(planned(), answers)
    assert any("W" in action for answer in answers for action in answer["row"])


def require_one_process(case: Case, answers: Sequence[dict[str, Any]]) -> None:
    for answer in answers:
        assert "refused" not in answer, answer
        assert answer["missing"] == []
        assert answer["count"] > 0
        assert answer["gradients"] <= 1e-12 * answer["largest"]
        assert answer["weights"] <= 1e-12 * max(answer["largest"], 1)
        assert answer["kept"] == 0
    assert any(answer["evaluated"] for answer in answers) or case.model == "vectors"
    for answer in answers:
        if answer["evaluated"]:
            assert answer["evaluated"] == pytest.approx(answer["expected_evaluation"], rel=1e-11, abs=0)
    for number in range(case.steps):
        told = [answer for answer in answers if answer["losses"][number]]
        plan = case.plan if case.then is None or number == 0 else case.then
        assert len(told) == sum(map(len, plan.stages[-1].replicas))
        for answer in told:
            assert answer["losses"][number] == pytest.approx(answer["expected_losses"][number], rel=1e-12, abs=0)


def test_every_microbatch_is_run_by_one_pipeline(outcomes):
    """Tests that pipelines run as many microbatches as they are dealt, other numbers in other iterations."""
    ranks = outcomes["4 processes: dealt anew, tokens that count"]
    hands = []
    for number in range(4):
        ran = [sorted(name for name in rank["executed"][number] if name.startswith("0F")) for rank in ranks]
        whole = [f"0F{place}" for place in range(len(ranks[-1]["expected_losses"][number]))]
        assert sorted(name for row in ran for name in row) == whole
        hands.append(sorted(map(len, filter(None, ran))))
    assert any(short < long for short, long in hands), hands


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_in_the_same_words(outcomes, name: str):
    """Tests that what cannot be run, or would be wrong, ends on both ranks in one message that says what to do."""
    first, second = outcomes[f"2 processes: {name}"]
    assert first == second
    assert first["refused"].startswith(REFUSED[name][1]), first


def run_example(placement: str, folder: Path, *arguments: object, program: str = "examples.sft") -> list[str]:
    """What every rank of the example says, with one stage of all its layers on every device."""
    case = one_by_one(placement, num_microbatches=2, cut=(6,))
    names = ("embedding", "block0", "block1", "block2", "block3", "head")
    plan = write(named(case, *names).plan, folder / f"{placement.count('/')}.json")
    answers = start_ranks([[plan, *arguments]] * (1 + placement.count("/")), program=program)
    assert [code for code, _ in answers] == [0] * len(answers), answers
    return [said for _, said in answers]


def read_losses(said: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"loss ([\d.]+)", said)]


@long_only
def test_a_data_loader_gives_every_pipeline_its_own(tmp_path: Path):
    """Tests that torch's loader, which loads what each pipeline is dealt, trains two of them as one that has all."""
    two, one = run_example("0/1", tmp_path), run_example("0", tmp_path)
    losses = read_losses(one[0])
    assert len(losses) == 10
    assert losses[-1] < 0.9 * losses[0]
    assert read_losses(two[0]) == pytest.approx(losses, rel=1e-4)


def test_listed_microbatches_are_not_profiled(tmp_path: Path):
    """Tests that a profile of microbatches that differ is refused with what to give instead."""
    script = """
from examples.sft import make_training
from profiles.measure.model import as_model, num_samples

try:
    num_samples(as_model(make_training()))
except ValueError as error:
    print(error)
"""
    assert run_script(script, tmp_path / "script.py") == (
        "the batch of iteration 0 lists its microbatches one by one; to be profiled, give (inputs, target) of "
        "samples of one length, such as the longest\n"
    )
