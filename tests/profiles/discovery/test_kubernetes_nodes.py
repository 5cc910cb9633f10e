"""Nodes of Kubernetes: quantities, who takes pods, and what device plugins and labels say about accelerators."""

import json
from fractions import Fraction

import pytest

from profiles.discovery.hosts import DeviceDefaults, FoundHosts, HostDevice, LeftOut, make_cluster, with_processors
from profiles.discovery.kubernetes_nodes import parse_kubernetes_nodes
from profiles.discovery.quantities import parse_quantity, whole_quantity

GIB, MIB = 2**30, 2**20
A100 = "NVIDIA-A100-SXM4-80GB"
GFD = "nvidia.com/gpu"


def node(
    name: str = "n1",
    *,
    ready: str = "True",
    labels: dict[str, str] | None = None,
    spec: dict | None = None,
    capacity: dict[str, str] | None = None,
    **offered: str,
) -> dict:
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": spec or {},
        "status": {
            "allocatable": {"cpu": "7910m", "memory": "2097152Ki", "pods": "110"} | offered,
            "capacity": offered if capacity is None else capacity,
            "conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": ready}],
        },
    }


def parse(*nodes: dict, gib: int | None = None, **more) -> FoundHosts:
    sizes = DeviceDefaults(memory_bytes=gib and gib * GIB)
    return parse_kubernetes_nodes(json.dumps({"kind": "List", "items": nodes}), sizes=sizes, **more)


def devices(found: FoundHosts) -> list[tuple[str, int, float]]:
    """Type, how many in a row, and GiB of the devices of the only host."""
    (host,) = found.hosts
    kinds = dict.fromkeys((one.type, one.memory_bytes) for one in host.devices)
    return [(kind, sum(one.type == kind for one in host.devices), size / GIB) for kind, size in kinds]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("128849018880m", Fraction(128849018880, 1000)),
        ("32779544Ki", 32779544 * 1024),
        ("1.5Ti", 3 * 2**39),
        ("2k", 2000),
        ("64M", 64 * 10**6),
        ("1E", 10**18),
        ("1E3", 1000),
        ("12e6", 12 * 10**6),
        ("5e-1", Fraction(1, 2)),
        (".5", Fraction(1, 2)),
        ("4.", 4),
        ("+8", 8),
        ("3n", Fraction(3, 10**9)),
        ("7u", Fraction(7, 10**6)),
        ("1Pi", 2**50),
        ("1Ei", 2**60),
        (8, 8),
    ],
)
def test_quantities_are_read(text, value):
    """Tests that every suffix of Kubernetes' quantities means what it does there."""
    assert parse_quantity(text) == value


@pytest.mark.parametrize("text", ["", "8GB", "1,5", "1 Gi", "-1", "Ki", "1e", "0x10", "inf", "1Mi3", True])
def test_what_is_no_quantity_is_refused(text):
    """Tests that nothing else passes for a quantity."""
    with pytest.raises(ValueError, match="is not a quantity"):
        parse_quantity(text)


def test_devices_are_not_halved():
    """Tests that counts are whole."""
    assert whole_quantity("2k") == 2000
    with pytest.raises(ValueError, match="is not a whole number"):
        whole_quantity("500m")


