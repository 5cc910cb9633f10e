"""The accelerators of a node of Kubernetes: tests of profiles/discovery/kubernetes_devices.py."""

import pytest

from profiles.discovery.hosts import FoundHosts
from tests.profiles.discovery.test_kubernetes_nodes import GFD, GIB, node, parse

A100 = "NVIDIA-A100-SXM4-80GB"


def devices(found: FoundHosts) -> list[tuple[str, int, float]]:
    """Type, how many in a row, and GiB of the devices of the only host."""
    (host,) = found.hosts
    kinds = dict.fromkeys((one.type, one.memory_bytes) for one in host.devices)
    return [(kind, sum(one.type == kind for one in host.devices), size / GIB) for kind, size in kinds]


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


def test_devices_that_are_broken_are_not_planned_for():
    """Tests that what a node has but does not offer is left out, and told; it cannot offer more than it has."""
    found = parse(node(**{GFD: "6"}, capacity={GFD: "8"}, labels={f"{GFD}.count": "8"}), gib=80)
    assert devices(found) == [("nvidia.com/gpu", 6, 80)]
    assert found.notes == ("n1 offers 6 of its 8 nvidia.com/gpu",)
    for capacity in ("8", "0"):
        with pytest.raises(ValueError, match=f"node n1: allocatable {GFD} = 9, but capacity {capacity}; correct"):
            parse(node(**{GFD: "9"}, capacity={GFD: capacity}), gib=80)
    for label, value in (("count", "8"), ("present", "true")):
        (told,) = parse(node(labels={f"{GFD}.{label}": value})).notes
        assert told.startswith(f"n1 has GPUs by its label {GFD}.{label} = {value}, which no plugin offers; where pods")
    assert not parse(node(labels={f"{GFD}.present": "false"})).notes
