"""Which groups of devices the planner considers."""

from dataclasses import replace

import pytest

from planner.layout import device_groups
from planner.layout.device_groups import every_group, has_listed_groups, list_groups, lists_every_group, open_widths
from planner.plan import Stage
from planner.problem import Problem
from profiles.cluster import Link
from profiles.model_profile import WidthBytes
from tests.planner.builders import make_layer, make_link, make_problem


def problem_on(
    hosts: dict[str, str], *, widths: tuple[int, ...] = (2, 4), types: str = "", **options: object
) -> Problem:
    """Devices on hosts by name, in a ring; `types`: the names of those of another type."""
    names = list(hosts)
    wider = tuple(WidthBytes(width=width, state_bytes=0, stash_bytes=0) for width in widths)
    links = [make_link(f"{a} {b}") for a, b in zip(names, [*names[1:], "x"], strict=True)]
    problem = make_problem([make_layer("only", wider=wider)], links, switches=("x",), **options)
    only = problem.profile.layers[0]
    costs = (*only.costs, *(replace(cost, device_type="cpu") for cost in only.costs))
    devices = tuple(
        replace(device, host=hosts[device.name], type="cpu" if device.name in types else "gpu")
        for device in problem.cluster.devices
    )
    return replace(
        problem,
        profile=replace(problem.profile, layers=(replace(only, costs=costs),)),
        cluster=replace(problem.cluster, devices=devices),
    )


@pytest.fixture
def only_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on clusters that have too many groups for all of them to be considered."""
    monkeypatch.setattr(device_groups, "MAX_GROUPS", 0)


def groups_of(problem: Problem) -> list[str]:
    return ["".join(group) for group in list_groups(problem)]


@pytest.mark.usefixtures("only_blocks")
def test_blocks_stay_within_hosts():
    """Tests that a host's devices make blocks first, and that those left over are joined across hosts."""
    problem = problem_on(dict.fromkeys("abc", "h0") | dict.fromkeys("defg", "h1") | {"i": "h2"}, max_width=4)
    assert groups_of(problem) == ["ab", "de", "fg", "ci", "defg", "abci"]


def in_domains(problem: Problem, domains: dict[str, str], *, bandwidth: int = 10**12) -> Problem:
    """Devices joined to switches by links of their own."""
    cluster = problem.cluster
    links = tuple(Link(a=device, b=domain, bandwidth_bytes_per_s=bandwidth) for device, domain in domains.items())
    switches = tuple(dict.fromkeys((*cluster.switches, *domains.values())))
    return replace(problem, cluster=replace(cluster, links=(*cluster.links, *links), switches=switches))


@pytest.mark.usefixtures("only_blocks")
@pytest.mark.parametrize(
    ("domains", "groups"),
    [
        ("", ["abcd", "efgh"]),
        ("u: abef v: cdgh", ["abef", "cdgh"]),
        ("u: abgh v: cdef", ["abgh", "cdef"]),
        ("u: abcdef v: gh", ["abcd", "efgh"]),
        ("u: cdef", ["cdef", "abgh"]),
        ("u: abcd v: ef w: gh", ["abcd", "efgh"]),
        ("u: ab v: cd w: ef", ["abcd", "efgh"]),
    ],
)
def test_groups_stay_within_domains(domains: str, groups: list[str]):
    """Tests that hosts of two are joined within NVLink domains first, and across them only where nothing else fits."""
    problem = problem_on({name: f"h{number // 2}" for number, name in enumerate("abcdefgh")}, widths=(4,), max_width=4)
    words = domains.replace(":", "").split()
    joined = {name: domain for domain, names in zip(words[::2], words[1::2], strict=True) for name in names}
    assert groups_of(in_domains(problem, joined)) == groups


def test_the_widest_switch_is_the_domain():
    """Tests that a device with a port at a network switch and one at NVLink is in NVLink's domain, unlike a host's."""
    problem = problem_on({"a": "h0", "b": "h1", "c": "h1"})
    both = in_domains(in_domains(problem, dict.fromkeys("ab", "nvlink")), dict.fromkeys("abc", "leaf"), bandwidth=10)
    assert both.cluster.domains == {"a": "nvlink", "b": "nvlink", "c": "leaf"}
    assert in_domains(problem, dict.fromkeys("bc", "inside")).cluster.domains == {}


@pytest.mark.usefixtures("only_blocks")
def test_types_are_not_mixed():
    """Tests that a group has devices of one type only."""
    problem = problem_on(dict.fromkeys("abcd", "h0"), types="ac", max_width=4)
    assert sorted(groups_of(problem)) == ["ac", "bd"]


@pytest.mark.usefixtures("only_blocks")
def test_only_what_is_allowed_and_measured():
    """Tests that widths above the option, above the devices, or without figures are left out."""
    assert open_widths(problem_on(dict.fromkeys("abc", "h"), max_width=4)) == (2,)
    assert open_widths(problem_on(dict.fromkeys("abcd", "h"), max_width=3)) == (2,)
    assert groups_of(problem_on(dict.fromkeys("abcd", "h"))) == []
    assert groups_of(problem_on(dict.fromkeys("abcd", "h"), widths=(), max_width=4)) == []


@pytest.mark.usefixtures("only_blocks")
def test_devices_without_a_host_are_joined():
    """Tests that devices that are hosts of their own make blocks in listed order."""
    assert groups_of(problem_on(dict.fromkeys("abcd", ""), max_width=2)) == ["ab", "cd"]


@pytest.mark.usefixtures("only_blocks")
def test_groups_of_a_given_placement_are_added():
    """Tests that a placement may name any group."""
    fixed = {"partition": (("only",),), "placement": ((("a", "c"),),)}
    assert groups_of(problem_on(dict.fromkeys("abcd", "h"), max_width=2, **fixed)) == ["ab", "cd", "ac"]


@pytest.mark.usefixtures("only_blocks")
def test_what_the_search_can_start_from():
    """Tests that listed groups that are equal or disjoint are accepted, others not."""
    problem = problem_on(dict.fromkeys("abcd", "h"), max_width=4)
    for placement, is_listed in (
        ([("a", "b"), ("c",)], True),
        ([("a", "b"), ("a", "b")], True),
        ([("a", "b"), ("a",)], False),
        ([("b", "a")], False),
    ):
        stages = [Stage(layers=(str(number),), replicas=(group,)) for number, group in enumerate(placement)]
        assert has_listed_groups(problem, stages) is is_listed


def test_small_clusters_have_every_group():
    """Tests that four devices have every group with every first member, blocks first, and that eight have blocks."""
    problem = problem_on(dict.fromkeys("abcd", "h"), max_width=4)
    assert groups_of(problem)[:3] == ["ab", "cd", "ac"]
    assert sorted(map(sorted, groups_of(problem))) == sorted(map(sorted, ["".join(g) for g in every_group(problem)]))
    assert len(set(groups_of(problem))) == len(groups_of(problem)) == 4 * 3 + 4
    assert lists_every_group(problem)
    larger = problem_on(dict.fromkeys("abcdefgh", "h"), max_width=4)
    assert not lists_every_group(larger)
    assert len(list_groups(larger)) == 4 + 2


def test_every_group_is_of_one_type():
    """Tests that on a small cluster, too, no group mixes types."""
    assert sorted(groups_of(problem_on(dict.fromkeys("abcd", "h"), types="ac", max_width=4))) == [
        "ac",
        "bd",
        "ca",
        "db",
    ]
