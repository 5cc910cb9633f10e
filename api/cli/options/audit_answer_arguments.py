"""What `pipeplan audit` accepts on how it answers."""

from typing import Annotated

import typer

_ANSWER = "Answer"

AuditTime = Annotated[
    float, typer.Option("--time-limit", "-t", metavar="SECONDS", help="For the better plan.", rich_help_panel=_ANSWER)
]
OtherDegrees = Annotated[
    bool,
    typer.Option(
        "--other-degrees",
        help="Try other degrees of every kind, too.",
        rich_help_panel=_ANSWER,
    ),
]
MaxSlower = Annotated[
    float | None,
    typer.Option(
        "--max-slower",
        metavar="PERCENT",
        help="Exit with 4 if proved slower by more.",
        rich_help_panel=_ANSWER,
        show_default=False,
        min=0,
    ),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Refuse (exit 2) flags that are not known.", rich_help_panel=_ANSWER)
]
AuditFolder = Annotated[
    str | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FOLDER",
        help="Write workload.json, audited.json and plan.json.",
        rich_help_panel=_ANSWER,
        show_default=False,
    ),
]
