"""Five hundred valid plans, each changed at random: what the verifier lets pass is valid, and what is valid passes.

Of most changes it is known what they do to a valid plan: a list with other actions than before is wrong, whatever else
it is; of the same actions in another order the core says whether it comes to an end, and within the memory.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from random import Random

import pytest

from planner.actions import KINDS, Action
from planner.errors import PlanError
from planner.judge.times import Judgement
from planner.plan import Evidence, Plan, Stage
from planner.problem import Problem
from planner.simulation.simulate import simulate
from planner.verify import verify
from tests.planner.builders import with_evidence
from tests.planner.judged import judged
from tests.strategies import random_plan, random_problem, with_memory, with_reference

NUM_MUTATIONS = 500
BATCHES = 10

Mutation = Callable[[Random, Problem, Plan], Plan]


def with_word(plan: Plan, device: str, word: list[Action]) -> Plan:
    return replace(plan, schedule={**plan.schedule, device: tuple(word)})


def any_word(rng: Random, plan: Plan) -> tuple[str, list[Action]]:
    device = rng.choice(sorted(plan.schedule))
    return device, list(plan.schedule[device])


def swap_actions(rng: Random, problem: Problem, plan: Plan) -> Plan:
    """Two actions of a device change places."""
    device, word = any_word(rng, plan)
    i, j = rng.randrange(len(word)), rng.randrange(len(word))
    word[i], word[j] = word[j], word[i]
    return with_word(plan, device, word)


def swap_neighbours(rng: Random, problem: Problem, plan: Plan) -> Plan:
    """Two neighbouring actions of a device change places: often still valid."""
    device, word = any_word(rng, plan)
    i = rng.randrange(len(word) - 1)
    word[i : i + 2] = word[i : i + 2][::-1]
    return with_word(plan, device, word)


def drop_action(rng: Random, problem: Problem, plan: Plan) -> Plan:
    """An action is left out."""
    device, word = any_word(rng, plan)
    del word[rng.randrange(len(word))]
    return with_word(plan, device, word)


def repeat_action(rng: Random, problem: Problem, plan: Plan) -> Plan:
    """An action is run again elsewhere in the list."""
    device, word = any_word(rng, plan)
    word.insert(rng.randrange(len(word) + 1), rng.choice(word))
    return with_word(plan, device, word)


def move_action(rng: Random, problem: Problem, plan: Plan) -> Plan:
    """An action moves within its list."""
    device, word = any_word(rng, plan)
    action = word.pop(rng.randrange(len(word)))
    word.insert(rng.randrange(len(word) + 1), action)
    return with_word(plan, device, word)


def move_action_away(rng: Random, problem: Problem, plan: Plan) -> Plan:
    """An action moves to another device's list, or its own."""
    device, word = any_word(rng, plan)
    action = word.pop(rng.randrange(len(word)))
    plan = with_word(plan, device, word)
    other, word = any_word(rng, plan)
    word.insert(rng.randrange(len(word) + 1), action)
    return with_word(plan, other, word)


def change_action(rng: Random, problem: Problem, plan: Plan) -> Plan:
    """An action gets another kind, stage or microbatch."""
    device, word = any_word(rng, plan)
    index = rng.randrange(len(word))
    change = rng.choice(
        [
            {"kind": rng.choice(KINDS)},
            {"stage": rng.randint(-1, len(plan.stages))},
            {"microbatch": rng.randint(-1, problem.num_microbatches)},
        ]
    )
    word[index] = word[index]._replace(**change)
    return with_word(plan, device, word)


def fuse_or_split(rng: Random, problem: Problem, plan: Plan) -> Plan:
    """An I and its W become B on one device, or a B becomes I and W: valid unless the group disagrees."""
    device, word = any_word(rng, plan)
    action = rng.choice(word)
    twins = [action._replace(kind=kind) for kind in "IW"]
    fused = action._replace(kind="B")
    if fused in word:
        index = word.index(fused)
        word[index : index + 1] = twins
    elif all(twin in word for twin in twins):
        word[word.index(twins[0])] = fused
        word.remove(twins[1])
    return with_word(plan, device, word)


def swap_words(rng: Random, problem: Problem, plan: Plan) -> Plan:
    """Two devices get each other's list."""
    a, b = rng.choice(sorted(plan.schedule)), rng.choice(sorted(plan.schedule))
    return replace(plan, schedule={**plan.schedule, a: plan.schedule[b], b: plan.schedule[a]})


