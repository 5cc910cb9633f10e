"""Workloads between two calls of an agent: tests of api/agents/kept_workloads.py."""

import json

import pytest

from api.agents import kept_workloads
from api.agents.kept_workloads import KeptWorkloads
from api.agents.tool_problem import ToolProblem


def test_a_workload_is_found_by_its_name():
    """Tests that the same text has the same name, and comes back as the document that it is."""
    kept = KeptWorkloads()
    name = kept.keep('{"a": 1}')
    assert kept.keep('{"a": 1}') == name
    assert kept.keep('{"a": 2}') != name
    assert kept.find(name) == {"a": 1}


def test_what_was_used_last_goes_last(monkeypatch: pytest.MonkeyPatch):
    """Tests that the oldest goes where there is too much, that a look renews, and that the last one always stays."""
    monkeypatch.setattr(kept_workloads, "_MOST_BYTES", 10)
    kept = KeptWorkloads()
    first, second = kept.keep('"aa"'), kept.keep('"bb"')
    assert kept.find(first) == "aa"
    third = kept.keep('"cc"')
    assert [kept.find(name) for name in (first, third)] == ["aa", "cc"]
    with pytest.raises(ToolProblem, match="call audit again") as refused:
        kept.find(second)
    assert (refused.value.code, refused.value.status) == ("not_found", 404)
    large = kept.keep(json.dumps("d" * 100))
    assert kept.find(large) == "d" * 100
