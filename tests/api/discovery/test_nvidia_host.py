"""A host as nvidia-smi describes it, the program itself played by a script."""

import json
from pathlib import Path

import pytest

from api.cli import main
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


def play(folder: Path, monkeypatch, *, rows: str, matrix: str = "", code: int = 0) -> None:
    """Let a script answer in place of nvidia-smi."""
    (folder / "rows").write_text(rows)
    (folder / "matrix").write_text(matrix)
    program = folder / "nvidia-smi"
    program.write_text(
        f'#!/bin/sh\ncase "$1" in topo) cat {folder}/matrix;; *) cat {folder}/rows; exit {code};; esac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_this_machine_is_asked(tmp_path: Path, monkeypatch, capsys):
    """Tests that nvidia-smi is asked, and that one line says what was told and assumed, with -o as well."""
    play(tmp_path, monkeypatch, rows=ROWS, matrix=MESH)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert main(["cluster", "discover", "nvidia-smi", "-o", str(tmp_path / "c.json")]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(
        f"1 node x 2 {V100}; left out: GPU 0, GPU 2 (CUDA_VISIBLE_DEVICES=3,1); assumed: 1 GiB + 6 % of it reserved, "
    )
    assert said.err.count("\n") == 1
    links = json.loads((tmp_path / "c.json").read_text())["links"]
    assert [link["bandwidth_bytes_per_s"] for link in links] == [24 * 10**9, 24 * 10**9, 25 * 10**9]


@pytest.mark.parametrize(
    ("code", "rows"), [(9, "NVIDIA-SMI has failed because ..."), (0, "NVIDIA-SMI has failed"), (6, "")]
)
def test_a_driver_that_does_not_answer_is_refused(code: int, rows: str, tmp_path: Path, monkeypatch, capsys):
    """Tests that text and exit code are told in place of a cluster, unless processors are asked for."""
    play(tmp_path, monkeypatch, rows=rows, code=code)
    assert main(["cluster", "discover", "nvidia-smi"]) == 2
    said = capsys.readouterr()
    assert "; repair its driver and try again, or add --cpus to plan for processors alone" in said.err
    assert main(["cluster", "discover", "nvidia-smi", "--cpus"]) == 0
    assert "accelerators are unknown: nvidia-smi " in capsys.readouterr().err


def test_answers_in_files_are_read(tmp_path: Path, monkeypatch, capsys):
    """Tests that --file describes the machine whose answer it is, and not this one."""
    play(tmp_path, monkeypatch, rows="0, NVIDIA L4, 23034\n")
    (tmp_path / "other").write_text(ROWS)
    (tmp_path / "topo").write_text(MESH)
    words = ["cluster", "discover", "nvidia-smi", "--topology", str(tmp_path / "topo")]
    assert main([*words, "--file", str(tmp_path / "other")]) == 0
    said = capsys.readouterr()
    assert f"1 node x 4 {V100}" in said.err
    assert len(json.loads(said.out)["links"]) == 4 + 6
    assert main(words) == 2
    assert "with nvidia-smi --file" in capsys.readouterr().err
    (tmp_path / "other").write_text("0, NVIDIA GB10, [N/A]\n")
    assert main(["cluster", "discover", "nvidia-smi", "--file", str(tmp_path / "other")]) == 2
    assert "the memory of NVIDIA GB10 is not stated; add --accelerator-gib N" in capsys.readouterr().err
