"""Output of nccl-tests, in its own form with numbers of our own, as tables of links."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from api.cli import main
from profiles.cluster import Cluster, Device, Link
from profiles.discovery.measured import with_measured_links
from profiles.importers.nccl_tests import parse_nccl_tests
from profiles.measure.links import LinkTables

SIZES = (2**20, 2**25, 2**30)


def output(
    test: str,
    *,
    hosts: Sequence[str] = ("a",) * 4,
    rate: float = 80.0,
    factor: float,
    sums: bool = False,
    root: int = -1,
    title: bool = True,
    before: str = "",
    stamp: str = "",
) -> str:
    """Sizes of 1 MiB to 1 GiB that take 20 us and their bytes at `rate` GB/s of bus bandwidth.

    `factor`: bus over algorithm bandwidth. The columns in place are twice as slow.
    """
    lines = ["# nccl-tests version 2.17.1 nccl-headers=22703 nccl-library=22703"] if title else []
    lines += [f"# Collective test starting: {test}"] if title else []
    lines += ["# nThread 1 nGpus 1 minBytes 8 maxBytes 1073741824 step: 2(factor)", "#", "# Using devices"]
    for number, host in enumerate(hosts):
        device = hosts[:number].count(host)
        lines.append(
            f"#  Rank {number:2d} Group  0 Pid {900 + number:6d} on {host:>10} device {device:2d} "
            f"[0000:{device:02x}:00] NVIDIA H100 80GB HBM3"
        )
    lines += [
        "#                                                         out-of-place                       in-place",
        "#       size        count      type   redop    root    time   algbw   busbw  #wrong    time   algbw   busbw",
        "#        (B)   (elements)                              (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)",
    ]
    for size in SIZES:
        time = 20 + size * factor / rate / 1e3
        cells = [
            f"{took:8.2f}  {size / took / 1e3:6.2f}  {size / took / 1e3 * factor:6.2f}       0"
            for took in (time, 2 * time)
        ]
        kind = "sum" if sums else "none"
        lines.append(f"{size:12d}  {size // 4:12d}     float {kind:>7} {root:7d}  {'  '.join(cells)}{stamp}")
        lines.append("a:900:950 [0] NCCL INFO comm 0x55d0 rank 0 nranks 4 - Init COMPLETE")
    lines += ["# Out of bounds values : 0 OK", f"# Avg bus bandwidth    : {rate:.4f}"]
    return "".join(f"{before}{line}\n" for line in lines)


def rate_of(tables: LinkTables) -> float:
    """GB/s of the largest message, in every pair the same."""
    (table,) = {pair.one_way for pair in tables.pairs}
    size, time_ns = table[-1]
    return size / time_ns


ONE_HOST = [
    pytest.param("all_reduce_perf", {"factor": 1.5, "sums": True}, id="all-reduce"),
    pytest.param("all_gather_perf", {"factor": 0.75}, id="all-gather"),
    pytest.param("reduce_scatter_perf", {"factor": 0.75, "sums": True}, id="reduce-scatter"),
    pytest.param("alltoall_perf", {"factor": 0.75}, id="all-to-all"),
    pytest.param("sendrecv_perf", {"factor": 1.0}, id="send and receive"),
    pytest.param("broadcast_perf", {"factor": 1.0, "root": 0}, id="broadcast"),
    pytest.param("reduce_perf", {"factor": 1.0, "root": 0, "sums": True}, id="reduce"),
    pytest.param("scatter_perf", {"factor": 0.75, "root": 0}, id="scatter"),
    pytest.param("./build/all_gather_perf_mpi", {"factor": 0.75}, id="path and MPI"),
    pytest.param("all_reduce_perf", {"factor": 1.5, "sums": True, "before": "[1,0]<stdout>:"}, id="label of mpirun"),
    pytest.param("all_reduce_perf", {"factor": 1.5, "sums": True, "stamp": "  2026-03-01 10:00:00"}, id="stamp"),
]


@pytest.mark.parametrize(("test", "told"), ONE_HOST)
def test_links_have_the_bus_bandwidth(test: str, told: dict):
    """Tests that every test's messages on one host go at its out-of-place bus bandwidth, and that a rank's port is one.

    At 1 GiB the 20 us of the start are less than a thousandth.
    """
    tables = parse_nccl_tests(output(test, **told), source="log")
    assert rate_of(tables) == pytest.approx(80.0, rel=0.003)
    assert len(tables.pairs) == 6
    assert tables.contention


def test_a_message_of_a_ring_is_a_part_of_the_size():
    """Tests that an all-reduce of four ranks counts as six messages of a quarter each, and two ranks as one link."""
    tables = parse_nccl_tests(output("all_reduce_perf", factor=1.5, sums=True), source="log")
    assert tables.pairs[0].one_way[0] == (2**18, round((20 + 2**20 * 1.5 / 80e3) * 1e3 / 6))
    two = parse_nccl_tests(output("sendrecv_perf", factor=1.0, hosts=("a", "a")), source="log")
    assert [(pair.a, pair.b) for pair in two.pairs] == [(0, 1)]
    assert not two.contention


@pytest.mark.parametrize(
    ("test", "told"),
    [
        ("all_reduce", {"factor": 1.5, "sums": True}),
        ("reduce_scatter", {"factor": 0.75, "sums": True}),
        ("sendrecv", {"factor": 1.0}),
        ("broadcast", {"factor": 1.0, "root": 0}),
        ("all_gather or alltoall, alike", {"factor": 0.75}),
    ],
)
def test_older_outputs_are_known_by_their_columns(test: str, told: dict):
    """Tests that a text without the test's name is read where operation, root and the two bandwidths tell it."""
    assert rate_of(parse_nccl_tests(output(test, title=False, **told), source="log")) == pytest.approx(80.0, rel=0.003)


