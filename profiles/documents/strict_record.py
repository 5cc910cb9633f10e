"""What documents may hold: the fields of their classes, and no others."""


class StrictRecord:
    """A dataclass that is read from documents: a field that it does not have is refused."""

    __slots__ = ()
    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012
