"""What the commands that run a service do: tests of api/service_commands.py."""

import re

import pytest

from api.failures import InputError
from api.service_commands import read_limits


def test_limits_come_from_the_command_line_and_the_environment():
    """Tests that both set limits, the command line last, and that an unknown one and nonsense are named."""
    environment = {"PIPEPLAN_LIMIT_BURST": "7", "PIPEPLAN_LIMIT_HEADER_TIMEOUT_S": "3", "HOME": "/"}
    limits = read_limits(["header_timeout_s=1.5", "streams=9", "max_actions=5", "inspection_s=2"], environment)
    expected = {"burst": 7, "header_timeout_s": 1.5, "streams": 9, "max_actions": 5, "inspection_s": 2.0}
    assert limits == expected
    for limit, words in (
        ("bursts=1", "there is no limit 'bursts'; choose from max_body_bytes"),
        ("burst=1.5", "'1.5' is not allowed; give a whole number above 0, e.g. burst=10"),
        ("header_timeout_s=nan", "'nan' is not allowed; give a number above 0"),
        ("burst", "'' is not allowed"),
    ):
        with pytest.raises(InputError, match=re.escape(f"--limit {limit}: {words}")):
            read_limits([limit], {})
    with pytest.raises(InputError, match="PIPEPLAN_LIMIT_BURST: '-1' is not allowed"):
        read_limits([], {"PIPEPLAN_LIMIT_BURST": "-1"})