@pytest.mark.parametrize(
    ("test", "told", "rate", "pairs"),
    [
        ("sendrecv_perf", {"factor": 1.0}, 80.0, [(0, 3), (1, 2)]),
        ("all_reduce_perf", {"factor": 1.5, "sums": True}, 40.0, [(0, 2), (1, 3)]),
        ("alltoall_perf", {"factor": 0.75}, 80.0 * 2 / 3, [(0, 2), (1, 3)]),
    ],
)
def test_between_hosts_the_links_that_cross_are_told(test: str, told: dict, rate: float, pairs: list):
    """Tests that of two hosts with two ranks each only what crosses is a link: neighbours of a ring at its rate, of a
    collective every rank's share of what leaves its host.
    """
    tables = parse_nccl_tests(output(test, hosts=("a", "a", "b", "b"), **told), source="log")
    assert [(pair.a, pair.b) for pair in tables.pairs] == pairs
    assert rate_of(tables) == pytest.approx(rate, rel=0.003)


def discovered(**slots: int) -> Cluster:
    """Hosts with 300 GB/s inside and 1 GB/s between them."""
    names = [(host, f"{host}-{number}") for host, count in slots.items() for number in range(count)]
    inside = [Link(a=name, b=host, bandwidth_bytes_per_s=300 * 10**9) for host, name in names]
    outside = [Link(a=host, b="network", bandwidth_bytes_per_s=10**9) for host in slots]
    return Cluster(
        name="c",
        devices=tuple(Device(name=name, type="H100", memory_bytes=2**30, host=host) for host, name in names),
        links=(*inside, *outside),
        switches=("network",),
    )


