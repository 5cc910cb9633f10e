"""Stage replicas that cannot be distinguished but by name: tests of solver_models/joint/symmetry.py."""

from dataclasses import replace
from random import Random

from hypothesis import given

from planner.problem import Problem
from solver_models.joint.search_space import automorphisms
from tests.planner.builders import make_layer, make_link, make_problem
from tests.solver_models.exact_order.test_lower_bounds import listed, randoms
from tests.solver_models.joint.test_partition_enumeration import small_problem
from tests.solver_models.nets import Case
from tests.strategies import AMPLE


@given(randoms)
def test_symmetries_leave_the_instance_alone(rng: Random):
    """Tests that permuting the devices of any case by a symmetry changes neither its floor nor what policies make."""
    problem = small_problem(rng)
    problem = replace(problem, cluster=alike(problem, rng))
    searcher = Case(problem, ()).searcher
    images = automorphisms(searcher.instance).tolist()
    for case in listed(searcher)[:20]:
        rated = searcher.rate(case.stage_of, case.groups, modes=case.modes)
        for image in images:
            groups = tuple(tuple(image[d] for d in group) for group in case.groups)
            assert searcher.lower_bound(case.stage_of, groups, modes=case.modes) is not None
            assert searcher.rate(case.stage_of, groups, modes=case.modes).sort_key == rated.sort_key


def alike(problem: Problem, rng: Random):
    """The cluster with devices of one kind, and now and then links of one kind."""
    first = problem.cluster.devices[0]
    devices = tuple(replace(d, type=first.type, memory_bytes=AMPLE) for d in problem.cluster.devices)
    links = problem.cluster.links
    if rng.random() < 0.7:
        own = links[:1]
        links = tuple(
            replace(link, bandwidth_bytes_per_s=own[0].bandwidth_bytes_per_s, latency_ns=own[0].latency_ns, duplex=True)
            for link in links
        )
    return replace(problem.cluster, devices=devices, links=links)


def test_equal_devices_are_permuted_freely():
    """Tests that equal devices have all symmetries, and with one slow link only the one that turns it around."""
    problem = make_problem([make_layer("x")], [make_link("a b"), make_link("b c"), make_link("a c")])
    assert len(automorphisms(Case(problem, ()).instance)) == 5
    unlike = make_problem([make_layer("x")], [make_link("a b"), make_link("b c", latency=1), make_link("a c")])
    (image,) = automorphisms(Case(unlike, ()).instance).tolist()
    names = [device.name for device in unlike.cluster.devices]
    assert [names[device] for device in image] == [{"a": "a", "b": "c", "c": "b"}[name] for name in names]
