"""`pipeplan cluster discover`: tests of api/discovery/cluster_discovery.py."""

import json
from pathlib import Path

import pytest

from api.cli import main
from tests.api.discovery.test_nvidia_host import MESH, ROWS, V100


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
    assert "repair its driver" in said.err
    assert ", or add --cpus to plan for processors alone" in said.err
    assert main(["cluster", "discover", "nvidia-smi", "--cpus"]) == 0
    assert "accelerators are unknown: nvidia-smi " in capsys.readouterr().err


def test_devices_of_other_makers_are_not_left_out_in_silence(tmp_path: Path, monkeypatch, capsys):
    """Tests that a host where another maker's program lists devices is no host without accelerators."""
    (tmp_path / "rocm-smi").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "rocm-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    told = "rocm-smi is here, whose devices are not read; name them in a hostfile, with --type and"
    for words, code in (
        (["cluster", "discover", "nvidia-smi"], 2),
        (["cluster", "discover", "nvidia-smi", "--cpus"], 0),
    ):
        assert main(words) == code
        assert told in capsys.readouterr().err


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


def test_files_of_other_programs_are_read_as_they_save_them(tmp_path: Path, capsys):
    """Tests that a byte order mark does not matter, and that UTF-16 is refused by file and remedy."""
    hosts = tmp_path / "hosts"
    words = ["cluster", "discover", "hostfile", "--file", str(hosts), "--accelerator-gib", "24"]
    hosts.write_bytes(b"\xef\xbb\xbfn1 slots=2\n")
    assert main(words) == 0
    assert '"host":"n1"' in capsys.readouterr().out
    hosts.write_bytes("n1 slots=2\n".encode("utf-16"))
    assert main(words) == 2
    assert f"{hosts}: is UTF-16; save the text as UTF-8" in capsys.readouterr().err


def test_memory_in_another_unit_is_said(tmp_path: Path, capsys):
    """Tests that mebibytes after --accelerator-gib are taken, and said beside what is assumed."""
    hosts = tmp_path / "hosts"
    hosts.write_text("n1 slots=2\n")
    assert main(["cluster", "discover", "hostfile", "--file", str(hosts), "--accelerator-gib", "81920"]) == 0
    assert "memory_bytes = 87,960,930,222,080 is 8.19e+04 GiB" in capsys.readouterr().err
