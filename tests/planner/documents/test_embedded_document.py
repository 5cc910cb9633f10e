"""What stands enclosed in a plan, as plain trees: tests of planner/documents/embedded_document.py."""

import base64
import json
import zlib
from types import SimpleNamespace

import pytest

from planner.documents.embedded_document import enclosed_tree

TREE = {"profile": {"name": "p"}, "cluster": {"name": "c"}}


def plan(enclosed: object):
    """A plan whose certificate holds it."""
    return SimpleNamespace(evidence=SimpleNamespace(certificate={"enclosed": enclosed}))


def deflated(data: bytes) -> dict[str, str]:
    """As a large question stands in a plan."""
    return {"deflated": base64.b64encode(zlib.compress(data)).decode()}


def test_both_forms_are_read():
    """Tests that a question is found as it is and deflated, and that plans without one say so."""
    assert enclosed_tree(plan(TREE)) == TREE
    assert enclosed_tree(plan(deflated(json.dumps(TREE).encode()))) == TREE
    assert enclosed_tree(plan(None)) is None
    assert enclosed_tree(SimpleNamespace(evidence=None)) is None


@pytest.mark.parametrize(
    "spoilt",
    [
        {"profile": {}},
        [],
        {"deflated": 7},
        {"deflated": "no base64!"},
        {"deflated": base64.b64encode(b"no stream").decode()},
        {"deflated": base64.b64encode(zlib.compress(b"{}" * 99)[:9]).decode()},
        deflated(b"{"),
        deflated(b"[" * 100_000),
        deflated(b"{}"),
    ],
)
def test_what_cannot_be_read_is_refused(spoilt: object):
    """Tests that every damage ends in one ValueError that names the place and what to do."""
    with pytest.raises(ValueError, match=r"^p.json: evidence.certificate.enclosed.*(make the plan again)"):
        enclosed_tree(plan(spoilt), source="p.json")
