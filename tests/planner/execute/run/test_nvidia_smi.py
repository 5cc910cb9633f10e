"""The answers of nvidia-smi."""

from textwrap import indent

import pytest

from planner.execute.run.nvidia_smi import (
    AcceleratorRow,
    nvlink_lanes,
    parse_accelerators,
    parse_connections,
    parse_uuids,
    visible_numbers,
    without_sliced,
)

H100 = "NVIDIA H100 80GB HBM3"
MIB = 2**20
UUIDS = {0: "GPU-1f3c", 1: "GPU-1fa0", 3: "GPU-77d2"}


@pytest.mark.parametrize(
    ("text", "rows", "lost"),
    [
        (f"1, {H100}, 81559\n0, {H100}, 81559\n", [(0, H100, 81559 * MIB), (1, H100, 81559 * MIB)], {}),
        (f"index, name, memory.total [MiB]\r\n0, {H100}, 81559 MiB\r\n", [(0, H100, 81559 * MIB)], {}),
        ("0, NVIDIA GB10, [N/A]\n", [(0, "NVIDIA GB10", None)], {}),
        ("0, Orin (nvgpu), [Not Supported]\n", [(0, "Orin (nvgpu)", None)], {}),
        ("0, NVIDIA L4, 23034, GPU-1f3c\n", [(0, "NVIDIA L4", 23034 * MIB)], {}),
        (
            "0, A, 1\n1, [GPU is lost], [GPU is lost]\n2, A, 1\n",
            [(0, "A", MIB), (2, "A", MIB)],
            {"GPU 1": "GPU is lost"},
        ),
        ("0, A, 1\n1, A, [Unknown Error]\n", [(0, "A", MIB)], {"GPU 1": "Unknown Error"}),
        ("0, A, 1\n1, ERR!, ERR!\n", [(0, "A", MIB)], {"GPU 1": "ERR!"}),
        (
            "Unable to determine the device handle for GPU0000:41:00.0: GPU is lost.  Reboot the system\n1, A, 1\n",
            [(1, "A", MIB)],
            {"GPU0000:41:00.0": "GPU is lost.  Reboot the system"},
        ),
        ("No devices were found\n", [], {}),
        ("", [], {}),
    ],
)
def test_rows_are_read(text: str, rows: list, lost: dict[str, str]):
    """Tests that numbers stay where GPUs are lost, and that [N/A] is memory that is shared with the host."""
    found = parse_accelerators(text)
    assert found.working == tuple(
        AcceleratorRow(index=index, name=name, memory_bytes=size) for index, name, size in rows
    )
    assert found.lost == lost


@pytest.mark.parametrize(
    "text",
    [
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n\n",
        "Failed to initialize NVML: Driver/library version mismatch\n",
        "0, A, 1\n0, A, 1\n",
        "0, A\n",
        "0, A, much\n",
        "x, A, 1\n",
        "GPU 0: NVIDIA L4 (UUID: GPU-1f3c)\n",
        "index, name, memory.free [MiB], memory.total [MiB]\n0, NVIDIA L4, 559 MiB, 23034 MiB\n",
        "index, name, memory.used [MiB]\n0, NVIDIA L4, 559 MiB\n",
        "name, index, memory.total [MiB]\nNVIDIA L4, 0, 23034 MiB\n",
        "device,VRAM Total Memory (B),Card series\ncard0,206141652992,AMD Instinct MI300X\n",
        '{"card0": {"VRAM Total Memory (B)": "206141652992", "Card Series": "AMD Instinct MI300X"}}',
        "gpu,market_name,vram_size\n0,AMD Instinct MI300X,196592\n",
        "+-----------+------+\n| Device ID | Device Information |\n",
    ],
)
def test_other_answers_are_refused(text: str):
    """Tests that what is no answer of nvidia-smi's, another maker's program's say, gives no accelerators."""
    what = r"^nvidia-smi answers .* (in place of `index|not a number of MiB).*"
    expected = what + "--query-gpu=index,name,memory.total.*; name other makers' devices in a hostfile, with --type"
    with pytest.raises(ValueError, match=expected):
        parse_accelerators(text)


