"""Nodes of Slurm: Gres, trackable resources, states, and the forms in which scontrol prints them."""

import json

import pytest

from profiles.discovery.hosts import DeviceDefaults, FoundHosts, LeftOut
from profiles.discovery.slurm_nodes import parse_slurm_nodes

GIB = 2**30
SIZES = DeviceDefaults(memory_bytes=24 * GIB)


def parse(text: str) -> FoundHosts:
    return parse_slurm_nodes(text, sizes=SIZES)


def node(name: str = "n1", *, state: str = "IDLE", **fields: str) -> str:
    return f"NodeName={name} CPUTot=64 " + " ".join(f"{k}={v}" for k, v in fields.items()) + f" State={state}\n"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"Gres": "gpu:3090"}, r"Gres = gpu:3090: .* counts 3,090; give a type that begins with a digit a count"),
        ({"Gres": "gpu:4090D"}, "Gres = gpu:4090D: .* is not a count"),
        ({"Gres": "gpu:a:b:2"}, "more than a type and a count"),
        ({"Gres": "gpu:h100:8(S:0-1"}, "is not NAME:TYPE:COUNT"),
        ({"Gres": "gpu::8"}, "is not NAME:TYPE:COUNT"),
        ({"Gres": "gpu:h100:8", "CfgTRES": "gres/gpu=4"}, "Gres counts 8 gpu, but CfgTRES 4"),
        ({"Gres": "gpu:a:1,gpu:b:3", "CfgTRES": "gres/gpu=4,gres/gpu:a=2"}, "Gres counts 1 gpu:a, but CfgTRES 2"),
        ({"Gres": "gpu:2", "CfgTRES": "gres/gpu=2,gres/gpu:a=3"}, "CfgTRES counts 3 gpu by type"),
        ({"Gres": "gpu:h100:4", "AllocTRES": "gres/gpu=8"}, "AllocTRES = gres/gpu=8 uses 8 accelerators, .* lists 4"),
        ({"Gres": "gpu:a:2,gpu:b:2", "GresDrain": "gpu:1"}, "GresDrain has 1 gpu, but not which of a, b"),
        ({"Gres": "gpu:a:2", "GresDrain": "gpu:a:3"}, "GresDrain has 3 gpu:a, but Gres lists 2"),
        ({"Gres": "gpu:a:2", "GresDrain": "gpu:b:1"}, "GresDrain has 1 gpu:b, but not which of a"),
        ({"CfgTRES": "cpu"}, "CfgTRES = cpu: 'cpu' is not RESOURCE=AMOUNT"),
    ],
)
def test_counts_that_contradict_each_other_are_refused(fields: dict[str, str], message: str):
    """Tests that an entry that is none, and two fields that count otherwise, are refused by node and field."""
    with pytest.raises(ValueError, match=f"node n1: .*{message}"):
        parse(node(**fields))


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ("IDLE", ""),
        ("MIXED+PLANNED", ""),
        ("ALLOCATED+COMPLETING+CLOUD", ""),
        ("ALLOCATED+", ""),
        ("MIXED-", ""),
        ("IDLE+DYNAMIC_NORM", ""),
        ("IDLE~", ""),
        ("IDLE+CLOUD+POWERED_DOWN", ""),
        ("MIXED#", ""),
        ("ALLOCATED+CLOUD+NOT_RESPONDING+POWERING_UP", ""),
        ("IDLE%", ""),
        ("MIXED@", ""),
        ("IDLE+RESERVED", ""),
        ("IDLE*", "NOT_RESPONDING"),
        ("IDLE+NOT_RESPONDING", "NOT_RESPONDING"),
        ("DOWN*+DRAIN", "DOWN DRAIN NOT_RESPONDING"),
        ("DOWN+CLOUD+POWERED_DOWN", "DOWN"),
        ("IDLE+DRAIN", "DRAIN"),
        ("MIXED+MAINTENANCE", "MAINTENANCE"),
        ("IDLE+MAINT", "MAINT"),
        ("ALLOCATED$", "MAINTENANCE"),
        ("FUTURE", "FUTURE"),
        ("UNKNOWN", "UNKNOWN"),
        ("IDLE+INVALID_REG", "INVALID_REG"),
        ("MIXED+FAIL", "FAIL"),
    ],
)
def test_states_decide_who_is_left_out(state: str, why: str):
    """Tests that nodes that take jobs stay, asleep or busy as they may be, and that others are named with the cause."""
    found = parse(node(Gres="gpu:a:1", state=state))
    assert [host.name for host in found.hosts] == ([] if why else ["n1"])
    assert found.left_out == ((LeftOut(what="n1", why=why),) if why else ())


@pytest.mark.parametrize("state", ["SLEEPY", "IDLE+?", "IDLE+NEWFLAG", "up", ""])
def test_unknown_states_are_refused(state: str):
    """Tests that a state that nobody knows is not guessed at."""
    with pytest.raises(ValueError, match="node n1: State"):
        parse(node(Gres="gpu:a:1", state=state))


def test_sleeping_nodes_are_named():
    """Tests that nodes that Slurm has to start first are told."""
    text = node("c1", Gres="gpu:a:1", state="IDLE+CLOUD+POWERED_DOWN") + node("c2", Gres="gpu:a:1", state="IDLE~")
    assert parse(text).notes == ("c1, c2 powered down or starting",)


