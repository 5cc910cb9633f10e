"""The compiled evaluator says what the cost model, the lowering and the simulator say, to the nanosecond."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.lowering import make_schedule_instance
from solver_models.device_rows import KIND
from solver_models.instance import Transfer
from solver_models.moves.annealing import evaluate, overflow
from solver_models.moves.neighbourhood import Solution
from solver_models.simulation.evaluator import FAR, Net, ceil_div, peak_excess, ticks_for
from tests.planner.builders import make_edge, make_layer, make_link, make_problem, make_stage, picture
from tests.solver_models.nets import Case, random_case, random_policy_params
from tests.strategies import random_schedule, with_host_times

randoms = st.randoms(use_true_random=False)


def flows_of(net: Net, lane: int, *, is_backward: bool) -> list[tuple[int, int, tuple[int, ...]]]:
    """Receiver, ticks and links of what a lane sends one way, in the order in which it goes off."""
    way = 2 * lane + is_backward
    found = []
    for f in range(net.transfer_start[way], net.transfer_start[way + 1]):
        route = net.transfer_route[f]
        begin, end = (0, 0) if route < 0 else net.route_start[route : route + 2]
        links = tuple(net.route_links[begin:end].tolist())
        found.append((int(net.transfer_target[f]), int(net.transfer_duration[f]), links))
    return found


def shown(flow: Transfer) -> tuple[int, int, tuple[int, ...]]:
    """The same of a flow of a schedule instance; what takes no time occupies nothing."""
    return flow.receiver, flow.duration, flow.links if flow.duration else ()


@given(randoms)
def test_nets_are_what_lowering_makes(rng: Random):
    """Tests that lanes, flows in their order, budgets and synchronisation equal those of the schedule instance."""
    case = random_case(rng, is_tight=rng.random() < 0.5)
    net, expected = case.net, make_schedule_instance(case.problem, case.stages, costs=case.costs)
    assert net.devices.tolist() == list(map(list, expected.devices))
    assert net.synchronisation.tolist() == list(expected.synchronisation)
    assert len(net.replica_stage) == len(expected.replicas)
    for n, lane in enumerate(expected.replicas):
        assert (net.replica_stage[n], net.replica_device[n]) == (lane.stage, lane.device)
        assert net.duration[n].tolist() == [lane.forward, lane.input_grad, lane.weight_grad, lane.backward]
        sizes = [net.held[n], net.stash[n], net.whole_backward[n], net.weight_stash[n], net.workspace[n]]
        assert sizes == [lane.held, lane.stash, lane.whole_backward, lane.weight_stash, lane.workspace]
        assert net.weight_workspace[n] == lane.weight_workspace
        assert net.has_weight[n] == lane.has_weight_grad
        for is_backward in (False, True):
            sent = [shown(flow) for flow in expected.transfers if (flow.sender, flow.is_backward) == (n, is_backward)]
            assert flows_of(net, n, is_backward=is_backward) == sent
        received = [flow for flow in expected.transfers if flow.receiver == n]
        assert net.num_inputs[n] == sum(not flow.is_backward for flow in received)
        assert net.num_gradients[n] == sum(flow.is_backward for flow in received)


@pytest.mark.parametrize("overlap", [True, False])
@given(rng=randoms)
def test_policies_play_as_the_simulator_replays(overlap: bool, rng: Random):
    """Tests that the words a policy writes take as long in the simulator as the policy said."""
    case = random_case(rng, overlap=overlap)
    for _ in range(4):
        words, objective = case.searcher.device_orders(case.candidate(policy_params=random_policy_params(rng)))
        assert case.play(words).objective_ns(case.problem.options.objective) == objective


@pytest.mark.parametrize("overlap", [True, False])
@given(rng=randoms)
def test_words_play_as_in_the_simulator(overlap: bool, rng: Random):
    """Tests that any order takes as long in the kernel as in the simulator."""
    case = random_case(rng, overlap=overlap)
    schedule = random_schedule(rng, case.problem, stages=case.stages)
    words = case.device_orders(schedule)
    _, objective = case.searcher.device_orders(case.candidate(words=words))
    assert case.play(words).objective_ns(case.problem.options.objective) == objective


def with_clocks(rng: Random, case: Case) -> Case:
    """The case where hosts ask for actions, its stages with their layers in the profile's order."""
    problem = with_host_times(rng, case.problem)
    order = problem.profile.topological_order.index
    return Case(problem, tuple(replace(stage, layers=tuple(sorted(stage.layers, key=order))) for stage in case.stages))


