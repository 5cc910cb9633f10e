"""Help as plain text, in sections: what draws boxes takes longer to load than everything else.

Of a command with many options --help shows the usual ones, --help-all every one.
"""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, TypeVar

import typer
from typer.core import TyperCommand

from api.cli.options.option_groups import takes_groups

_Function = TypeVar("_Function", bound=Callable[..., Any])

_LONGEST = 1000
"""Letters of the longest sentence in a list of commands."""

_WHOLE = "pipeplan.whole_help"
"""Where a context notes that every option is asked for."""


class SectionedHelp(TyperCommand):
    """A command whose help has a section for each panel of options, and a whole sentence in the list of commands."""

    def get_short_help_str(self, limit: int = 0) -> str:
        """The first sentence, which is never cut off."""
        del limit
        return super().get_short_help_str(_LONGEST)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Of a value that is refused, the message says what it was, too."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            given = [f"{told['input']!r:.70}" for told in getattr(error.__cause__, "errors", list)()]  # pydantic's
            if given and given[0] not in error.message:
                error.message += f", not {given[0]}"
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Sections in the order of their first options."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                title = getattr(parameter, "rich_help_panel", None) or f"{parameter.param_type_name.capitalize()}s"
                sections.setdefault(title, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Examples one below the other."""
        del ctx
        formatter.write_paragraph()
        with formatter.indentation():
            for paragraph in (self.epilog or "").split("\n\n"):
                formatter.write_text(paragraph)


class Commands(typer.Typer):
    """Commands of one subject."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[_Function], _Function]:
        """As of typer, with `SectionedHelp`, and with options in groups."""
        register = super().command(name, **{"cls": SectionedHelp, **options})
        return lambda function: register(takes_groups(function))


class FoldedHelp(SectionedHelp):
    """A command whose help leaves out all options but `usual`, until --help-all asks for them."""

    usual: ClassVar[frozenset[str]]
    """Names of parameters, as the function has them."""

    def __init__(self, name: str | None, **options: Any) -> None:
        super().__init__(name, **options)
        holder = typer.Typer(add_completion=False)
        holder.command()(_takes_help_all)
        help_all = next(each for each in typer.main.get_command(holder).params if each.name == "help_all")
        help_all.expose_value = False  # the command's function does not take it
        self.params.append(help_all)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Options are hidden only meanwhile: completion in a shell knows all of them."""
        folded = [
            each for each in self.params if each.name not in {*self.usual, "help_all"} and not ctx.meta.get(_WHOLE)
        ]
        for each in folded:
            each.hidden = True  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)
        for each in folded:
            each.hidden = False  # type: ignore[attr-defined]


def folded(*usual: str) -> type[FoldedHelp]:
    """The class of a command whose --help shows these parameters."""
    return type("FoldedHelp", (FoldedHelp,), {"usual": frozenset(usual)})


def _show_all(ctx: typer.Context, is_asked: bool) -> None:
    if is_asked:
        ctx.meta[_WHOLE] = True
        print(ctx.get_help(), end="")
        raise typer.Exit


def _takes_help_all(
    help_all: Annotated[
        bool, typer.Option("--help-all", help="Show every option.", callback=_show_all, is_eager=True)
    ] = False,
) -> None:
    """Its parameter is the option that every folded command has."""
    del help_all
