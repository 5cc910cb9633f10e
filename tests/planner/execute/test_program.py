"""What a run tells of its iterations: tests of planner/execute/program.py."""

import json
import os
import threading
from pathlib import Path

import pytest

pytest.importorskip("torch")
from planner.execute import program


def write(path: Path, *numbers: int) -> None:
    losses = program._Losses(path, first=numbers[0])
    for number in numbers:
        losses.write({"iteration": number})
    if losses._file is not None:
        losses._file.close()


def read(text: str) -> list[int]:
    return [json.loads(line)["iteration"] for line in text.splitlines()]


def test_a_file_holds_every_iteration_once(tmp_path: Path):
    """Tests that an earlier run's losses go but for those before the first iteration, and no line stays cut."""
    path = tmp_path / "losses"
    path.write_text("something else")
    write(path, 0, 1, 2)
    with path.open("a") as file:
        file.write('{"iter')
    write(path, 2, 3)
    assert read(path.read_text()) == [0, 1, 2, 3]


@pytest.mark.parametrize("first", [0, 3])
def test_an_inherited_pipe_gets_every_iteration(first: int):
    """Tests that --losses /dev/stdout into a pipe, or >(program), is written to, also where a run continues."""
    reader, writer = os.pipe()
    write(Path(f"/dev/fd/{writer}"), first, first + 1)
    assert read(os.read(reader, 1000).decode()) == [first, first + 1]
    os.close(reader)
    os.close(writer)


def test_a_redirected_output_gets_every_iteration(tmp_path: Path):
    """Tests that --losses /dev/stdout writes into the file that standard output is, and puts none in its place."""
    with (tmp_path / "output").open("w") as output:
        write(Path(f"/dev/fd/{output.fileno()}"), 0, 1)
    assert read((tmp_path / "output").read_text()) == [0, 1]


def test_a_named_pipe_is_opened_once(tmp_path: Path):
    """Tests that who reads a named pipe to its end gets all iterations."""
    os.mkfifo(tmp_path / "pipe")
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append((tmp_path / "pipe").read_text()), daemon=True)
    reader.start()
    writer = threading.Thread(target=write, args=(tmp_path / "pipe", 0, 1), daemon=True)
    writer.start()
    writer.join(10)
    reader.join(10)
    assert [read(each) for each in found] == [[0, 1]]
