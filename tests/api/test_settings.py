"""Everything that can be set about a service: tests of api/settings.py."""

import pytest

from api.settings import Settings, is_loopback


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.7", False),
        ("localhost.example", False),
        ("", False),
    ],
)
def test_only_loopback_addresses_do_without_keys(host: str, expected: bool):
    """Tests that names and whole ranges of this machine count, and nothing that others can reach."""
    assert is_loopback(host) is expected


def test_the_first_key_is_not_shown(tmp_path):
    """Tests that a secret does not come into logs with the settings."""
    settings = Settings(data=tmp_path, first_key="secret-of-mine")
    assert "secret-of-mine" not in repr(settings)
    assert settings.needs_keys
    assert settings.num_helpers >= 2