MANY = """\
NodeName=gpu01 Arch=x86_64 CoresPerSocket=48
   CPUAlloc=0 CPUEfctv=190 CPUTot=192 CPULoad=0.05
   Gres=gpu:h100:8(S:0-1)
   OS=Linux 6.8.0 #1 SMP
   RealMemory=2063000 AllocMem=0 FreeMem=N/A Sockets=2 Boards=1
   State=MIXED ThreadsPerCore=2 Owner=N/A MCS_label=N/A
   CfgTRES=cpu=190,mem=2063000M,billing=190,gres/gpu=8
   AllocTRES=
   Reason=was State=DOWN because Gres=gpu:h100:7 [root@2026-10-01T00:00:00]
          NodeName=gpu99 State=DRAIN
   Comment=Gres=gpu:x:1

NodeName=gpu02 Arch=x86_64
   Gres=(null)
   RealMemory=1000 CPUTot=8
   State=IDLE ThreadsPerCore=1
"""


def test_records_over_many_lines_are_read():
    """Tests that a node may fill many lines, and that what people wrote into Reason and Comment is no field."""
    first, second = parse(MANY).hosts
    assert (first.name, len(first.devices), first.devices[0].type) == ("gpu01", 8, "h100")
    assert (first.cores, first.memory_bytes) == (192, 2063000 * 2**20)
    assert (second.name, second.devices, second.cores) == ("gpu02", (), 8)
    on_one = " ".join(MANY.split("\n\n")[0].split())
    assert parse(on_one + "\n" + node("gpu02", Gres="gpu:2")).hosts[0] == first


def test_json_is_read():
    """Tests that `scontrol --json` says the same, with the states of old and new versions."""
    one = {"name": "n1", "state": ["IDLE", "CLOUD"], "gres": "gpu:4090:2", "tres": "cpu=8,gres/gpu=2", "cpus": 8}
    old = {"name": "n2", "state": "idle", "state_flags": ["DRAIN"], "gres": "gpu:4090:2", "real_memory": 100}
    found = parse(json.dumps({"nodes": [one, old]}))
    assert [(host.name, [device.type for device in host.devices]) for host in found.hosts] == [("n1", ["4090"] * 2)]
    assert found.left_out == (LeftOut(what="n2", why="DRAIN"),)
    with pytest.raises(ValueError, match="give the answer of `scontrol show node` with --json or --yaml"):
        parse("{}")
    with pytest.raises(ValueError, match="gres stands there twice"):
        parse('{"nodes": [{"name": "n1", "state": "IDLE", "gres": "gpu:4", "gres": "gpu:8"}]}')


def test_yaml_and_numbers_that_may_be_unset_are_read():
    """Tests that `scontrol --yaml` says the same, and that a number that is not set is not told."""
    number = "{set: true, infinite: false, number: 64}"
    unset = "{set: false, infinite: false, number: 0}"
    text = f"---\nnodes:\n- name: n1\n  state: [IDLE]\n  gres: gpu:h100:2\n  cpus: {number}\n  real_memory: {unset}\n"
    (host,) = parse(text).hosts
    assert (len(host.devices), host.cores, host.memory_bytes) == (2, 64, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slurm_load_node error", "no node is described"),
        ("NodeName=n[1-4] Gres=gpu:8 State=UNKNOWN", "is a list, as slurm.conf has it"),
        (node(Gres="gpu:1") * 2, "node n1: it is described twice"),
        (node(Gres="gpu:1", RealMemory="lots"), "node n1: RealMemory = lots is not a whole number"),
    ],
)
def test_other_answers_are_refused(text: str, message: str):
    """Tests that what is no answer of scontrol is told."""
    with pytest.raises(ValueError, match=message.replace("[", r"\[")):
        parse(text)


def test_slices_have_the_memory_of_their_name():
    """Tests that MIG's slices are not as large as the whole GPUs beside them, and never larger than is given."""
    text = node(Gres="gpu:h100:1,gpu:1g.10gb:2")
    whole, *slices = parse_slurm_nodes(text, sizes=DeviceDefaults(memory_bytes=80 * GIB)).hosts[0].devices
    assert (whole.memory_bytes, whole.is_memory_assumed) == (80 * GIB, True)
    assert [(one.memory_bytes, one.is_memory_assumed) for one in slices] == [(10 * GIB, False)] * 2
    for kind, size in (("3g.40gb", 40), ("a100_1g.5gb", 5), ("1c.3g.20gb", 20), ("nvidia_h200_2g.35gb", 35)):
        (device,) = parse_slurm_nodes(node(Gres=f"gpu:{kind}:1"), sizes=DeviceDefaults()).hosts[0].devices
        assert device.memory_bytes == size * GIB
    (small,) = (
        parse_slurm_nodes(node(Gres="gpu:1g.10gb:1"), sizes=DeviceDefaults(memory_bytes=9 * GIB)).hosts[0].devices
    )
    assert small.memory_bytes == 9 * GIB
    with pytest.raises(ValueError, match="node n1: the memory of h100 is not stated; add --accelerator-gib N"):
        parse_slurm_nodes(text, sizes=DeviceDefaults())


def test_brackets_without_end_are_refused():
    """Tests that JSON nested too deeply is refused, not an error of ours."""
    with pytest.raises(ValueError, match="it cannot be read"):
        parse('{"nodes":' + "[" * 100_000)