@pytest.mark.parametrize(
    ("wanted", "kept"),
    [
        (None, [0, 1, 3]),
        ("0,1,2", [0, 1, 3]),
        ("2, 0", [3, 0]),
        ("", []),
        ("-1", []),
        ("1,-1,0", [1]),
        ("1,7,0", [1]),
        ("1,1", [1]),
        ("GPU-77d2,GPU-1f3", [3, 0]),
        ("GPU-1f", []),
        ("GPU-1fa0,1,GPU-none,0", [1]),
        ("GPU-1f3c,2", [0, 3]),
    ],
)
def test_a_process_sees_what_the_variable_leaves(wanted: str | None, kept: list[int]):
    """Tests that numbers count the GPUs that work, that names may be short, and that nonsense ends the list."""
    assert visible_numbers(wanted, numbers=[0, 1, 3], uuids=UUIDS) == kept


def test_slices_are_no_gpus():
    """Tests that a name of a MIG slice is refused."""
    with pytest.raises(ValueError, match="CUDA_VISIBLE_DEVICES = MIG-4: MIG-4 is a slice"):
        visible_numbers("MIG-4", numbers=[0], uuids={})
    assert parse_uuids("0, GPU-1f3c\n1, GPU-1fa0\n\nerror") == {0: "GPU-1f3c", 1: "GPU-1fa0"}


def test_sliced_gpus_are_not_whole():
    """Tests that a GPU in MIG mode is left out and named."""
    rows = parse_accelerators("0, A, 1\n1, A, 1\n")
    found = without_sliced(rows, "0, [N/A]\n1, Enabled\n")
    assert found.working == rows.working[:1]
    assert found.lost == {"GPU 1": "cut into slices by MIG"}
    assert without_sliced(rows, "0, Disabled\n1, Disabled\n") == rows


LOST = "\x1b[4m\tGPU0\tGPU2\tGPU3\tNIC0\tCPU Affinity\x1b[0m\nGPU0\t X \tNV12\tSYS\tPIX\nGPU2\tNV12\t X \tNV4\tSYS\n"


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        (LOST, {(0, 2): "NV12", (0, 3): "SYS", (2, 3): "NV4"}),
        (LOST.replace("\t", "      "), {(0, 2): "NV12", (0, 3): "SYS", (2, 3): "NV4"}),
        (indent(LOST, "    "), {(0, 2): "NV12", (0, 3): "SYS", (2, 3): "NV4"}),
        (f"GPUs of h:\n{LOST}{LOST}", {(0, 2): "NV12", (0, 3): "SYS", (2, 3): "NV4"}),
        ("\tGPU0\tCPU Affinity\nGPU0\t X \t0-7\n\nLegend:\n  X    = Self\n", {}),
        ("", {}),
    ],
)
def test_the_matrix_is_read_by_its_numbers(text: str, pairs: dict[tuple[int, int], str]):
    """Tests that the matrix may lack a GPU, the first as well, and that only NVLink has lanes."""
    assert parse_connections(text) == pairs
    assert nvlink_lanes(pairs) == {pair: int(what[2:]) for pair, what in pairs.items() if what != "SYS"}
    without = {pair: what for pair, what in pairs.items() if pair[0]}
    assert parse_connections("\n".join(line for line in text.splitlines() if line.strip()[:4] != "GPU0")) == without


@pytest.mark.parametrize("other", [LOST.replace("NV12", "SYS"), "GPU2\tSYS\t X \tNV4\n", "GPU0\t X \tNV4\tSYS\n"])
def test_a_matrix_that_contradicts_itself_is_refused(other: str):
    """Tests that neither another host's matrix nor one half of the cells wins in silence."""
    with pytest.raises(ValueError, match=r"`topo -m` joins GPU \d and \d by .* and otherwise; give one host's"):
        parse_connections(LOST + other)


def test_a_matrix_of_pcie_alone_is_refused():
    """Tests that `topo -mp` is known by its legend, and not taken for a host without NVLink."""
    legend = "\nLegend:\n\n  X    = Self\n  SYS  = Connection across sockets\n  PIX  = One PCIe bridge\n"
    matrix = "\tGPU0\tGPU1\nGPU0\t X \tSYS\nGPU1\tSYS\t X \n"
    with pytest.raises(ValueError, match=r"`topo -mp` shows no NVLink, as its legend says; give what .*topo -m`"):
        parse_connections(matrix + legend)
    assert parse_connections(f"{matrix}{legend}  NV#  = NVLinks\n") == parse_connections(matrix) == {(0, 1): "SYS"}
