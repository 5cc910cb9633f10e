"""Groups of options: a command takes named tuples, the command line has their fields."""

import inspect
from typing import Annotated, NamedTuple

import pytest
import typer
from typer.testing import CliRunner

from api.cli import app
from api.cli.options.option_groups import takes_groups


class Place(NamedTuple):
    """An argument and an option."""

    name: Annotated[str, typer.Argument(metavar="NAME")]
    size: Annotated[int, typer.Option("--size", "-s", help="How large.")] = 3


@takes_groups
def show(*, place: Place, loud: Annotated[bool, typer.Option("--loud")] = False) -> None:
    """Show a place."""
    typer.echo(f"{place.name} {place.size}{'!' * loud}")


def test_fields_are_parameters_in_place():
    """Tests that each field is a keyword parameter where its group stands, with its default."""
    parameters = inspect.signature(show).parameters
    assert list(parameters) == ["name", "size", "loud"]
    assert [parameter.default for parameter in parameters.values()] == [inspect.Parameter.empty, 3, False]
    assert show.__doc__ == "Show a place."


@pytest.mark.parametrize(
    ("words", "said"), [(["x"], "x 3"), (["x", "-s", "5", "--loud"], "x 5!"), (["--size", "7", "y"], "y 7")]
)
def test_the_command_gets_its_groups(words: list[str], said: str):
    """Tests that what is typed reaches the command as tuples."""
    commands = typer.Typer()
    commands.command()(show)
    assert CliRunner().invoke(commands, words).output == f"{said}\n"


def test_what_is_missing_is_asked_for():
    """Tests that a field without default is required, as a parameter would be."""
    commands = typer.Typer()
    commands.command()(show)
    assert CliRunner().invoke(commands, []).exit_code == 2


def test_every_command_says_what_it_does():
    """Tests that the help of every command begins with what it does."""
    command = typer.main.get_command(app)
    assert len(command.commands) >= 20
    for name, each in command.commands.items():
        assert each.help, name
