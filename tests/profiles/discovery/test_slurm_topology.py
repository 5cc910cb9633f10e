"""Switches out of what Slurm and Kubernetes say, and the network that a cluster gets from them."""

import pytest

from profiles.cluster import Cluster
from profiles.discovery.hosts import FoundHosts, HostDevice, HostFacts, NominalSpeeds, make_cluster
from profiles.discovery.slurm_topology import expand_names, with_slurm_switches

TREE = """\
SwitchName=leaf0 Level=0 LinkSpeed=1 Nodes=n[0-1]
SwitchName=leaf1 Level=0 LinkSpeed=100 Nodes=n[2-3]
SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[0-3] Switches=leaf[0-1]
"""
"""As `scontrol show topology` of Slurm 22.05 prints it."""
BLOCKS = """\
BlockName=b0 BlockIndex=0 Nodes=n[0-1] BlockSize=2
BlockName=b1 BlockIndex=1 Nodes=n[2-3] BlockSize=2
AggregatedBlock=b[0-1] BlockIndex=2 Nodes=n[0-3] BlockSize=4
"""
DEVICE = HostDevice(type="A", memory_bytes=2**30)


def hosts(*names: str) -> FoundHosts:
    return FoundHosts(hosts=tuple(HostFacts(name=name, devices=(DEVICE,)) for name in names))


def switches(text: str, *names: str) -> dict[str, tuple[str, ...]]:
    """The switches above each host."""
    return {host.name: host.switches for host in with_slurm_switches(hosts(*names), text).hosts}


