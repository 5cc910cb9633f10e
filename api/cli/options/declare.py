"""Options and arguments, declared as the help shows them: `option("--output -o FILE", "Where it goes.")`."""

from functools import partial
from typing import Any

import typer


def option(usage: str, text: str, *, panel: str | None = None, envvar: str | None = None, **rest: Any) -> Any:
    """An option whose help does not name the variable that may stand in for it."""
    parts = usage.split()
    names = [part for part in parts if part.startswith("-")]
    metavar = " ".join(parts[len(names) :]) or None
    if isinstance(rest.get("min"), float):  # an infinity would be an internal error later
        rest.setdefault("max", 10**6)
    rest |= {"metavar": metavar, "help": text, "rich_help_panel": panel, "envvar": envvar, "show_envvar": False}
    return typer.Option(names[0], *names[1:], **rest)


def argument(usage: str, text: str) -> Any:
    """What stands behind a command without a name."""
    return typer.Argument(metavar=usage, help=text, show_default=False)


def count(usage: str, text: str, *, panel: str) -> Any:
    """An option that takes a positive whole number."""
    return option(f"{usage} N", text, panel=panel, show_default=False, min=1, max=10**7)


decided = partial(option, panel="What may be decided")
"""An option under this heading of the help, as those that follow."""
timed = partial(option, panel="When to stop")
written = partial(option, panel="Output")
placed = partial(option, panel="Where")
healed = partial(option, panel="When devices are lost")
on_machine = partial(option, panel="On what")
network = partial(option, "--network-gb-per-s --network-gbps GB/S", min=0.001)
"""Each command says what the speed is of."""
