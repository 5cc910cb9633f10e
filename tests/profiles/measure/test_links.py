"""Link tables: fits, interpolation, and the cluster that explains them."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.measure.links import (
    CollectiveTime,
    Contention,
    LinkTables,
    PairTable,
    Place,
    choose_counts,
    choose_pairs,
    dump_links,
    fit,
    infer_cluster,
    load_links,
    worst_error,
)

SIZES = (1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 22, 1 << 24)


def make_table(*, latency_ns: int, bandwidth: int) -> tuple[tuple[int, int], ...]:
    return tuple((size, latency_ns + size * 10**9 // bandwidth) for size in SIZES)


def make_tables(
    hosts: str, *, shares_within: bool = False, shares_between: bool = False, is_duplex: bool = True
) -> LinkTables:
    """A letter per place: its host. Within a host 10 us and 10 GB/s, between hosts 50 us and 1 GB/s."""
    pairs, contention = [], []
    for a, b in itertools.combinations(range(len(hosts)), 2):
        near = hosts[a] == hosts[b]
        table = make_table(latency_ns=10_000 if near else 50_000, bandwidth=10**10 if near else 10**9)
        pairs.append(PairTable(a=a, b=b, one_way=table, both_ways_ns=table[-1][1] * (1 if is_duplex else 2)))
    for p, q in itertools.combinations([(pair.a, pair.b) for pair in pairs], 2):
        if not set(p) & set(q) or p[0] == q[0]:
            crosses = [hosts[x] != hosts[y] for x, y in (p, q)]
            shares = shares_between if all(crosses) else shares_within if not any(crosses) else False
            contention.append(Contention(first=p, second=q, slowdown=2.0 if shares else 1.0))
    places = tuple(
        Place(name=f"{host}/{number}", host=host, type="cpu", memory_bytes=2**30) for number, host in enumerate(hosts)
    )
    return LinkTables(places=places, pairs=tuple(pairs), contention=tuple(contention))


@given(latency_ns=st.integers(0, 10**7), bandwidth=st.integers(10**6, 10**10))
def test_fit_finds_what_made_the_table(latency_ns: int, bandwidth: int):
    """Tests that latency and bandwidth of an exact table come back, as far as whole nanoseconds allow."""
    table = tuple((size, max(1, time)) for size, time in make_table(latency_ns=latency_ns, bandwidth=bandwidth))
    found_latency, found_bandwidth = fit(table)
    assert found_latency == pytest.approx(latency_ns, rel=0.01, abs=3)
    if table[-1][1] > 1.1 * latency_ns + 1000:
        assert found_bandwidth == pytest.approx(bandwidth, rel=0.02)


@given(times=st.lists(st.integers(1, 10**9), min_size=1, max_size=6))
def test_fit_is_never_negative(times: list[int]):
    """Tests that whatever the noise, latency is not negative and bandwidth positive."""
    latency, bandwidth = fit(list(zip(SIZES, times, strict=False)))
    assert latency >= 0
    assert bandwidth > 0


def test_fit_weighs_small_and_large_alike():
    """Tests that the fit of a table that bends misses by less, at its worst, than an unweighted one would."""
    table = ((1 << 10, 45_000), (1 << 14, 55_000), (1 << 20, 170_000), (1 << 23, 2_600_000))
    assert worst_error(table) < 0.7  # least squares without weights: a latency below zero, an error above 1


def test_pairs_without_contention_have_links_of_their_own():
    """Tests that three places that do not disturb each other have three links with what was measured."""
    cluster = infer_cluster(make_tables("aaa"), name="x")
    assert [(link.a, link.b) for link in cluster.links] == [("a/0", "a/1"), ("a/0", "a/2"), ("a/1", "a/2")]
    assert {(link.latency_ns, link.duplex) for link in cluster.links} == {(10_000, True)}
    assert all(link.bandwidth_bytes_per_s == pytest.approx(10**10, rel=0.01) for link in cluster.links)


def test_transfers_from_one_sender_that_disturb_share_its_port():
    """Tests that each device then has one link, to its host, and a route has the measured latency and bandwidth."""
    cluster = infer_cluster(make_tables("aaa", shares_within=True), name="x")
    assert [(link.a, link.b) for link in cluster.links] == [("a/0", "a"), ("a/1", "a"), ("a/2", "a")]
    route = cluster.route("a/0", "a/2", num_bytes=1 << 20)
    assert route.latency_ns == 10_000
    assert route.bandwidth_bytes_per_s == pytest.approx(10**10, rel=0.01)
    assert set(route.links) & set(cluster.route("a/0", "a/1", num_bytes=1 << 20).links)


def test_hosts_that_share_their_connection_have_one_link():
    """Tests that transfers between two hosts occupy one link together, and those within a host do not."""
    cluster = infer_cluster(make_tables("aabb", shares_between=True), name="x")
    assert ("a", "b") in {(link.a, link.b) for link in cluster.links}
    one, other = (cluster.route(a, b, num_bytes=1 << 20) for a, b in (("a/0", "b/2"), ("a/1", "b/3")))
    assert set(one.links) & set(other.links)
    assert one.latency_ns == 50_000
    assert one.bandwidth_bytes_per_s == pytest.approx(10**9, rel=0.01)
    assert len(cluster.route("a/0", "a/1", num_bytes=1 << 20).links) == 1


def test_hosts_that_do_not_share_have_links_per_pair():
    """Tests that without contention between hosts every pair across them has its own link."""
    cluster = infer_cluster(make_tables("ab"), name="x")
    assert [(link.a, link.b, link.duplex) for link in cluster.links] == [("a/0", "b/1", True)]


@pytest.mark.parametrize(
    ("hosts", "sharing"),
    [("aaa", {}), ("aaa", {"shares_within": True}), ("ab", {}), ("aabb", {"shares_between": True})],
)
def test_a_knee_is_stated_by_size(hosts: str, sharing: dict[str, bool]):
    """Tests that links of pairs that one latency and one bandwidth miss state times by size, so that transfers take
    what was measured, and that no time is below the link's own latency and bandwidth.
    """
    plain = make_tables(hosts, **sharing)
    bend = (1, 3, 4, 2, 1, 1)
    pairs = tuple(
        replace(pair, one_way=tuple((size, time * by) for (size, time), by in zip(pair.one_way, bend, strict=True)))
        for pair in plain.pairs
    )
    cluster = infer_cluster(replace(plain, pairs=pairs), name="x")
    assert any(link.message_times for link in cluster.links)
    assert not any(link.message_times for link in infer_cluster(plain, name="x").links)
    for pair in pairs:
        ends = plain.places[pair.a].name, plain.places[pair.b].name
        for size, time in pair.one_way:
            assert cluster.route(*ends, num_bytes=size).duration_ns(size) == pytest.approx(time, rel=0.02)


def test_opposite_transfers_that_take_twice_as_long_take_turns():
    """Tests that a link whose directions disturb each other is not duplex."""
    cluster = infer_cluster(make_tables("aa", is_duplex=False), name="x")
    assert [link.duplex for link in cluster.links] == [False]


def test_one_place_is_a_cluster():
    """Tests that a single device needs no link."""
    assert infer_cluster(make_tables("a"), name="x").links == ()


def test_tables_come_back_from_their_document(tmp_path: Path):
    """Tests that writing and reading is the identity."""
    tables = make_tables("aabb", shares_between=True)
    path = tmp_path / "links.json"
    path.write_text(dump_links(tables))
    assert load_links(path) == tables


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"pipeline-links/1"', '"pipeline-plan/1"', "is not pipeline-links/1"),
        ('"a": 0, "b": 1', '"a": 1, "b": 1', "pair 1 - 1 is none of 2 places"),
        ('"a": 0, "b": 1', '"a": 0, "b": 7', "pair 0 - 7 is none of 2 places"),
        ("[1024, ", "[16384, ", "rising sizes"),
        ('"host": "a"', '"hos": "a"', "hos"),
        ("[1024, ", "[1024.5, ", "not an integer"),
    ],
)
def test_spoilt_tables_are_refused(tmp_path: Path, old: str, new: str, message: str):
    """Tests that what no measurement can say is refused with its place and value."""
    text = dump_links(make_tables("aa"))
    assert old in text
    path = tmp_path / "links.json"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ValueError, match=message):
        load_links(path)


def test_places_are_wanted():
    """Tests that tables of nothing are refused."""
    with pytest.raises(ValueError, match="places is empty"):
        replace(make_tables("aa"), places=(), pairs=())


def test_a_large_cluster_is_measured_by_samples():
    """Tests that the pairs timed grow as hosts do, not as the square of devices, and that none is left out."""
    assert choose_pairs("aaa") == [(0, 1), (0, 2), (1, 2)]
    assert len(choose_pairs("a" * 8)) == 28
    eight_hosts = [f"host{number // 8}" for number in range(64)]
    pairs = choose_pairs(eight_hosts)
    assert len(pairs) == 8 * 28 + 28 * 5 == 364
    for places in (eight_hosts, ["one"] * 64):
        found = choose_pairs(places)
        assert len(found) < 400
        assert {end for pair in found for end in pair} == set(range(64))
        assert all(a < b for a, b in found)
    assert choose_counts(3) == [2, 3]
    assert choose_counts(48) == [2, 3, 4, 5, 6, 7, 8, 16, 32, 48]


def test_pairs_that_were_not_timed_are_like_those_that_were():
    """Tests that the cluster of some pairs is that of all, where all pairs of two hosts are alike."""
    whole = make_tables("a" * 10 + "b" * 10)
    chosen = set(choose_pairs("a" * 10 + "b" * 10))
    some = replace(whole, pairs=tuple(pair for pair in whole.pairs if (pair.a, pair.b) in chosen))
    assert len(some.pairs) < len(whole.pairs) / 3
    assert infer_cluster(some, name="x") == infer_cluster(whole, name="x")


def test_rings_of_one_host_say_what_their_steps_take():
    """Tests that steps are those of the ring over most places, a larger one no faster, and of several hosts none."""
    rings = [(2, 8, 100), (4, 8, 240), (4, 80, 180), (4, 800, 600)]
    measured = tuple(CollectiveTime(places=n, num_bytes=size, duration_ns=time) for n, size, time in rings)
    for hosts, steps in (("aaaa", [(2, 40), (20, 40), (200, 100)]), ("aabb", [])):
        tables = replace(make_tables(hosts), all_reduce=measured)
        for link in infer_cluster(tables, name="c").links:
            assert [(each.bytes, each.time_ns) for each in link.reduction_times] == steps


def test_gathers_and_scatters_state_steps_of_their_own():
    """Tests that a collective which goes round once takes its whole time in one round of steps."""
    measured = (CollectiveTime(places=2, num_bytes=80, duration_ns=90),)
    tables = replace(make_tables("aa"), all_reduce=measured, all_gather=measured, reduce_scatter=measured)
    (link,) = infer_cluster(tables, name="c").links
    assert [points[0].time_ns for points in link.step_times.values()] == [45, 90, 90]
