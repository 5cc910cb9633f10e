"""What the service makes of a plan: the one list of it, with the media types."""

from typing import Literal

Export = Literal["torch", "trace"]
"""Forms for other programs, which a finished plan has under `export/` as well; `inspection` makes them."""

Form = Literal["simulation", "explanation", "report", "view", Export, "picture"]
"""All that `POST /v1/playbacks` makes."""


def media_of(form: str) -> str:
    """The media type of a form, or of something else that is made of plans: JSON unless it is a page or a table."""
    return {"view": "text/html", "torch": "text/csv"}.get(form, "application/json")
