"""What of a tenant's plans is listed: the query parameters of `GET /v1/plans`, checked."""

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from api.jobs.job import LABEL, State
from profiles.documents.schema_rules import Stated
from profiles.field_rules import MAX_NAME_LENGTH


def _moment(text: str) -> float:
    """Seconds since 1970; without a zone it is UTC."""
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except OverflowError as error:
        raise ValueError(text) from error


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError(text)
    return text


_DAY = {"type": "string", "pattern": "^20[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])$"}
_Moment = Annotated[float | None, BeforeValidator(_moment), Stated(_DAY)]
_Name = Annotated[str | None, AfterValidator(_printable), Stated(pattern="^[ -~]+$")]
"""Letters that are not ASCII are read, too, but not promised."""


AFTER = "what stands in `next`, or the id of a plan that is there: the last of the page before"


class Listing(BaseModel):
    """Which plans are listed, and how many; what is wrong is refused with the parameter's description."""

    limit: int = Field(20, ge=1, le=100, description="a number from 1 to 100")
    project: str | None = Field(None, pattern=f"^{LABEL.pattern}$", description="a project's name")
    tag: str | None = Field(None, pattern=f"^{LABEL.pattern}$", description="a tag")
    name: _Name = Field(None, min_length=1, max_length=100, description="part of a name, at most 100 letters")
    model: _Name = Field(
        None, min_length=1, max_length=MAX_NAME_LENGTH, description="a model's whole name, at most 300 letters"
    )
    sha256: str | None = Field(
        None,
        pattern="^[0-9a-f]{6,64}$",
        description="at least 6 hexadecimal digits that a plan's or a profile's SHA-256 begins with",
    )
    state: State | None = Field(None, description="one of queued, running, succeeded, failed, cancelled")
    since: _Moment = Field(None, description="a date or moment, e.g. 2026-01-31 or 2026-01-31T12:00:00Z")
    until: _Moment = Field(None, description="a date or moment, e.g. 2026-01-31 or 2026-01-31T12:00:00Z")
    after: str | None = Field(
        None,
        pattern=r"^[0-9a-f]{32}(@[0-9]{1,10}(\.[0-9]{1,9})?)?$",
        description=AFTER,
    )
