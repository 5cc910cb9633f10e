"""Values of a document with their paths: tests of planner/documents/document_reader.py."""

import pytest

from planner.documents.document_reader import DocumentReader

DOCUMENT = {"stages": [{"layers": ["x"], "number": 3, "is_last": True, "word": "0F1"}], "nothing": None}


def reader(value: object = DOCUMENT) -> DocumentReader:
    """Of the document above."""
    return DocumentReader(value, dict, source="plan.json", path="")


def test_paths_grow():
    """Tests that a value deep inside is handed out, knows its path, and that what is null or missing is optional."""
    (stage,) = reader().get("stages", list).items(dict)
    assert stage.get("number", int).value == 3
    assert stage.get("layers", list).items(str)[0].path == "stages[0].layers[0]"
    assert str(stage.get("word", str).action()) == "0F1"
    assert reader().optional("nothing", dict) is None
    assert reader().optional("missing", dict) is None


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: reader([]), r"plan.json: the document = \[\] is not an object; see the plan format"),
        (lambda: reader().get("cluster", dict), "plan.json: cluster is missing; see the plan format"),
        (lambda: reader().get("stages", list).items(str), r"stages\[0\] = .* is not a string"),
        (lambda: reader().get("stages", list).items(dict)[0].get("is_last", int), "= True is not an integer"),
        (lambda: reader({"word": "0Q1"}).get("word", str).action(), "plan.json: word: "),
    ],
)
def test_what_is_wrong_is_named(ask, message: str):
    """Tests that source, path and kind are named, that true is no number, and that a bad action is refused."""
    with pytest.raises(ValueError, match=message):
        ask()