@pytest.mark.parametrize(
    ("offered", "labels", "expected"),
    [
        ({GFD: "8"}, {f"{GFD}.product": A100, f"{GFD}.memory": "81920", f"{GFD}.count": "8"}, [(A100, 8, 80)]),
        (  # time slicing
            {GFD: "8"},
            {
                f"{GFD}.product": f"{A100}-SHARED",
                f"{GFD}.memory": "81920",
                f"{GFD}.count": "2",
                f"{GFD}.replicas": "4",
                f"{GFD}.sharing-strategy": "time-slicing",
            },
            [(A100, 2, 80)],
        ),
        (  # renamed by the plugin
            {GFD: "0", f"{GFD}.shared": "20"},
            {f"{GFD}.product": "Tesla-T4", f"{GFD}.memory": "15360", f"{GFD}.count": "2", f"{GFD}.replicas": "10"},
            [("Tesla-T4", 2, 15)],
        ),
        (  # MPS, without the label of replicas
            {GFD: "6"},
            {f"{GFD}.product": "L4-SHARED", f"{GFD}.memory": "23552", f"{GFD}.count": "3"},
            [("L4", 3, 23)],
        ),
        (  # MIG, single strategy
            {GFD: "7"},
            {
                f"{GFD}.product": f"{A100}-MIG-1g.10gb",
                f"{GFD}.memory": "9728",
                f"{GFD}.count": "7",
                f"{GFD}.replicas": "1",
                "nvidia.com/mig.strategy": "single",
            },
            [(f"{A100}-MIG-1g.10gb", 7, 9.5)],
        ),
        (  # MIG, mixed strategy
            {GFD: "1", "nvidia.com/mig-1g.10gb": "2", "nvidia.com/mig-3g.40gb": "1"},
            {
                f"{GFD}.product": A100,
                f"{GFD}.memory": "81920",
                f"{GFD}.count": "2",
                "nvidia.com/mig.strategy": "mixed",
                "nvidia.com/mig-1g.10gb.memory": "9728",
                "nvidia.com/mig-1g.10gb.count": "2",
            },
            [(A100, 1, 80), (f"{A100}-MIG-1g.10gb", 2, 9.5), (f"{A100}-MIG-3g.40gb", 1, 40)],
        ),
        (  # time sharing of GKE
            {GFD: "8"},
            {
                "cloud.google.com/gke-accelerator": "nvidia-l4",
                "cloud.google.com/gke-gpu-sharing-strategy": "time-sharing",
                "cloud.google.com/gke-max-shared-clients-per-gpu": "4",
            },
            [("nvidia-l4", 2, 64)],
        ),
        (  # slices of GKE, which are shared
            {GFD: "14"},
            {
                "cloud.google.com/gke-accelerator": "nvidia-tesla-a100",
                "cloud.google.com/gke-gpu-partition-size": "1g.5gb",
                "cloud.google.com/gke-max-shared-clients-per-gpu": "2",
            },
            [("nvidia-tesla-a100-MIG-1g.5gb", 7, 5)],
        ),
        (  # slices that are shared
            {"nvidia.com/mig-1g.10gb.shared": "4"},
            {"nvidia.com/mig-1g.10gb.replicas": "2", "nvidia.com/mig-1g.10gb.product": "H100-MIG-1g.10gb-SHARED"},
            [("H100-MIG-1g.10gb", 2, 10)],
        ),
        (
            {"amd.com/gpu": "8"},
            {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM", "amd.com/gpu.vram": "192G"},
            [("AMD_Instinct_MI300X_OAM", 8, 192)],
        ),
        (
            {"amd.com/gpu": "2"},
            {"beta.amd.com/gpu.vram.16G": "2", "beta.amd.com/gpu.device-id.6860": "2"},
            [("amd.com/gpu", 2, 16)],
        ),
        (  # partitions, whose memory is not that of the label
            {"amd.com/gpu": "64"},
            {
                "amd.com/gpu.product-name": "MI300X",
                "amd.com/gpu.vram": "192G",
                "amd.com/compute-memory-partition": "cpx_nps4",
            },
            [("MI300X-cpx_nps4", 64, 64)],
        ),
        (
            {"amd.com/spx_nps1": "4", "amd.com/cpx_nps4": "32"},
            {"amd.com/gpu.product-name": "MI300X", "amd.com/gpu.vram": "192G"},
            [("MI300X", 4, 192), ("MI300X-cpx_nps4", 32, 64)],
        ),
        ({"habana.ai/gaudi": "8"}, {}, [("habana.ai/gaudi", 8, 64)]),
        (
            {"google.com/tpu": "4"},
            {"cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice"},
            [("tpu-v5p-slice", 4, 64)],
        ),
        ({"huawei.com/Ascend910": "16"}, {"node.kubernetes.io/npu.chip.name": "910B3"}, [("910B3", 16, 64)]),
        (
            {"huawei.com/Ascend310P": "1", "huawei.com/Ascend310P-memory": "21527"},
            {},
            [("huawei.com/Ascend310P", 1, 64)],
        ),
        ({"gpu.intel.com/i915": "4"}, {"gpu.intel.com/product": "Max_1550"}, [("Max_1550", 4, 64)]),
        (  # shared by Intel's plugin
            {"gpu.intel.com/xe": "20", "gpu.intel.com/xe_monitoring": "1"},
            {"gpu.intel.com/device-id.0380-56c1.count": "2", "gpu.intel.com/memory.max": "34359738368"},
            [("gpu.intel.com/xe", 2, 16)],
        ),
        ({"aws.amazon.com/neuron": "16", "aws.amazon.com/neuroncore": "32"}, {}, [("aws.amazon.com/neuron", 16, 64)]),
        ({GFD: "4"}, {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}, [("nvidia-h100-80gb", 4, 64)]),
    ],
)
def test_accelerators_of_all_makers_are_counted_whole(offered, labels, expected):
    """Tests that devices shared in time count once, that slices are slices, and that labels say type and memory."""
    assert devices(parse(node(labels=labels, **offered), gib=64)) == expected


@pytest.mark.parametrize(
    ("offered", "labels", "message"),
    [
        (
            {GFD: "8"},
            {f"{GFD}.count": "4"},
            r"capacity nvidia.com/gpu = 8, but label nvidia.com/gpu.count = 4; correct",
        ),
        ({GFD: "8"}, {f"{GFD}.count": "2", f"{GFD}.replicas": "3"}, "count = 2 and nvidia.com/gpu.replicas = 3"),
        ({GFD: "8"}, {f"{GFD}.product": "L4-SHARED"}, "is shared, but no label"),
        ({GFD: "2"}, {f"{GFD}.memory": "80 GB"}, "label nvidia.com/gpu.memory: '80 GB' is not a quantity"),
        (
            {GFD: "9"},
            {"cloud.google.com/gke-max-shared-clients-per-gpu": "4"},
            "= 9 is no multiple of the 4 that share",
        ),
        ({GFD: "two"}, {}, "allocatable nvidia.com/gpu: 'two' is not a quantity"),
        ({GFD: "1500m"}, {}, "allocatable nvidia.com/gpu: '1500m' is not a whole number"),
        ({GFD: "2"}, {f"{GFD}.count": "x"}, "label nvidia.com/gpu.count = 'x' is not a whole number"),
        ({GFD: "2"}, {}, "the memory of nvidia.com/gpu is not stated; add --accelerator-gib N"),
        ({"amd.com/gpu": "2"}, {"beta.amd.com/gpu.vram.64G": "8"}, "labels of amd.com count 8"),
        ({"amd.com/gpu": "2"}, {"amd.com/gpu.vram.64G": "1", "amd.com/gpu.vram.16G": "1"}, "name 16G and 64G"),
        ({"gpu.intel.com/xe": "5"}, {"gpu.intel.com/device-id.a.count": "2"}, "labels of gpu.intel.com count 2"),
        ({"memory": "8GB"}, {}, "allocatable memory: '8GB' is not a quantity"),
    ],
)
def test_contradictions_are_refused(offered, labels, message):
    """Tests that node and field are named where two counts differ or a value is none."""
    with pytest.raises(ValueError, match=f"node n1: .*{message}"):
        parse(node(labels=labels, **offered))


def test_nodes_of_other_schedulers_and_those_that_go_are_not_guessed_at():
    """Tests that parts that HAMi offers as devices are refused, and that a node that is being deleted is left out."""
    shared, going = node(**{GFD: "10"}), node("n2", **{GFD: "1"})
    shared["metadata"]["annotations"] = {"hami.io/node-nvidia-register": "GPU-0,10,32768,100,Tesla V100,0,true:"}
    with pytest.raises(ValueError, match=r"node n1: annotation hami\.io/node-nvidia-register: HAMi offers parts"):
        parse(shared, gib=32)
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert parse(going, gib=32).left_out == (LeftOut(what="n2", why="being deleted"),)


def test_devices_that_are_broken_are_not_planned_for():
    """Tests that what a node has but does not offer is left out, and told."""
    found = parse(node(**{GFD: "6"}, capacity={GFD: "8"}, labels={f"{GFD}.count": "8"}), gib=80)
    assert devices(found) == [("nvidia.com/gpu", 6, 80)]
    assert found.notes == ("n1 offers 6 of its 8 nvidia.com/gpu",)
    silent = parse(node(labels={f"{GFD}.count": "8"}))
    assert silent.notes == ("n1 has 8 GPUs by its label nvidia.com/gpu.count, which no plugin offers",)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"ready": "False"}, "not ready"),
        ({"ready": "Unknown"}, "not ready"),
        ({"spec": {"unschedulable": True}}, "cordoned"),
        ("node-role.kubernetes.io/control-plane", "taint node-role.kubernetes.io/control-plane"),
        ("node-role.kubernetes.io/master", "taint node-role.kubernetes.io/master"),
        ("node.kubernetes.io/unreachable", "taint node.kubernetes.io/unreachable"),
        ("node.kubernetes.io/disk-pressure", "taint node.kubernetes.io/disk-pressure"),
        ("dedicated", "taint dedicated; --tolerate takes it"),
        ("nvidia.com/gpu", ""),
        ("amd.com/gpu", ""),
        ("google.com/tpu", ""),
        ("sku", ""),
    ],
)
@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_nodes_that_take_no_pods_are_left_out(changes, why: str, effect: str):
    """Tests that a taint keeps a node out unless it is called like the accelerator or tolerated."""
    if isinstance(changes, str):
        changes = {"spec": {"taints": [{"key": changes, "effect": effect, "value": "present"}]}}
    found = parse(node("g", **{GFD: "1"}), node(**{GFD: "1"}, **changes), gib=1, tolerated=["sku"])
    assert found.left_out == ((LeftOut(what="n1", why=why),) if why else ())
    assert [host.name for host in found.hosts] == (["g"] if why else ["g", "n1"])


