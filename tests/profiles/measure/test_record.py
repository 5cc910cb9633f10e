"""Tests of profiles/measure/record.py."""

from dataclasses import replace
from pathlib import Path

import pytest

from api.failures import InputError
from api.inputs import reading
from profiles.measure.record import (
    Journal,
    Timing,
    open_journal,
    spreads_that_count,
    summarise,
)
from tests.profiles.measure.test_assemble import make_record


def test_median_and_quartiles():
    """Tests that the summary is the median, and the distance of the quartiles as a part of it."""
    assert summarise([30, 10, 20, 90]) == Timing(ns=25, spread=1.1, repetitions=4)


def test_the_spread_told_is_that_of_phases_that_count():
    """Tests that a phase of microseconds that varies by several times is left out of what is told."""
    timings = [Timing(ns=ns, spread=spread) for ns, spread in ((1_000_000, 0.02), (20_000, 0.1), (9_000, 6.0))]
    assert spreads_that_count(timings) == [0.02, 0.1]
    assert spreads_that_count([]) == []


def test_all_but_state_grows_with_samples():
    """Tests that what a layer takes of a device is stated for more samples, too."""
    sizes = make_record().sizes
    assert sizes.most(3) - sizes.state == 3 * (sizes.most() - sizes.state) > 0


def test_a_journal_remembers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Tests that records and tables come back, and a line cut short, in a letter even, goes without a new file."""
    path = tmp_path / "journal"
    journal = open_journal(path)
    journal.put("one", make_record())
    journal.put_table("links", [1, 2])
    with open(path, "a", encoding="utf-8", errors="surrogateescape") as file:
        file.write('{"key": "tw\u00f6'.encode()[:-1].decode(errors="surrogateescape"))
    monkeypatch.setattr(Path, "write_text", lambda *_, **__: pytest.fail("written anew, it could be lost to a kill"))
    again = open_journal(path)
    assert (again.known, again.tables) == ({"one": make_record()}, {"links": [1, 2]})
    again.put("two", make_record(trained=0))
    assert open_journal(path).get("two") == make_record(trained=0)


@pytest.mark.parametrize("line", ["nonsense", "[]", "{}", '{"key": "one", "record": {"outputs": []}}', '{"key": 1}'])
def test_a_journal_of_something_else_is_refused(tmp_path: Path, line: str):
    """Tests that a foreign file is refused with its line and a remedy, and left as it is."""
    path = tmp_path / "journal"
    path.write_text(line + "\n")
    with pytest.raises(ValueError, match=r"line 1: was not written by pipeplan profile .*; remove the file"):
        open_journal(path)
    assert path.read_text() == line + "\n"


def test_a_journal_of_an_earlier_release_is_refused(tmp_path: Path):
    """Tests that records whose timings have other fields than today's are refused by these names."""
    path = tmp_path / "journal"
    open_journal(path).put("one", make_record(F=10))
    path.write_text(path.read_text().replace('"ns": 10', '"wall_ns": 10'))
    with pytest.raises(ValueError, match=r"by pipeplan profile as it is now \(timings\.F.*; remove the file"):
        open_journal(path)


def test_a_full_disk_is_said_with_the_journal():
    """Tests that what could not be kept is an error that names the file and the cause, which the remedy follows."""
    with pytest.raises(InputError, match=r"^/dev/full: No space left on device; make room there$"), reading():
        Journal(path=Path("/dev/full")).put_table("links", [1])


def test_no_journal_is_no_file():
    """Tests that without a path records are kept in memory."""
    journal = Journal()
    journal.put("one", make_record())
    assert journal.get("one") == make_record()
    assert replace(make_record(), estimate="x").is_measured is False
