"""What a cluster refuses, and the routes that its transfers take."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from profiles.cluster import Cluster, Device, Host, HostLink, Link, MessageTime


def make_device(name: str, **changes: Any) -> Device:
    return Device(**{"name": name, "type": "A100", "memory_bytes": 100} | changes)


def make_link(ends: str, bandwidth: int = 10**9, **changes: Any) -> Link:
    """A link of 1 byte per nanosecond, or as given."""
    return Link(**{"a": ends[0], "b": ends[1], "bandwidth_bytes_per_s": bandwidth} | changes)


def make_cluster(devices: str, *links: Link, **changes: Any) -> Cluster:
    """A cluster with one device per letter."""
    return Cluster(**{"name": "rig", "devices": tuple(map(make_device, devices)), "links": links} | changes)


BROKEN: list[tuple[str, Callable[[], object], list[str]]] = [
    ("no device name", lambda: make_device(""), ["device ''", "name = ''", "is not a name"]),
    ("no type", lambda: make_device("a", type=""), ["device 'a'", "type = ''", "is not a name"]),
    ("negative memory", lambda: make_device("a", memory_bytes=-1), ["device 'a'", "memory_bytes = -1", "from 0"]),
    ("negative reserve", lambda: make_device("a", reserved_bytes=-1), ["device 'a'", "reserved_bytes = -1", "from 0"]),
    (
        "more reserved than there is",
        lambda: make_device("a", reserved_bytes=101),
        ["device 'a'", "reserved_bytes = 101 exceeds memory_bytes = 100", "reserve less"],
    ),
    ("no cores", lambda: make_device("a", cores=0), ["device 'a'", "cores = 0", "from 1 to 4096"]),
    ("unprintable host", lambda: make_device("a", host="\x1b[2J"), ["device 'a'", "host = ", "is not a name"]),
    ("no bandwidth", lambda: make_link("ab", 0), ["link 'a' - 'b'", "bandwidth_bytes_per_s = 0", "from 1"]),
    ("float bandwidth", lambda: make_link("ab", 1e9), ["link 'a' - 'b'", "not an integer", "round it"]),
    ("negative latency", lambda: make_link("ab", latency_ns=-1), ["link 'a' - 'b'", "latency_ns = -1", "from 0"]),
    (
        "negative message overhead",
        lambda: make_link("ab", message_overhead_ns=-1),
        ["link 'a' - 'b'", "message_overhead_ns = -1", "from 0"],
    ),
    ("link to itself", lambda: make_link("aa"), ["link 'a' - 'a'", "both ends are the same", "remove the link"]),
    ("no end", lambda: Link(a="", b="b", bandwidth_bytes_per_s=1), ["link '' - 'b'", "a = ''", "is not a name"]),
    ("no devices", lambda: make_cluster(""), ["cluster 'rig'", "devices is empty", "at least one device"]),
    ("no name", lambda: make_cluster("a", name=""), ["cluster ''", "is not a name"]),
    ("device twice", lambda: make_cluster("aa"), ["cluster 'rig'", "device 'a' occurs twice", "rename or remove"]),
    ("switch twice", lambda: make_cluster("a", switches=("s", "s")), ["cluster 'rig'", "switch 's' occurs twice"]),
    ("link twice", lambda: make_cluster("ab", make_link("ab"), make_link("ba")), ["cluster 'rig'", "occurs twice"]),
    (
        "unknown device",
        lambda: make_cluster("ab", make_link("ab"), make_link("bz")),
        ["cluster 'rig'", "links[1] ends at 'z'", "not a device, host or switch", "correct the name"],
    ),
    (
        "disconnected",
        lambda: make_cluster("abcd", make_link("ab"), make_link("cd")),
        ["cluster 'rig'", "no route from device 'a' to device 'c'", "add the missing link"],
    ),
    ("links forgotten", lambda: make_cluster("ab"), ["no route from device 'a' to device 'b'", "add the missing link"]),
]


@pytest.mark.parametrize(("build", "fragments"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_refusal_names_value_owner_and_remedy(build: Callable[[], object], fragments: list[str]):
    """Tests that every broken rule raises ValueError with the owner, the value and what to do."""
    with pytest.raises(ValueError, match="; ") as caught:
        build()
    for fragment in fragments:
        assert fragment in str(caught.value)


def test_names_that_look_like_links_do_not_collide():
    """Tests that `a - b` to `c` and `a` to `b - c` are two links."""
    names = ("a", "a - b", "b - c", "c")
    pairs = [("a - b", "c"), ("a", "b - c"), ("a", "c")]
    links = tuple(Link(a=a, b=b, bandwidth_bytes_per_s=1) for a, b in pairs)
    assert len(Cluster(name="rig", devices=tuple(map(make_device, names)), links=links).links) == 3


def test_types_and_names_are_listed_once():
    """Tests that the views of a cluster keep the order of its devices."""
    devices = (make_device("a"), make_device("b", type="T4"), make_device("c"))
    cluster = Cluster(name="rig", devices=devices, links=(make_link("ab"), make_link("bc")))
    assert cluster.device_types == ("A100", "T4")
    assert list(cluster.by_name) == ["a", "b", "c"]


def test_direct_link_is_used_even_if_it_is_slower():
    """Tests that a and b talk over their slow link although the way through c is faster.

    a ---1 B/us--- b
     \\            /
      1 B/ns - c - 1 B/ns
    """
    cluster = make_cluster("abc", make_link("ab", 10**6), make_link("ac"), make_link("cb"))
    route = cluster.route("a", "b", num_bytes=1000)
    assert route.links == (0,)
    assert route.duration_ns(1000) == 1_000_000


def test_route_over_several_links():
    """Tests that a transfer pays every latency on its way and the least bandwidth, once."""
    links = (
        make_link("ab", 10**9, latency_ns=5),
        make_link("cb", 5 * 10**8, latency_ns=7),
        make_link("cd", latency_ns=1),
    )
    route = make_cluster("abcd", *links).route("a", "d", num_bytes=100)
    assert route.links == (0, 3, 4)
    assert (route.latency_ns, route.bandwidth_bytes_per_s) == (13, 5 * 10**8)
    assert route.duration_ns(100) == 13 + 200


def test_directions_of_a_duplex_link_are_two_resources():
    """Tests that opposite transfers over a duplex link occupy different resources."""
    cluster = make_cluster("ab", make_link("ab"))
    assert cluster.route("a", "b", num_bytes=1).links == (0,)
    assert cluster.route("b", "a", num_bytes=1).links == (1,)


def test_directions_of_a_half_duplex_link_are_one_resource():
    """Tests that opposite transfers over a link that is not duplex occupy the same resource."""
    cluster = make_cluster("abc", make_link("ab"), make_link("bc", duplex=False))
    assert cluster.route("b", "c", num_bytes=1).links == (2,)
    assert cluster.route("c", "b", num_bytes=1).links == (2,)
    assert cluster.route("c", "a", num_bytes=1).links == (2, 1)


def test_routes_lead_through_hosts_and_switches():
    """Tests that links may end at hosts and switches, which forward transfers."""
    devices = tuple(make_device(name, host=name.upper()) for name in "ab")
    links = tuple(make_link(ends) for ends in ("aA", "bB", "As", "Bs"))
    cluster = Cluster(name="rig", devices=devices, links=links, switches=("s",))
    assert cluster.route("a", "b", num_bytes=1).links == (0, 4, 7, 3)


def test_a_tree_leaves_no_choice():
    """Tests that one path per pair is told from several, whatever else hangs together beside the devices."""
    apart = [make_link("uv"), make_link("vw"), make_link("wu")]
    star = [make_link("as"), make_link("bs"), make_link("cs")]
    assert make_cluster("abc", *star, switches=("s",)).is_tree
    assert make_cluster("abc", *star, *apart, switches=tuple("suvw")).is_tree
    assert not make_cluster("abc", *star, make_link("ab"), switches=("s",)).is_tree
    assert not make_cluster("abc", *star, make_link("ab"), make_link("uv"), switches=tuple("suv")).is_tree
    assert make_cluster("a").is_tree


def test_route_depends_on_the_size():
    """Tests that small transfers avoid latency and large ones seek bandwidth."""
    links = (make_link("as"), make_link("sb"), make_link("at", latency_ns=50), make_link("tb"))
    fast = tuple(Link(a=link.a, b=link.b, bandwidth_bytes_per_s=10**9 if "s" in (link.a, link.b) else 10**11,
                      latency_ns=link.latency_ns) for link in links)  # fmt: skip
    cluster = make_cluster("ab", *fast, switches=("s", "t"))
    assert cluster.route("a", "b", num_bytes=1).links == (0, 2)
    assert cluster.route("a", "b", num_bytes=10_000).links == (4, 6)


def test_tie_goes_to_fewer_links():
    """Tests that of two ways of equal time the one with fewer links is taken, whichever is listed first."""
    long_way = [make_link("as", latency_ns=1), make_link("st", latency_ns=1), make_link("tb", latency_ns=1)]
    short_way = [make_link("au", latency_ns=2), make_link("ub", latency_ns=1)]
    first = make_cluster("ab", *long_way, *short_way, switches=("s", "t", "u"))
    second = make_cluster("ab", *short_way, *long_way, switches=("s", "t", "u"))
    assert first.route("a", "b", num_bytes=0).links == (6, 8)
    assert second.route("a", "b", num_bytes=0).links == (0, 2)


def test_tie_of_equal_lengths_goes_to_the_first_link():
    """Tests that of two ways equal in time and length the one listed first is taken."""
    one, other = [make_link("as"), make_link("sb")], [make_link("at"), make_link("tb")]
    assert make_cluster("ab", *one, *other, switches=("s", "t")).route("a", "b", num_bytes=9).links == (0, 2)
    assert make_cluster("ab", *other, *one, switches=("s", "t")).route("a", "b", num_bytes=9).links == (0, 2)


@pytest.mark.parametrize(("num_bytes", "expected"), [(0, 3), (1, 4), (3, 4), (4, 5)])
def test_durations_are_rounded_up(num_bytes: int, expected: int):
    """Tests that a third of a nanosecond counts as a whole one."""
    route = make_cluster("ab", make_link("ab", 3 * 10**9, latency_ns=3)).route("a", "b", num_bytes=num_bytes)
    assert route.duration_ns(num_bytes) == expected


def test_a_message_costs_its_overhead_once():
    """Tests that the largest message overhead on a route is added once, and does not decide which route is taken."""
    links = (
        make_link("ab", latency_ns=1, message_overhead_ns=50),
        make_link("bc", latency_ns=2, message_overhead_ns=70),
        make_link("ad", latency_ns=3),
        make_link("dc", latency_ns=4),
    )
    cluster = make_cluster("abcd", *links)
    assert cluster.route("a", "c", num_bytes=10).latency_ns == 1 + 2 + 70
    assert cluster.route("a", "d", num_bytes=10).latency_ns == 3
    tables = cluster.route_tables(num_bytes=10)
    assert tables is not None
    assert tables.latency[0].tolist() == [0, 51, 73, 3]


def test_many_routes_at_once_are_the_same_routes():
    """Tests that routes searched together, and tables of all of them, are those that are searched one by one."""
    rng = Random(7)
    names = "abcdefghijkl"
    pairs = {(a, b) for a, b in pairwise(names)} | {tuple(sorted(rng.sample(names, 2))) for _ in range(12)}
    links = [
        make_link(
            a + b,
            rng.randint(1, 9) * 10**8,
            latency_ns=rng.randint(0, 99),
            message_overhead_ns=rng.choice([None, 9, 80]),
        )
        for a, b in sorted(pairs)
    ]
    one, many = make_cluster(names, *links), make_cluster(names, *links)
    wanted = [(a, b, size) for a in names for b in names if a != b for size in (0, 50, 10**6)]
    many.find_routes(wanted)
    assert all(many.route(a, b, num_bytes=size) == one.route(a, b, num_bytes=size) for a, b, size in wanted)
    tables = one.route_tables(num_bytes=10**6)
    assert tables is not None
    for x, a in enumerate(names):
        for y, b in enumerate(names):
            if a != b:
                route = one.route(a, b, num_bytes=10**6)
                assert (tables.latency[x, y], tables.bandwidth[x, y]) == (route.latency_ns, route.bandwidth_bytes_per_s)
                at = x * len(names) + y
                assert tuple(tables.resources[tables.start[at] : tables.start[at + 1]].tolist()) == route.links


def with_hosts(*, host: str = "h", host_link: str = "pcie", stated: str = "h", **changes: Any) -> Cluster:
    """Devices a and b of host h, with a link to its memory that both share."""
    devices = tuple(make_device(name, host=host, host_link=host_link) for name in "ab")
    links = (make_link("ab"), make_link("ah", latency_ns=4, message_overhead_ns=3), make_link("bh", duplex=False))
    link = HostLink(name="pcie", bandwidth_bytes_per_s=5 * 10**8, latency_ns=7, duplex=False)
    fields = {"devices": devices, "links": links, "host_links": (link,), "hosts": (Host(name=stated, memory_bytes=9),)}
    return Cluster(**{"name": "rig"} | fields | changes)


def test_stashes_take_a_host_link_or_that_of_messages():
    """Tests that both devices share a link of its own, in both directions, and each has its own of `links`."""
    own, shared = with_hosts(), with_hosts(host_link="h")
    assert own.host_routes["a"] == own.host_routes["b"]
    out, back = own.host_routes["a"]
    assert (out.links, back.links, out.duration_ns(10)) == ((6,), (6,), 27)
    out, back = shared.host_routes["a"]
    assert (out.links, back.links, out.duration_ns(10)) == ((2,), (3,), 17)
    assert out == shared.route("a", "h", num_bytes=10)
    assert shared.host_routes["b"].back.links == (4,)
    assert not make_cluster("a").host_routes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"host_link": "nvlink"}, "host_link = 'nvlink' is none of host_links, and links has none"),
        ({"host": "", "links": (make_link("ab"),)}, "hosts does not state the memory_bytes of host ''"),
        ({"stated": "g"}, "hosts does not state the memory_bytes of host 'h'; add it to hosts"),
        ({"host_links": (HostLink(name="h", bandwidth_bytes_per_s=1),)}, "'h' is a host and a host link"),
        ({"hosts": (Host(name="h", memory_bytes=1),) * 2}, "host 'h'"),
    ],
)
def test_host_links_are_checked(changes: dict, message: str):
    """Tests that a host link, and the memory at its end, are named where they are missing or stated twice."""
    with pytest.raises(ValueError, match=message):
        with_hosts(**changes)


def test_steps_of_a_ring_lie_on_lines():
    """Tests that smaller ones take as long as the smallest, larger ones grow by the bandwidth, all rounded up."""
    points = tuple(MessageTime(bytes=size, time_ns=time) for size, time in ((10, 100), (13, 110)))
    link = Link(a="x", b="y", bandwidth_bytes_per_s=10**9, reduction_times=points)
    assert [link.step_ns(size) for size in (0, 10, 11, 12, 13, 20)] == [100, 100, 104, 107, 110, 117]
    assert replace(link, reduction_times=()).step_ns(5) == 0
    assert [each.time_ns for each in link.at_speed(2.0).reduction_times] == [50, 55]
    with pytest.raises(ValueError, match=r"reduction_times: 10 bytes .* rising order"):
        replace(link, reduction_times=points[::-1])