def route(cluster: Cluster, source: str, target: str) -> list[str]:
    """The ends that a transfer passes."""
    used = cluster.route(f"{source}-0", f"{target}-0", num_bytes=1).links
    return sorted({end for number in used for end in (cluster.links[number // 2].a, cluster.links[number // 2].b)})


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n[0-2,07],login", ["n0", "n1", "n2", "n07", "login"]),
        ("r[1-2]n[08-10]", [f"r{r}n{n}" for r in (1, 2) for n in ("08", "09", "10")]),
        ("a,b", ["a", "b"]),
        ("n[3]x", ["n3x"]),
        ("(null)", []),
    ],
)
def test_lists_of_names_are_expanded(text: str, names: list[str]):
    """Tests that ranges keep their leading zeros, that several brackets multiply, and that commas separate."""
    assert expand_names(text) == names


@pytest.mark.parametrize("text", ["n[0-", "n[a-b]", "n[0-99999999]", "n]0[", "n[-1]", "n[3-0]"])
def test_what_is_no_list_is_refused(text: str):
    """Tests that broken and boundless lists are told with their text."""
    with pytest.raises(ValueError, match=r"is not a (list of names|range); write"):
        expand_names(text)


def test_slurms_tree_becomes_the_network():
    """Tests that hosts hang on their leaf switches, that far ones meet at the spine, and that bandwidth is shared."""
    found = with_slurm_switches(hosts("n0", "n1", "n2", "n3"), TREE).hosts
    assert [host.switches for host in found] == [("spine", "leaf0")] * 2 + [("spine", "leaf1")] * 2
    speeds = NominalSpeeds(network_bytes_per_s=10**9, oversubscription=4)
    cluster = make_cluster("c", found, speeds=speeds)
    assert set(cluster.switches) == {"leaf0", "leaf1", "spine"}
    assert route(cluster, "n0", "n1") == ["leaf0", "n0", "n0-0", "n1", "n1-0"]
    assert route(cluster, "n0", "n2") == ["leaf0", "leaf1", "n0", "n0-0", "n2", "n2-0", "spine"]
    near, far = (cluster.route("n0-0", other, num_bytes=1) for other in ("n1-0", "n2-0"))
    assert (near.bandwidth_bytes_per_s, far.bandwidth_bytes_per_s) == (10**9, 10**9 * 2 // 4)
    assert far.latency_ns == near.latency_ns + 2_000
    with pytest.raises(ValueError, match="oversubscription = 0 is not above 0"):
        NominalSpeeds(oversubscription=0)


def test_blocks_are_switches():
    """Tests that the blocks of topology/block join their hosts, and that lines about several blocks are passed over."""
    told = with_slurm_switches(hosts("n0", "n1", "n2", "n3"), BLOCKS)
    assert told.notes == ("larger blocks of the topology are not planned for",)
    found = told.hosts
    assert [host.switches for host in found] == [("b0",), ("b0",), ("b1",), ("b1",)]
    cluster = make_cluster("c", found)
    assert set(cluster.switches) == {"b0", "b1", "network"}
    assert "network" in route(cluster, "n1", "n3")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No topology information available\n",
        "# only a comment\n",
        "- topology: t\n  flat: true\n",
        "---\n- topology: t\n  cluster_default: true\n  flat:\n    alpha_step_rank: true\n",
    ],
)
def test_no_topology_is_one_switch(text: str):
    """Tests that a Slurm without switches joins its hosts as before, and that a text that names none is told of."""
    found = with_slurm_switches(hosts("n0", "n1"), text)
    assert found.notes == (("the topology names no switch",) if text else ())
    cluster = make_cluster("c", found.hosts)
    assert cluster.switches == ("network",)


CONF = """\
# switchname=old nodes=n[0-3]
switchname=leaf0 nodes=n[0-1]   # the first rack
SWITCHNAME = leaf1 \\
   Nodes="n2,n3" LinkSpeed=100
SwitchName=spine switches=leaf[0-1]
"""
YAML = """\
---
- topology: other
  block:
    block_sizes: [2]
    blocks: [{block: x, nodes: "n[0-3]"}]
- topology: mine
  cluster_default: true
  tree:
    switches:
      - switch: leaf0     # the first rack
        nodes: n[0-1]
      - {switch: leaf1, nodes: "n2,n3"}
      - switch: spine
        children: leaf[0-1]
"""
RACKS = {"n0": ("spine", "leaf0"), "n1": ("spine", "leaf0"), "n2": ("spine", "leaf1"), "n3": ("spine", "leaf1")}


@pytest.mark.parametrize(
    "text", [TREE, CONF, YAML, CONF.replace("\n", "\r\n"), YAML.replace("leaf[0-1]", "leaf0,leaf1")]
)
def test_every_form_of_a_tree_is_read(text: str):
    """Tests that small letters, comments, continued lines, blanks around =, quotes and topology.yaml are one tree."""
    assert switches(text, *RACKS) == RACKS


@pytest.mark.parametrize(
    "text",
    [
        "BlockName=b0 Nodes=n[0-1]\nBlockName=b1 Nodes=n[2-3]\nBlockSizes=2,4\n",
        "- topology: t\n  block:\n    block_sizes: [2, 4]\n    blocks:\n"
        "    - {block: b0, nodes: 'n[0-1]'}\n    - {block: b1, nodes: 'n[2-3]'}\n",
    ],
)
def test_blocks_of_both_files_are_read(text: str):
    """Tests that topology.conf and topology.yaml name the blocks that scontrol shows."""
    assert switches(text, *RACKS) == {"n0": ("b0",), "n1": ("b0",), "n2": ("b1",), "n3": ("b1",)}


def test_names_may_be_numbers():
    """Tests that a name of digits keeps its zeros in topology.yaml."""
    text = "- topology: t\n  tree:\n    switches:\n"
    text += "    - {switch: 01, nodes: 010}\n    - {switch: 02, nodes: 011}\n    - {switch: top, children: '0[1-2]'}\n"
    assert switches(text, "010", "011") == {"010": ("top", "01"), "011": ("top", "02")}


def test_what_a_topology_leaves_open_is_told():
    """Tests that the choice among topologies, and hosts below no switch, are told."""
    told = with_slurm_switches(hosts("n0", "n9"), YAML).notes
    assert told == ("of 2 topologies, mine is taken", "no switch of the topology is above n9")
    tree = "SwitchName=s0 Nodes=n0\nSwitchName=top Switches=s[0-2]\n"
    assert with_slurm_switches(hosts("n0", "n9"), tree).notes == (
        "the topology names s1, s2 as a switch, but not what is below it",
        "no switch of the topology is above n9",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("RingName=ring0 Nodes=n[0-3] RingSize=4", "a ring is not a tree of switches; add --flat"),
        ("TorusName=pod Dims=4x4x2 Nodes=n[0-3]", "a torus is not a tree of switches"),
        ("- topology: t\n  ring:\n    rings: [{ring: r, nodes: n0}]", "topology 't': ring is not a tree of switches"),
        ("- topology: t\n  torus3d: {}", "topology 't': torus3d is not a tree"),
        ("- topology: t\n", "topology 't' states no kind"),
        ("- topology: t\n  tree: {switch: s0}", "topology 't': tree is not understood"),
        ("- topology: t\n  tree:\n    switches: [{switch: s0, node: n0}]", "switch 's0': node is not known"),
        ("---\ntree: 3\n", "topology.yaml is no list of topologies"),
        ("- topology: [t\n", "topology: no YAML"),
        ("Torus=3", "'Torus=3' is not understood"),
        ("SwitchName=s0 Nodes=n0 n1", "is not understood"),
        ("include more.conf", "is not understood"),
        ("SwitchName=s0 Nodes=n[0-1]\nSwitchName=s1 Nodes=n[1-2]", "n1 is below s0 and below s1, which is not a tree"),
        ("SwitchName=s0 Nodes=n[0-1", "is not a list of names"),
    ],
)
def test_what_is_no_tree_is_refused(text: str, message: str):
    """Tests that rings, toruses, two switches above one host and unknown lines are named, not passed over."""
    with pytest.raises(ValueError, match=message):
        switches(text, "n0")


def test_a_circle_of_switches_is_refused():
    """Tests that switches above themselves end in a message."""
    text = "SwitchName=x Nodes=n0 \nSwitchName=x Switches=y\nSwitchName=y Switches=x\n"
    with pytest.raises(ValueError, match="is above itself"):
        with_slurm_switches(hosts("n0"), text)