def test_a_preference_keeps_nobody_away():
    """Tests that PreferNoSchedule does not leave a node out."""
    taints = [{"key": "node-role.kubernetes.io/control-plane", "effect": "PreferNoSchedule"}]
    assert parse(node(spec={"taints": taints}, **{GFD: "1"}), gib=1).left_out == ()


YAML = """\
apiVersion: v1
kind: Node
metadata:
  name: y1
status:
  allocatable: {cpu: 4, memory: 1.5Gi, nvidia.com/gpu: "2"}
  conditions: [{type: Ready, status: "True"}]
"""


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"kind": "List", "items": [node("y1", **{GFD: "2"})]}),
        json.dumps({"kind": "NodeList", "items": [{**node("y1", **{GFD: "2"}), "kind": "Node"}]}),
        json.dumps(node("y1", **{GFD: "2"})),
        YAML,
        "---\n" + YAML + "---\n",
    ],
)
def test_lists_and_single_nodes_are_read(text: str):
    """Tests that kubectl's List, a NodeList, one Node, and YAML are the same."""
    (host,) = parse_kubernetes_nodes(text, sizes=DeviceDefaults(memory_bytes=GIB)).hosts
    assert (host.name, len(host.devices)) == ("y1", 2)


@pytest.mark.parametrize(
    "text",
    ["{", "{}", '{"items": [3]}', "[]", "a: b: c", "nodes", json.dumps({"items": [{"kind": "Pod"}]}), '{"items": 3}'],
)
def test_other_answers_are_refused(text: str):
    """Tests that what is no list of nodes is told."""
    with pytest.raises(ValueError, match="give the answer of `kubectl get nodes --output json`"):
        parse_kubernetes_nodes(text, sizes=DeviceDefaults())
    with pytest.raises(ValueError, match="Kubernetes has no node"):
        parse_kubernetes_nodes('{"items": []}', sizes=DeviceDefaults())
    with pytest.raises(ValueError, match="node n1: it is described twice"):
        parse(node(), node())
    with pytest.raises(ValueError, match=r"node n1: cannot be read .*'conditions'"):
        parse(node() | {"status": {"allocatable": {}}})


