"""Quantities of Kubernetes: tests of profiles/discovery/quantities.py."""

from fractions import Fraction

import pytest

from profiles.discovery.quantities import parse_quantity, whole_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("128849018880m", Fraction(128849018880, 1000)),
        ("32779544Ki", 32779544 * 1024),
        ("1.5Ti", 3 * 2**39),
        ("2k", 2000),
        ("64M", 64 * 10**6),
        ("1E", 10**18),
        ("1E3", 1000),
        ("12e6", 12 * 10**6),
        ("5e-1", Fraction(1, 2)),
        (".5", Fraction(1, 2)),
        ("4.", 4),
        ("+8", 8),
        ("3n", Fraction(3, 10**9)),
        ("7u", Fraction(7, 10**6)),
        ("1Pi", 2**50),
        ("1Ei", 2**60),
        (8, 8),
    ],
)
def test_quantities_are_read(text, value):
    """Tests that every suffix of Kubernetes' quantities means what it does there."""
    assert parse_quantity(text) == value


@pytest.mark.parametrize("text", ["", "8GB", "1,5", "1 Gi", "-1", "Ki", "1e", "0x10", "inf", "1Mi3", True])
def test_what_is_no_quantity_is_refused(text):
    """Tests that nothing else passes for a quantity."""
    with pytest.raises(ValueError, match="is not a quantity"):
        parse_quantity(text)


def test_devices_are_not_halved():
    """Tests that counts are whole."""
    assert whole_quantity("2k") == 2000
    with pytest.raises(ValueError, match="is not a whole number"):
        whole_quantity("500m")
