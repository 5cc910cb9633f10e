"""First candidates: sound, balanced, and within the options wherever the options leave them a chance."""

from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.problem import PinnedLayer
from solver_models.moves.annealing import UNRATED
from solver_models.starts.first_candidates import balanced_cut, make_seeds
from tests.planner.builders import make_layer, make_link, make_problem
from tests.solver_models.nets import Case, is_ordered, random_exact_problem, random_restrictions

randoms = st.randoms(use_true_random=False)


@given(randoms)
def test_seeds_are_sound(rng: Random):
    """Tests that no seed has an empty stage, a backward edge or a device twice in a stage, and that all are rated."""
    case = Case(random_restrictions(rng), ())
    for seed in make_seeds(case.searcher):
        assert is_ordered(case.instance, seed.stage_of)
        assert len(seed.groups) == len(seed.modes) == seed.stage_of.max() + 1
        assert all(group and len(set(group)) == len(group) for group in seed.groups)
        assert (seed.fit != UNRATED) == case.searcher.is_allowed(seed)


@given(randoms)
def test_permissive_options_allow_every_seed(rng: Random):
    """Tests that all seeds are allowed, and fit, where the options and the memory forbid nothing."""
    case = Case(random_exact_problem(rng), ())
    seeds = make_seeds(case.searcher)
    assert seeds
    assert all(case.searcher.is_allowed(seed) and seed.is_feasible for seed in seeds)


@pytest.mark.parametrize(
    ("num_stages", "expected"), [(1, [12]), (2, [6, 6]), (3, [4, 4, 4]), (4, [3, 3, 3, 3]), (5, [2, 3, 2, 3, 2])]
)
def test_equal_layers_are_cut_evenly(num_stages: int, expected: list[int]):
    """Tests that equal layers on equal devices are shared out as evenly as they can be."""
    links = [make_link(f"d{a} d{a + 1}") for a in range(4)]
    case = Case(make_problem([make_layer(f"l{i}") for i in range(12)], links), ())
    cut = balanced_cut(case.instance, tuple((device,) for device in range(num_stages)))
    assert np.bincount(cut).tolist() == expected


@given(randoms)
def test_no_stage_is_far_above_its_share(rng: Random):
    """Tests that a cut differs from the ideal one by at most half of the layer it goes through."""
    problem = random_exact_problem(rng, num_layers=6, num_devices=3)
    instance = Case(problem, ()).instance
    num_stages = rng.randint(1, min(instance.num_layers, instance.num_devices))
    groups = tuple((device,) for device in range(num_stages))
    stage_of = balanced_cut(instance, groups)
    assert is_ordered(instance, stage_of)
    assert stage_of.max() + 1 == num_stages
    work = instance.work[0, [0, 1, 2]].sum(axis=0)
    speed = (1 / np.maximum(work.sum(axis=1).astype(float), 1))[instance.device_type][:num_stages]
    mean, total = work.mean(axis=0), max(float(work.mean(axis=0).sum()), 1.0)
    ideal = np.cumsum(speed) / speed.sum() * total
    done = np.array([mean[stage_of <= stage].sum() for stage in range(num_stages)])
    is_even = (stage_of == np.arange(len(stage_of)) * num_stages // len(stage_of)).all()
    assert is_even or np.all(np.abs(done - ideal) <= mean.max() / 2 + 1e-6)


def test_faster_devices_get_more():
    """Tests that a group of two devices gets twice the layers of one."""
    links = [make_link("a b"), make_link("b c")]
    case = Case(make_problem([make_layer(f"l{i}") for i in range(9)], links), ())
    assert np.bincount(balanced_cut(case.instance, ((0, 1), (2,)))).tolist() == [6, 3]


def test_one_heavy_layer_leaves_no_stage_empty():
    """Tests that a layer which outweighs all others does not swallow a stage."""
    layers = [make_layer("x"), make_layer("y", (1000, 1000, 1000)), make_layer("z")]
    case = Case(make_problem(layers, [make_link("a b"), make_link("b c")]), ())
    assert balanced_cut(case.instance, ((0,), (1,), (2,))).tolist() == [0, 1, 2]
    assert all(is_ordered(case.instance, seed.stage_of) for seed in make_seeds(case.searcher))


@given(randoms)
def test_given_stages_are_kept(rng: Random):
    """Tests that every seed has the given partition, on the given devices where they are given."""
    num_layers, num_devices = rng.randint(1, 8), rng.randint(1, 4)
    cuts = sorted(rng.sample(range(1, num_layers), rng.randint(0, num_layers - 1)))
    names = [f"l{i}" for i in range(num_layers)]
    partition = tuple(tuple(names[a:b]) for a, b in pairwise([0, *cuts, num_layers]))
    links = [make_link(f"d{a} d{b}") for a in range(num_devices) for b in range(a + 1, num_devices)]
    placement = tuple(((f"d{rng.randrange(num_devices)}",),) for _ in partition) if rng.random() < 0.5 else None
    problem = make_problem(
        [make_layer(name) for name in names],
        links,
        more_devices="d0",
        max_stages_per_device=8,
        partition=partition,
        placement=placement,
    )
    case = Case(problem, ())
    seeds = make_seeds(case.searcher)
    assert any(case.searcher.is_allowed(seed) for seed in seeds)
    expected = [stage for stage, layers in enumerate(partition) for _ in layers]
    assert all(seed.stage_of.tolist() == expected for seed in seeds)
    if placement is not None:
        given_groups = tuple(tuple(int(group[0][1:]) for group in groups) for groups in placement)
        assert all(seed.groups == given_groups for seed in seeds)


def test_pinned_layers_get_their_devices():
    """Tests that some seed of every number of stages runs the pinned layers where they must run."""
    layers = [make_layer(f"l{i}") for i in range(6)]
    links = [make_link("a b"), make_link("b c")]
    pins = (PinnedLayer(layer="l0", device="c"), PinnedLayer(layer="l5", device="b"))
    case = Case(make_problem(layers, links, pinned=pins), ())
    allowed = [seed for seed in make_seeds(case.searcher) if case.searcher.is_allowed(seed)]
    assert {len(seed.groups) for seed in allowed} >= {2, 3}


def test_groups_of_replicas_have_two_stages_each():
    """Tests that loops and Vs of two chunks are there for single devices and for replicas on two and on four."""
    links = [make_link(f"d{a} d{b}") for a in range(8) for b in range(a + 1, 8)]
    layers = [make_layer(f"l{i}") for i in range(16)]
    case = Case(make_problem(layers, links, max_stages_per_device=2, microbatch_size=4), ())
    found = {seed.groups for seed in make_seeds(case.searcher) if case.searcher.is_allowed(seed)}
    for size in (1, 2, 4):
        groups = tuple(tuple(range(first, first + size)) for first in range(0, 8, size))
        assert found >= {groups + groups, groups + groups[::-1]}
