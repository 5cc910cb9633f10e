"""Bytes that were never meant to be a document: each ends in one short ValueError that names its source."""

import gzip
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.documents.strict_json import UnreadableError
from profiles.load import dump_workload, load_workload, parse_workload

VALID = dump_workload(load_workload("demo:alexnet-two-gpus")).encode()

NEUTRAL = b"""{"name": "n", "source": "s", "edges": [[0, 1]], "microbatches": 2, "meta": {"static_multiplier": 1.5},
"layers": [{"name": "a", "forward_ms": 1.5, "backward_ms": 2, "param_bytes": 3, "activation_bytes": 4},
{"name": "b", "forward_ms": 1, "backward_ms": 2, "input_grad_ms": 2, "weight_grad_ms": 0, "param_bytes": 0,
"activation_bytes": 4}], "cluster": {"devices": [{"name": "x", "memory_bytes": 9, "speed": 0.5}], "links": []}}"""

GRAPH = b"""
node1 -- Input0 -- forward_compute_time=1.5, backward_compute_time=0.0, activation_size=8.0, parameter_size=0.0
node2 -- LSTM(2) -- forward_compute_time=1.5, backward_compute_time=2.5, activation_size=[8.0; 2.0], parameter_size=4.0
node3 -- Add -- forward_compute_time=0.1, backward_compute_time=0.2, activation_size=8.0, parameter_size=0.0
\tnode1 -- node2
\tnode2 -- node3
"""

CORPUS = {
    "empty": (b"", "is empty; give a workload"),
    "blank": (b" \r\n\t ", "is empty; give a workload"),
    "gzip": (gzip.compress(VALID), "is compressed with gzip; unpack it first"),
    "byte order mark": (b"\xef\xbb\xbf" + VALID, "begins with a byte order mark; save the text as UTF-8 without one"),
    "utf-16 little": (b"\xff\xfe" + VALID.decode().encode("utf-16-le"), "is UTF-16; save the text as UTF-8"),
    "utf-16 big": (b"\xfe\xff" + VALID.decode().encode("utf-16-be"), "is UTF-16; save the text as UTF-8"),
    "utf-16 unmarked": (VALID.decode().encode("utf-16-le"), "holds a NUL byte at offset 1; save the text as UTF-8"),
    "latin-1": (b'{"name": "caf\xe9"}', "byte 0xe9 at offset 13 is not UTF-8; save the text as UTF-8"),
    "overlong": (b'"\xc0\x80"', "byte 0xc0 at offset 1 is not UTF-8"),
    "surrogate bytes": (b'"\xed\xa0\x80"', "byte 0xed at offset 1 is not UTF-8"),
    "NUL behind": (VALID + b"\0", "holds a NUL byte"),
    "NULs": (b"\0" * 1000, "holds a NUL byte at offset 0"),
    "raw control character": (b'{"a": "\x01"}', "not JSON (Invalid control character at)"),
    "trailing comma": (b'{"a": 1,}', "line 1, column"),
    "two documents": (VALID + VALID, "not JSON (Extra data)"),
    "cut off": (VALID[:-5], "not JSON"),
    "comment": (b"// mine\n" + VALID, "line 1, column 1: not JSON"),
    "half an escape": (b'{"a": "\\u12', "not JSON"),
    "bare NaN": (b"NaN", "the document = NaN is not a number in JSON"),
    "bare 1e400": (b"1e400", "the document = 1e400 is too large"),
    "bare huge integer": (b"9" * 100_000, "has 100000 digits"),
    "key twice": (b'{"\\u0061": 1, "a": 2}', 'the document has the key "a" twice'),
    "empty object": (b"{}", "format is missing"),
    "deep lists": (b"[" * 100_000 + b"]" * 100_000, "is nested too deeply"),
    "deep objects": (b'{"a":' * 100_000, "is nested too deeply"),
    "format as list": (b'{"format": ["pipeline-workload/1"]}', "format = [1 entries] is not supported here"),
    "layers as text": (b'{"layers": "forward_ms"}', "format is missing"),
    "quoted braces": (b'"{' * 50_000, "not JSON"),
    "spaces of graph.txt": (b"node1 -- " + b" " * 50_000 + b" -- forward_compute_time=", "line 1: "),
    "arrows of graph.txt": (b"a -- forward_compute_time=" * 50_000, "line 1: "),
}


@pytest.mark.parametrize(("data", "fragment"), list(CORPUS.values()), ids=list(CORPUS))
def test_hostile_bytes(data: bytes, fragment: str):
    """Tests that each is refused by name, briefly, in printable ASCII, and in well under a second."""
    started = time.process_time()
    with pytest.raises(ValueError, match=r"^upload: ") as caught:
        parse_workload(data, source="upload")
    message = str(caught.value)
    assert time.process_time() - started < 1
    assert type(caught.value) in {ValueError, UnreadableError}
    assert fragment in message
    assert len(message) < 600
    assert message.isascii()


def accept_or_refuse(data: bytes) -> None:
    """Parse; anything but a workload or a short ValueError that begins with the source fails the test."""
    try:
        parse_workload(data, source="upload")
        outcome = ""
    except ValueError as error:
        outcome = f"{type(error).__name__}: {error}"
    assert not outcome or outcome.startswith(("ValueError: upload: ", "UnreadableError: upload: "))
    assert len(outcome) < 5_000


@given(st.binary(max_size=200))
def test_random_bytes(data: bytes):
    """Tests that random bytes are refused, never anything else."""
    accept_or_refuse(data)


@pytest.mark.parametrize("valid", [VALID, NEUTRAL, GRAPH], ids=["ours", "neutral", "graph.txt"])
@given(st.data())
def test_damaged_document(valid: bytes, data: st.DataObject):
    """Tests that a valid document with a piece replaced by other bytes is read or refused."""
    position = data.draw(st.integers(0, len(valid) - 1))
    end = position + data.draw(st.integers(0, 30))
    patch = data.draw(
        st.binary(max_size=8) | st.sampled_from([b"NaN", b"-1", b"1e99", b"null", b"[]", b"9" * 30, b"\t"])
    )
    accept_or_refuse(valid[:position] + patch + valid[end:])


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("valid", [VALID, NEUTRAL], ids=["ours", "neutral"])
@given(st.data())
def test_document_with_a_foreign_value(valid: bytes, data: st.DataObject):
    """Tests that a valid document in which some value is replaced by another one is read or refused."""
    tree = json.loads(valid)
    node, spots = tree, []
    while isinstance(node, dict | list) and node:
        key = data.draw(st.sampled_from(sorted(node)) if isinstance(node, dict) else st.integers(0, len(node) - 1))
        spots.append((node, key))
        node = node[key]
    container, key = data.draw(st.sampled_from(spots))
    container[key] = data.draw(JSON_VALUES)
    accept_or_refuse(json.dumps(tree).encode())


@given(JSON_VALUES)
def test_any_json(tree: object):
    """Tests that JSON of any other kind is refused, as it stands and under each known format."""
    accept_or_refuse(json.dumps(tree).encode())
    for form in ("workload", "profile", "cluster"):
        accept_or_refuse(
            json.dumps({"format": f"pipeline-{form}/1", "name": "x", "layers": [tree], "links": tree}).encode()
        )


@pytest.mark.parametrize("valid", [VALID, NEUTRAL, GRAPH], ids=["ours", "neutral", "graph.txt"])
def test_corpus_spares_the_valid_document(valid: bytes):
    """Tests that the documents which are damaged here are themselves accepted."""
    assert parse_workload(valid, source="upload").profile.layers
