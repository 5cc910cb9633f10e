"""Help as plain text, in sections: tests of api/cli/options/folded_help.py."""

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from api.cli import app
from tests.api.worlds import Shell

TWO_SCREENS = 48
"""Lines of two terminals of 24 lines each."""


def commands_of(command: Any, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and group that help lists, with the words that call it."""
    yield names, command
    for name, each in getattr(command, "commands", {}).items():
        if not each.hidden:
            yield from commands_of(each, *names, name)


@pytest.mark.parametrize("columns", ["80", "100"])
def test_every_help_fits_on_two_screens(columns: str, shell: Shell, monkeypatch: pytest.MonkeyPatch):
    """Tests that each --help has at most 48 lines, and where it leaves options out, --help-all has them."""
    monkeypatch.setenv("COLUMNS", columns)
    for names, command in commands_of(typer.main.get_command(app)):
        usual = shell.run(*names, "--help").out
        assert len(usual.splitlines()) <= TWO_SCREENS, names
        options = {name for each in command.params for name in each.opts if name.startswith("--") and not each.hidden}
        left_out = {name for name in options if name not in usual}
        assert ("--help-all" in usual) == bool(left_out), names
        if left_out:
            every = shell.run(*names, "--help-all").out
            assert {name for name in options if name not in every} == set(), names
            assert shell.run(*names, "--help").out == usual


def test_rare_options_are_folded(shell: Shell):
    """Tests that `plan --help` leaves out what few need."""
    usual = shell.run("plan", "--help").out
    assert [name for name in ("--pin", "--search-param", "--workers") if name in usual] == []


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("--attempts", "0", "greater than or equal to 1, not '0'"),
        ("--devices", "0", "greater than or equal to 1, not '0'"),
        ("--repetitions", "0", "greater than or equal to 1, not '0'"),
        ("--seconds", "nan", "less than or equal to 86400, not 'nan'"),
        ("--memory", "2e6", "less than or equal to 1048576, not '2e6'"),
        ("--repetitions", "\x1b[2J" * 99, r", not '\x1b[2J"),
    ],
)
def test_what_is_refused_is_named(option: str, value: str, allowed: str, shell: Shell):
    """Tests that a value out of its range stands in the message, beside its option and what is allowed."""
    outcome = shell.run("profile", "gpt", option, value)
    assert outcome.code == 2
    assert f"'{option}': Input should be" in outcome.err
    assert allowed in outcome.err
    assert len(outcome.err) < 400
    assert "\x1b" not in outcome.err


def test_a_choice_is_repeated_once(shell: Shell):
    """Tests that a message that names the value itself is left as it is."""
    assert shell.run("serve", "--log-format", "xml").err.count("xml") == 1