def test_a_discovered_cluster_takes_the_links():
    """Tests that on one host every device has the bandwidth once, and that two hosts keep their links inside."""
    one = parse_nccl_tests(output("all_reduce_perf", factor=1.5, sums=True), source="log")
    links = with_measured_links(discovered(a=4), one).links
    assert [(link.a, link.b) for link in links] == [(f"a-{n}", "a") for n in range(4)]
    assert {round(link.bandwidth_bytes_per_s / 1e9) for link in links} == {80}
    two = parse_nccl_tests(output("sendrecv_perf", factor=1.0, hosts=("a", "a", "b", "b")), source="log")
    cluster = with_measured_links(discovered(a=2, b=2), two)
    for (start, end), rate in {("a-0", "a-1"): 300, ("a-0", "b-1"): 80, ("b-0", "a-1"): 80}.items():
        assert round(cluster.route(start, end, num_bytes=10**9).bandwidth_bytes_per_s / 1e9) == rate


def test_the_commands_read_the_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Tests that the table of links is shown with what it was derived from, and that other text is refused;
    lines that mpirun tagged by their process are read."""
    (tmp_path / "run.txt").write_text(output("all_reduce_perf", factor=1.5, sums=True))
    assert main(["cluster", "links", str(tmp_path / "run.txt")]) == 0
    said = capsys.readouterr().out
    assert "within a host, 6 pairs" in said
    assert "plateau 79.9 GB/s" in said
    assert "all_reduce_perf of nccl-tests, 4 ranks, out of place: a size counts as 6 messages of a 1/4 each." in said
    tagged = "".join(f"[1,0]<stdout>:{line}" for line in (tmp_path / "run.txt").read_text().splitlines(keepends=True))
    (tmp_path / "tagged.txt").write_text(tagged)
    assert main(["cluster", "links", str(tmp_path / "tagged.txt")]) == 0
    assert capsys.readouterr().out == said
    (tmp_path / "other.txt").write_text("hello\n")
    assert main(["cluster", "links", str(tmp_path / "other.txt")]) == 2
    assert "give nccl-tests' whole output, with a line" in capsys.readouterr().err
    (tmp_path / "other.txt").write_text('{"test": "all_reduce_perf"}')
    assert main(["cluster", "links", str(tmp_path / "other.txt")]) == 2
    assert "give what --links wrote, or nccl-tests' text" in capsys.readouterr().err


GOOD = output("all_reduce_perf", factor=1.5, sums=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace("#  Rank  2", "#  ..."), "lists the ranks 0, 1, 3"),
        (GOOD.replace("Rank  3 Group  0", "Rank  3 Group  1"), "ranks are in several groups at once"),
        (GOOD.replace("device  1 [0000:01:00]", "device  0 [0000:00:00]"), r"device 0 \[0000:00:00\] of a has 2 ranks"),
        (GOOD.replace("all_reduce_perf", "all_gather_perf"), "busbw = .* is not 3/4 of algbw"),
        (GOOD.replace("all_reduce_perf", "wonder_perf"), "wonder_perf is none of all_reduce, "),
        (GOOD + GOOD.replace("all_reduce_perf", "sendrecv_perf"), "lists the ranks 0, 0, 1"),
        (GOOD.replace("       0  ", "       7  "), "size 1048576: 7 wrong results"),
        (GOOD.replace("39.66   26.44   39.66", "inf    0.00    0.00"), "size 1048576: inf us"),
        (GOOD.replace(" 1048576 ", " 2097152 "), "size 2097152: .* us are .* GB/s, but algbw says"),
        (GOOD[: GOOD.index("#       size")], "has no row of times"),
        (output("?", factor=0.75, root=0, sums=True, title=False), "does not state its test"),
        (output("?", factor=0.75, hosts=("a", "a", "b", "b"), title=False), r"\(all_gather or alltoall by"),
        (output("all_reduce_perf", factor=1.5, sums=True, hosts=("a", "a", "a", "b")), "of 3 on a, 1 on b"),
    ],
)
def test_what_contradicts_itself_is_refused(text: str, message: str):
    """Tests that lists with holes, shared devices, wrong results and numbers that do not follow are refused by name."""
    with pytest.raises(ValueError, match=message):
        parse_nccl_tests(text, source="log")
