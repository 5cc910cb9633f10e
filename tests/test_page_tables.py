"""Tables that pages are made of, from data: docs/tables, which the site writes as pages below docs/generated."""

import json
from pathlib import Path

import pytest

from planner.evidence.certificate import _FIELDS
from tests.test_house_rules import ROOT

TABLES = sorted((ROOT / "docs" / "tables").glob("*.json"))


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_tables_are_whole(path: Path):
    """Tests that a table has a title, a sentence about it, and a cell per column in every row."""
    table = json.loads(path.read_text(encoding="utf-8"))
    assert list(table) == ["title", "about", "columns", "rows"]
    assert table["title"]
    assert table["about"].endswith(".")
    assert {len(row) for row in table["rows"]} == {len(table["columns"])}


def test_the_table_of_certificates_has_every_kind():
    """Tests that each kind of certificate has a row."""
    rows = json.loads((ROOT / "docs" / "tables" / "certificates.json").read_text(encoding="utf-8"))["rows"]
    kinds = [name.strip().strip("`") for row in rows for name in row[0].split(",")]
    assert sorted(kinds) == sorted([*_FIELDS, "sizes"])
