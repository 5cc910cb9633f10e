"""Help of a command with many options: --help shows the usual ones, --help-all every one."""

from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand

_WHOLE = "pipeplan.whole_help"
"""Where a context notes that every option is asked for."""


class FoldedHelp(TyperCommand):
    """A command whose help leaves out all options but `usual`, until --help-all asks for them."""

    usual: ClassVar[frozenset[str]]
    """Names of parameters, as the function has them."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Options are hidden only meanwhile: completion in a shell knows all of them."""
        folded = [each for each in self.params if each.name not in self.usual and not ctx.meta.get(_WHOLE)]
        for each in folded:
            each.hidden = True  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)
        for each in folded:
            each.hidden = False  # type: ignore[attr-defined]


def _show_all(ctx: typer.Context, is_asked: bool) -> None:
    if is_asked:
        ctx.meta[_WHOLE] = True
        print(ctx.get_help(), end="")
        raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option("--help-all", help="Show every option, not the usual ones alone.", callback=_show_all, is_eager=True),
]
