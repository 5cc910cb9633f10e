"""Times as people and programs read them: tests of api/jobs/moments.py."""

import pytest

from api.jobs.moments import moment


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, None),
        (0.0, "1970-01-01T00:00:00.000+00:00"),
        (-1e18, "1970-01-01T00:00:00.000+00:00"),
        (1e18, "9999-12-31T23:59:59.000+00:00"),
        (float("inf"), "9999-12-31T23:59:59.000+00:00"),
        (1_767_225_600.25, "2026-01-01T00:00:00.250+00:00"),
    ],
)
def test_moments(seconds: float | None, text: str | None):
    """Tests that every number that an older store may hold is shown as a time."""
    assert moment(seconds) == text