@given(randoms)
def test_hosts_are_those_of_the_cost_model(rng: Random):
    """Tests that products of matrices in the kernel are those of the cost model, and that plays end alike."""
    case = with_clocks(rng, random_case(rng))
    costs = [case.costs.stage_cost(stage, n) for stage in case.stages for n in range(len(stage.replicas))]
    none = ((0, 0),) * 4
    if case.net.host.shape[0]:
        of_stages = case.searcher.layers.overhead[1 if len(case.net.synchronisation) > 1 else 0]
        overhead = of_stages[case.searcher.layers.devices[case.net.replica_device, KIND]]
        for own, cost, extra in zip(case.net.host.tolist(), costs, overhead.tolist(), strict=True):
            expected = cost.clocks or none
            assert cost.clocks == () or own == [list(clock) for clock in expected]
            assert cost.clocks or [host for host, _ in own] == extra
    words, objective = case.searcher.device_orders(case.candidate(policy_params=random_policy_params(rng)))
    assert case.play(words).objective_ns(case.problem.options.objective) == objective


@given(randoms)
def test_words_are_kept_as_they_are(rng: Random):
    """Tests that an order given to the kernel comes back unchanged."""
    case = random_case(rng)
    words = case.device_orders(random_schedule(rng, case.problem, stages=case.stages))
    assert case.searcher.device_orders(case.candidate(words=words))[0] == words


@given(randoms)
def test_excess_is_what_exceeds_the_memory(rng: Random):
    """Tests that orders are refused exactly when the simulator finds a peak above the memory."""
    case = random_case(rng, is_tight=True)
    words = case.device_orders(random_schedule(rng, case.problem, stages=case.stages))
    timeline = case.play(words)
    memory = {device.name: device.memory_bytes for device in case.problem.cluster.devices}
    excess = max(0, *(peak - memory[name] for name, peak in timeline.peak_bytes.items()))
    codes, lengths = encode(case.net, words)
    assert peak_excess(case.net, codes, lengths) == excess
    _, objective = case.searcher.device_orders(case.candidate(words=words))
    assert objective == (None if excess else timeline.objective_ns(case.problem.options.objective))


def encode(net: Net, words: dict[int, list[tuple[int, int, int]]]) -> tuple[np.ndarray, np.ndarray]:
    """Words as the kernels read them."""
    lanes = {(net.replica_device[n], net.replica_stage[n]): n for n in range(len(net.replica_stage))}
    codes = np.zeros((len(net.devices), max(map(len, words.values()))), np.int32)
    lengths = np.zeros(len(net.devices), np.int64)
    for device, word in words.items():
        lengths[device] = len(word)
        codes[device, : len(word)] = [lanes[device, stage] * 4 + kind for kind, stage, _ in word]
    return codes, lengths