def drop_word(rng: Random, problem: Problem, plan: Plan) -> Plan:
    """A device loses its list."""
    device = rng.choice(sorted(plan.schedule))
    return replace(plan, schedule={name: word for name, word in plan.schedule.items() if name != device})


def add_word(rng: Random, problem: Problem, plan: Plan) -> Plan:
    """Some device, perhaps unknown, gets the list of another."""
    name = rng.choice([*problem.cluster.by_name, "nowhere"])
    return replace(plan, schedule={**plan.schedule, name: rng.choice([(), *plan.schedule.values()])})


def with_stage(plan: Plan, number: int, **changes: object) -> Plan:
    stages = list(plan.stages)
    stages[number] = replace(stages[number], **changes)
    return replace(plan, stages=tuple(stages))


def move_layer(rng: Random, problem: Problem, plan: Plan) -> Plan:
    """A layer moves to another stage, or to another place in its own."""
    number = rng.randrange(len(plan.stages))
    layers = list(plan.stages[number].layers)
    layer = layers.pop(rng.randrange(len(layers)))
    plan = with_stage(plan, number, layers=tuple(layers))
    number = rng.randrange(len(plan.stages))
    layers = list(plan.stages[number].layers)
    layers.insert(rng.randrange(len(layers) + 1), layer)
    return with_stage(plan, number, layers=tuple(layers))


def change_layer(rng: Random, problem: Problem, plan: Plan) -> Plan:
    """A layer is left out, listed twice or renamed."""
    number = rng.randrange(len(plan.stages))
    layers = plan.stages[number].layers
    return with_stage(plan, number, layers=rng.choice([layers[1:], (*layers, layers[0]), (*layers[1:], "nothing")]))


def change_device(rng: Random, problem: Problem, plan: Plan) -> Plan:
    """A stage gets another device in place of one of its own."""
    number = rng.randrange(len(plan.stages))
    groups = [list(group) for group in plan.stages[number].replicas]
    group = rng.choice(groups)
    group[rng.randrange(len(group))] = rng.choice([*problem.cluster.by_name, "nowhere"])
    return with_stage(plan, number, replicas=tuple(map(tuple, groups)))


def change_replicas(rng: Random, problem: Problem, plan: Plan) -> Plan:
    """A stage loses its first replica or gets one more, or its replicas or groups change their order."""
    number = rng.randrange(len(plan.stages))
    groups = plan.stages[number].replicas
    more = (*groups, (rng.choice(sorted(problem.cluster.by_name)),))
    turned = tuple(group[::-1] for group in groups)
    return with_stage(plan, number, replicas=rng.choice([groups[1:], more, groups[::-1], turned]))


def change_recompute(rng: Random, problem: Problem, plan: Plan) -> Plan:
    """A stage recomputes, or no longer."""
    number = rng.randrange(len(plan.stages))
    return with_stage(plan, number, recompute=not plan.stages[number].recompute)


def change_stages(rng: Random, problem: Problem, plan: Plan) -> Plan:
    """A stage is dropped, repeated, emptied or exchanged with another."""
    stages = list(plan.stages)
    i, j = rng.randrange(len(stages)), rng.randrange(len(stages))
    empty: Stage = replace(stages[i], layers=())
    swapped = [stages[j] if k == i else stages[i] if k == j else stage for k, stage in enumerate(stages)]
    return replace(plan, stages=tuple(rng.choice([stages[1:], [*stages, stages[i]], [*stages, empty], swapped])))


def change_evidence(rng: Random, problem: Problem, plan: Plan) -> Plan:
    """A figure of the evidence is changed."""
    assert plan.evidence is not None
    name = rng.choice(["makespan_ns", "span_ns", "bubble", "lower_bound_ns", "gap", "schedule_bound_ns", "peak_bytes"])
    value = getattr(plan.evidence, name)
    if isinstance(value, dict):
        device = rng.choice(sorted(value))
        changed: object = {**value, device: value[device] + rng.choice([-1, 1])}
    else:
        changed = (value or 0) + rng.choice([-1, 1, 10**6, 0.25])
    return replace(plan, evidence=replace(plan.evidence, **{name: changed}))


MUTATIONS: tuple[Mutation, ...] = (
    *(swap_actions, swap_neighbours, swap_neighbours, drop_action, repeat_action, move_action, move_action_away),
    *(change_action, fuse_or_split, fuse_or_split, swap_words, drop_word, add_word, move_layer, change_layer),
    *(change_device, change_replicas, change_recompute, change_stages, change_evidence),
)


