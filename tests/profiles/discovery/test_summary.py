"""One line about a discovery: tests of profiles/discovery/summary.py."""

from profiles.discovery.hostfile import parse_hostfile
from profiles.discovery.hosts import (
    DeviceDefaults,
    NominalSpeeds,
    with_processors,
)
from profiles.discovery.slurm_nodes import parse_slurm_nodes
from profiles.discovery.summary import describe
from tests.profiles.discovery.test_hostfile import GIB, SLURM


def test_one_line_says_what_was_told_and_assumed():
    """Tests that counts, what was left out, remarks and assumptions stand in one line."""
    found = parse_slurm_nodes(SLURM.replace("h100", "3090"), sizes=DeviceDefaults(memory_bytes=24 * GIB))
    line = describe(with_processors(found, DeviceDefaults()), speeds=NominalSpeeds())
    assert line == (
        "1 node x 2 3090; left out: n2 (DOWN DRAIN NOT_RESPONDING), n3 (DOWN), n1 (no accelerators); "
        "assumed: 24 GiB each, 1 GiB + 6 % of it reserved, 24 GB/s from a device to its host"
    )
    text = "a:8\nb:8\nc:4"
    hosts = parse_hostfile(text, sizes=DeviceDefaults(memory_bytes=40 * GIB), kind="A100")
    speeds = NominalSpeeds(network_bytes_per_s=50_000_000_000)
    assert describe(hosts, speeds=speeds).startswith("2 nodes x 8 A100, 1 node x 4 A100; assumed: 40 GiB each, ")
    assert "50 GB/s between hosts" in describe(hosts, speeds=speeds)
    assert "GB/s" not in describe(hosts, speeds=speeds, is_measured=True)
