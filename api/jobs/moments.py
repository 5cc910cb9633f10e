"""Times as people and programs read them."""

from datetime import UTC, datetime

_LAST_S = 253_402_300_799.0
"""The last second of the year 9999; what is later is shown as this."""


def moment(seconds: float | None, *, timespec: str = "milliseconds") -> str | None:
    """Seconds since 1970 as ISO 8601 in UTC, to the millisecond unless `timespec` says otherwise."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(min(_LAST_S, max(0.0, seconds)), UTC).isoformat(timespec=timespec)