def is_true(problem: Problem, evidence: Evidence, figures: Judgement) -> bool:
    """Whether evidence agrees with the figures of its plan."""
    objective = figures.span_ns if problem.options.objective == "span" else figures.makespan_ns
    bound, schedule_bound = evidence.lower_bound_ns, evidence.schedule_bound_ns
    gap = (objective - bound) / objective if objective else 0.0
    return (
        (evidence.makespan_ns, evidence.span_ns) == (figures.makespan_ns, figures.span_ns)
        and evidence.peak_bytes == figures.peak_bytes
        and abs(evidence.bubble - figures.bubble) < 1e-9
        and isinstance(bound, int)
        and 0 <= bound <= objective
        and abs(evidence.gap - gap) < 1e-9
        and (schedule_bound is None or (isinstance(schedule_bound, int) and 0 <= schedule_bound <= objective))
    )


def work(plan: Plan) -> dict[str, Counter[Action]]:
    """What every device does, in no order, each B as its I and W."""
    parts = {"B": "IW"}
    return {
        device: Counter(action._replace(kind=kind) for action in word for kind in parts.get(action.kind, action.kind))
        for device, word in plan.schedule.items()
    }


def is_playable(problem: Problem, plan: Plan) -> bool:
    """Whether the core brings a plan to its end, and it fits."""
    try:
        peaks = simulate(problem, plan).peak_bytes
    except PlanError:
        return False
    return all(peak <= problem.cluster.by_name[device].usable_bytes for device, peak in peaks.items())


def expected(problem: Problem, mutation: Mutation, *, before: Plan, after: Plan) -> bool | None:
    """Whether a changed plan is valid; None where nobody but the judge says so."""
    if after == before:
        return True
    if mutation is change_evidence:
        assert after.evidence is not None
        return is_true(problem, after.evidence, judged(problem, before))
    if mutation is change_layer:
        return False
    if mutation is change_recompute:
        is_allowed = problem.options.recompute or not any(stage.recompute for stage in after.stages)
        return is_allowed and is_playable(problem, after)
    if after.stages != before.stages:
        listed = sorted(name for stage in after.stages for name in stage.layers)
        is_whole = listed == sorted(problem.profile.by_name) and all(stage.layers for stage in after.stages)
        return None if is_whole else False
    kinds = [{action.kind for word in plan.schedule.values() for action in word} for plan in (before, after)]
    is_fused = problem.options.split_backward or kinds[1] <= kinds[0]
    return work(after) == work(before) and is_fused and is_playable(problem, after)


def random_case(rng: Random) -> tuple[Problem, Plan]:
    """A valid plan, now and then with memory that just suffices."""
    problem = random_problem(rng)
    plan = random_plan(rng, problem)
    if rng.random() < 0.4:
        peaks = simulate(problem, plan).peak_bytes
        problem = with_memory(problem, {device: peak + rng.choice([0, 3, 20]) for device, peak in peaks.items()})
        plan = with_reference(problem, plan)
    return problem, plan


@pytest.mark.parametrize("batch", range(BATCHES))
def test_mutated_plans_are_valid_or_rejected(batch: int):
    """Tests that the verifier's verdict on every mutated plan is the one that its mutation lets expect."""
    outcomes: Counter[bool] = Counter()
    known = 0
    for number in range(NUM_MUTATIONS // BATCHES):
        rng = Random(f"{batch}-{number}")
        problem, plan = random_case(rng)
        mutation = MUTATIONS[(batch * (NUM_MUTATIONS // BATCHES) + number) % len(MUTATIONS)]
        if mutation is change_evidence:
            plan = with_evidence(problem, plan)
        mutated = mutation(rng, problem, plan)
        verdict, wanted = verify(problem, mutated), expected(problem, mutation, before=plan, after=mutated)
        known += wanted is not None
        assert verdict.passed == (verdict.passed if wanted is None else wanted), (
            f"seed {batch}-{number}, {mutation.__name__}: {verdict.violations[:3]}"
        )
        outcomes[verdict.passed] += 1
    assert outcomes[True] >= 3
    assert outcomes[False] >= 20
    assert known >= 0.8 * NUM_MUTATIONS // BATCHES


def test_every_field_of_the_evidence_that_is_recomputed_can_be_mutated():
    """Tests that the mutation of the evidence names only fields there are."""
    problem, plan = random_case(Random(1))
    plan = with_evidence(problem, plan)
    changed = {
        field.name
        for seed in range(200)
        for field in fields(Evidence)
        if getattr(change_evidence(Random(seed), problem, plan).evidence, field.name)
        != getattr(plan.evidence, field.name)
    }
    assert len(changed) == 7