def test_names_and_processors_are_told():
    """Tests that a host is called as its label says, and that fractions of bytes and cores are cut off."""
    labels = {"kubernetes.io/hostname": "worker-1"}
    found = parse(node(labels=labels, memory="128849018880m", **{"devices.kubevirt.io/kvm": "1k"}))
    (host,) = with_processors(found, DeviceDefaults(workers_per_host=1)).hosts
    assert host.name == "worker-1"
    assert host.devices == (HostDevice(type="cpu", memory_bytes=128849018, cores=7),)
    assert found.notes == ("worker-1 has devices.kubevirt.io/kvm, not taken for accelerators",)
    (small,) = with_processors(parse(node(cpu="500m")), DeviceDefaults(workers_per_host=1)).hosts
    assert small.devices[0].cores == 1


def test_the_clique_is_a_domain_of_nvlink():
    """Tests that GPUs of several hosts with one clique meet at an NVSwitch, each with its lanes once."""
    labels = {f"{GFD}.product": "NVIDIA-GB200", f"{GFD}.clique": "7b968a6d.32766"}
    nodes = [node(name, labels=labels, **{GFD: "2"}) for name in ("a", "b")]
    other = node("c", labels=labels | {f"{GFD}.clique": "7b968a6d.1"}, **{GFD: "2"})
    cluster = make_cluster("c", parse(*nodes, other, gib=186).hosts)
    route = cluster.route("a-0", "b-1", num_bytes=2**20)
    assert route.bandwidth_bytes_per_s == 900_000_000_000
    first, second = (cluster.route("a-0", target, num_bytes=2**20).links[0] for target in ("a-1", "b-0"))
    assert first == second, "both transfers leave by the same lanes"
    assert cluster.route("a-0", "c-0", num_bytes=2**20).bandwidth_bytes_per_s == 12_500_000_000
    assert {"nvlink 7b968a6d.32766", "nvlink 7b968a6d.1"} <= set(cluster.switches)
