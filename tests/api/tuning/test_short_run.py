"""Tests of api/tuning/short_run.py."""

from pathlib import Path

from api.tuning.short_run import last_lines


def test_the_executors_own_words_are_told(tmp_path: Path):
    """Tests that of a failed run's log the executor's message is taken, not torchrun's summary of it."""
    log = tmp_path / "log"
    log.write_text("W torchrun\nplanner.execute: layer 'l0' is compiled\nSystemExit\n")
    assert last_lines(log) == "layer 'l0' is compiled"
    log.write_text("[rank1]: RuntimeError: twice\n[rank0]: RuntimeError: peer is gone\nChildFailedError\n====\n")
    assert last_lines(log) == "RuntimeError: twice"
    log.write_text("")
    assert last_lines(log) == "it said nothing"
