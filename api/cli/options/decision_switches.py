"""The switches of `planner.decisions`, as a group of options."""

from typing import Annotated, Any, ClassVar, Literal

import typer

from api.cli.options.arguments import WHAT
from planner.decisions.choices import switches
from planner.decisions.decision import Switch


def _annotation(option: str, switch: Switch) -> Any:
    kind: Any = bool if switch.metavar is None else Literal[switch.values] | None if switch.values else int | None
    flag = f"--{option.replace('_', '-')}"
    return Annotated[
        kind, typer.Option(flag, metavar=switch.metavar, min=switch.least, help=switch.help, rich_help_panel=WHAT)
    ]


class DecisionSwitches(dict[str, Any]):
    """Values by the option that each sets: of every decision that is there and has a switch."""

    _fields = tuple(switches())
    _field_defaults: ClassVar = {option: None if each.metavar else False for option, each in switches().items()}
    __annotations__ = {option: _annotation(option, each) for option, each in switches().items()}
