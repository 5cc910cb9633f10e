"""A host as nvidia-smi describes it, the program itself played by a script."""

import pytest

from api.discovery.nvidia_host import describe_host
from planner.execute.run.nvidia_smi import parse_accelerators
from profiles.discovery.hosts import DeviceDefaults, FoundHosts, HostFacts, LeftOut

GIB = 2**30
MESH = (
    "\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\n"
    "GPU0\t X \tNV1\tNV1\tNV2\t0-7\nGPU1\tNV1\t X \tNV2\tNV1\t0-7\n"
    "GPU2\tNV1\tNV2\t X \tNV2\t0-7\nGPU3\tNV2\tNV1\tNV2\t X \t0-7\n"
)
V100 = "Tesla V100-SXM2-16GB"
ROWS = "".join(f"{number}, {V100}, 16384\n" for number in range(4))


def describe(rows: str = ROWS, *, matrix: str = MESH, gib: int | None = None, **environment: str) -> FoundHosts:
    return describe_host(
        HostFacts(name="h", cores=8, memory_bytes=120 * GIB),
        parse_accelerators(rows),
        connections=matrix,
        sizes=DeviceDefaults(memory_bytes=gib and gib * GIB),
        environment=environment,
        uuids={number: f"GPU-{number}a" for number in range(4)},
    )


@pytest.mark.parametrize(
    ("visible", "lanes", "hidden"),
    [
        ("3,1", {(0, 1): 1}, [0, 2]),
        ("2,3,0", {(0, 1): 2, (0, 2): 1, (1, 2): 2}, [1]),
        ("GPU-3a,GPU-0a", {(0, 1): 2}, [1, 2]),
        ("1", {}, [0, 2, 3]),
    ],
)
def test_links_are_those_of_the_visible_gpus(visible: str, lanes: dict[tuple[int, int], int], hidden: list[int]):
    """Tests that the first visible GPU has the links of the GPU that it is, and that the others are named."""
    found = describe(CUDA_VISIBLE_DEVICES=visible)
    assert found.hosts[0].nvlink_bytes_per_s == {pair: count * 25 * 10**9 for pair, count in lanes.items()}
    assert found.left_out == tuple(LeftOut(what=f"GPU {n}", why=f"CUDA_VISIBLE_DEVICES={visible}") for n in hidden)


def test_a_lost_gpu_does_not_shift_the_others():
    """Tests that the GPUs behind a lost one keep their links, and that it is named."""
    found = describe(ROWS.replace(f"1, {V100}, 16384", "1, [GPU is lost], [GPU is lost]"))
    assert len(found.hosts[0].devices) == 3
    assert found.hosts[0].nvlink_bytes_per_s == {(0, 1): 25 * 10**9, (0, 2): 50 * 10**9, (1, 2): 50 * 10**9}
    assert found.left_out == (LeftOut(what="GPU 1", why="GPU is lost"),)


@pytest.mark.parametrize("cell", ["NV?", "", "XGMI"])
def test_cells_that_are_not_known_are_refused(cell: str):
    """Tests that what joins two GPUs is not taken for no NVLink where the matrix says something else."""
    with pytest.raises(ValueError, match="does not show what joins GPU 0 and 1"):
        describe(matrix=MESH.replace("NV1", cell, 1))


def test_unified_memory_is_the_hosts():
    """Tests that a GPU without memory of its own has the host's, two of them half each, and that this is told."""
    found = describe("0, NVIDIA GB10, [N/A]\n", matrix="")
    assert found.hosts[0].devices[0].memory_bytes == 120 * GIB
    assert found.notes == ("NVIDIA GB10 uses the memory of its host, 120 GiB (unified memory)",)
    two = describe("0, Thor, [N/A]\n1, Thor, [N/A]\n", matrix="")
    assert [device.memory_bytes for device in two.hosts[0].devices] == [60 * GIB] * 2
    assert two.assumed == ("no NVLink (the output of `nvidia-smi topo -m` is missing)",)
    (given,) = describe("0, NVIDIA GB10, [N/A]\n", matrix="", gib=100).hosts[0].devices
    assert (given.memory_bytes, given.is_memory_assumed) == (100 * GIB, True)


def test_numbers_of_unequal_gpus_are_an_assumption():
    """Tests that CUDA's own order of unequal GPUs is not taken for nvidia-smi's in silence."""
    rows = ROWS.replace(V100, "NVIDIA L4", 1)
    assert describe(rows).assumed == ("numbers as nvidia-smi has them (CUDA_DEVICE_ORDER=PCI_BUS_ID)",)
    assert describe(rows, CUDA_DEVICE_ORDER="PCI_BUS_ID").assumed == ()
    with pytest.raises(ValueError, match="does not show what joins GPU 0 and 4; give the matrix of this host"):
        describe(ROWS + "4, A, 1\n")


def test_a_matrix_with_more_gpus_than_are_listed():
    """Tests that a matrix of a larger host is refused, but not for GPUs that are lost."""
    with pytest.raises(ValueError, match="topo -m` shows GPU 2, which is not listed; give both of one host"):
        describe("".join(ROWS.splitlines(keepends=True)[:2]))
    lost = "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost\n"
    assert len(describe("".join(ROWS.splitlines(keepends=True)[:3]) + lost).hosts[0].devices) == 3