@pytest.mark.parametrize("overlap", [True, False])
@given(rng=randoms)
def test_plays_end_early_only_if_they_are_too_late(overlap: bool, rng: Random):
    """Tests that a play with a threshold gives what a whole play does, or at least the threshold."""
    case = random_case(rng, overlap=overlap)
    searcher, candidate = case.searcher, case.candidate(policy_params=random_policy_params(rng))
    start = np.cumsum([0, *(len(group) for group in candidate.groups)]).astype(np.int64)
    devices = np.array([device for group in candidate.groups for device in group], np.int64)
    solution = Solution(candidate.stage_of, start, devices, candidate.modes, candidate.policy_params)
    whole = evaluate(searcher.layers, solution, FAR, False, False).amount
    for threshold in (whole - 1, whole, whole + 1, whole * rng.randint(1, 200) // 100):
        early = evaluate(searcher.layers, solution, threshold, False, False).amount
        assert early == whole if whole < threshold else early >= threshold


@given(randoms)
def test_overflow_means_that_no_order_fits(rng: Random):
    """Tests that no order of a net that overflows stays within the memory."""
    case = random_case(rng, is_tight=True)
    memory = {device.name: device.memory_bytes for device in case.problem.cluster.devices}
    peaks = case.play(case.device_orders(random_schedule(rng, case.problem, stages=case.stages))).peak_bytes
    if overflow(case.net) > 0:
        assert any(peak > memory[name] for name, peak in peaks.items())


def two_by_two(**fields: object) -> Case:
    """Stages 0 and 2 on a, 1 and 3 on b."""
    layers = [make_layer(name) for name in "wxyz"]
    problem = make_problem(layers, [make_link("a b")], max_stages_per_device=2, **fields)
    return Case(problem, tuple(make_stage(text) for text in ("w @ a", "x @ b", "y @ a", "z @ b")))


def test_deadlocks_take_for_ever():
    """Tests that devices which wait for each other are never done."""
    case = two_by_two()
    wait = [(0, 0, 0), (0, 2, 0), (1, 2, 0), (2, 2, 0), (1, 0, 0), (2, 0, 0)]
    cross = [(0, 3, 0), (0, 1, 0), (1, 3, 0), (2, 3, 0), (1, 1, 0), (2, 1, 0)]
    assert case.searcher.device_orders(case.candidate(words={0: wait, 1: cross}))[1] is None


def letters(case: Case, policy_params: tuple[int, int, int, int]) -> str:
    """The words of a policy, a line per device."""
    words, _ = case.searcher.device_orders(case.candidate(policy_params=np.array(policy_params)))
    return "\n".join(
        f"{case.problem.cluster.devices[device].name} | " + " ".join(f"{'FIWB'[kind]}{m}" for kind, _, m in word)
        for device, word in words.items()
    )


@pytest.mark.parametrize(
    ("policy_params", "expected"),
    [
        (
            (4, 0, 0, 1),  # as many in flight as stages are left, I and W fused
            """
            a | F0 F1 F2 B0 F3 B1 B2 B3
            b | F0 F1 B0 F2 B1 F3 B2 B3
            c | F0 B0 F1 B1 F2 B2 F3 B3
            """,
        ),
        (
            (0, 9, 0, 3),  # all F first, I and W fused
            """
            a | F0 F1 F2 F3 B0 B1 B2 B3
            b | F0 F1 F2 F3 B0 B1 B2 B3
            c | F0 F1 F2 F3 B0 B1 B2 B3
            """,
        ),
        (
            (4, 0, 9, 0),  # W only where nothing else can run
            """
            a | F0 F1 F2 I0 F3 I1 W0 I2 W1 I3 W2 W3
            b | F0 F1 I0 F2 I1 F3 I2 W0 I3 W1 W2 W3
            c | F0 I0 F1 I1 F2 I2 F3 I3 W0 W1 W2 W3
            """,
        ),
    ],
    ids=["1F1B", "GPipe", "late W"],
)
def test_policies_draw_known_schedules(policy_params: tuple[int, int, int, int], expected: str):
    """Tests that three policies give the schedules they are named after."""
    problem = make_problem(
        [make_layer(name) for name in "xyz"],
        [make_link("a b"), make_link("b c")],
        edges=[make_edge("x y"), make_edge("y z")],
        num_microbatches=4,
    )
    case = Case(problem, tuple(make_stage(text) for text in ("x @ a", "y @ b", "z @ c")))
    assert letters(case, policy_params) == picture(expected)


@given(st.integers(0, 2**40), st.integers(1, 9 * 10**15 - 1))
def test_ticks_are_exact(size: int, bandwidth: int):
    """Tests that the time of a transfer is its exact quotient rounded up, wherever that fits into 62 bits."""
    exact = -(-size * 10**9 // bandwidth)
    if exact < 2**62:
        assert ticks_for(size, bandwidth) == exact
    assert ceil_div(size, bandwidth) == -(-size // bandwidth)
