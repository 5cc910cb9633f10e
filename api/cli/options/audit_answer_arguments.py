"""What `pipeplan audit` accepts on how it answers."""

from typing import Annotated

from api.cli.options.declare import option

_ANSWER = "Answer"

AuditTime = Annotated[float, option("--time-limit -t SECONDS", "For the better plan.", panel=_ANSWER)]
OtherDegrees = Annotated[bool, option("--other-degrees", "Try other degrees of every kind, too.", panel=_ANSWER)]
MaxSlower = Annotated[
    float | None, option("--max-slower PERCENT", "Exit with 4 if proved slower.", panel=_ANSWER, min=0.0, max=1000)
]
Strict = Annotated[bool, option("--strict", "Refuse (exit 2) flags that are not known.", panel=_ANSWER)]
AuditFolder = Annotated[
    str | None, option("-o --output FOLDER", "Write question, plans, and flags as files.", panel=_ANSWER)
]
