"""Docstrings say what their name and type do not: a shape, a unit, an error, a meaning."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.test_house_rules import FILLERS, PACKAGES, assert_none, nodes_of, python_files

VAGUE = """
ask asked call called come did do does done find found get give given goes got held hold kept known let made make may
mean must need needed other others put said say see seen so stand stands take taken tell than them themselves there
these they thing things those told too use used want wanted whether while whom whose
"""
"""With the fillers: they say nothing of a thing that has a name."""

BARE = re.compile(r"(?:What|Those|Whose|How|Who|That|They|Which|Where|It|All|Both)\b")
MAX_BARE_WORDS = 5
"""A docstring of so few words that begins with such a word points at its thing and does not say what it is."""

_EXACT = re.compile(r"[`0-9=<>\[]|\b[FIWB]\b")
"""Signs of shapes, values and names."""


def stems(text: str) -> set[str]:
    """Its words without endings and without those that say nothing."""
    words = (word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", text))
    empty = {*FILLERS.split(), *VAGUE.split()}
    return {re.sub(r"(?:ies|es|s|ed|ing|er|e|y)$", "", {"num": "number"}.get(word, word)) for word in words} - {
        re.sub(r"(?:ies|es|s|ed|ing|er|e|y)$", "", word) for word in empty
    }


def is_vague(docstring: str, *, context: str) -> bool:
    """Whether nothing is said that names and types around it do not say."""
    if _EXACT.search(docstring):
        return False
    is_bare = BARE.match(docstring) is not None and len(docstring.split()) <= MAX_BARE_WORDS
    return is_bare or stems(docstring) <= stems(context)


def docstrings_of(path: str) -> Iterator[tuple[int, str, str]]:
    """The line, the text and the names and types around every docstring of a class, function, field or constant."""
    for owner in nodes_of(path):
        kind = owner.name if isinstance(owner, ast.ClassDef) else ""
        body = owner.body if isinstance(owner, ast.Module | ast.ClassDef | ast.FunctionDef) else []
        for node, after in zip(body, [*body[1:], ast.Pass()], strict=False):
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                yield node.lineno, text, f"{kind} {head_of(node)}"
            elif isinstance(node, ast.Assign | ast.AnnAssign) and (text := text_of(after)):
                yield after.lineno, text, f"{kind} {ast.unparse(node).partition('=')[0]}"


def head_of(node: ast.ClassDef | ast.FunctionDef) -> str:
    """The name, and a function's parameters and types."""
    if isinstance(node, ast.ClassDef):
        return node.name
    return f"{node.name} {ast.unparse(node.args)} {'' if node.returns is None else ast.unparse(node.returns)}"


def text_of(node: ast.stmt) -> str:
    """What a statement says that is a text only, or nothing."""
    value = node.value if isinstance(node, ast.Expr) else None
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_say_something(package: str):
    """Tests that no docstring says only what names and types around it say."""
    offenders = [
        f"{path}:{line} {text}"
        for path in python_files(package)
        for line, text, context in docstrings_of(path)
        if is_vague(text, context=context)
    ]
    assert_none(offenders, "Say shape, unit, error or meaning, or leave it out:")


ROUNDABOUT = re.compile(
    r"(?i)\b(?:foreseen|whoever|somebody else|spoken to|at hand|go(?:es)? on|went on|told\s+apart|lets? go of)\b"
)
"""Said in a roundabout way: continue, distinguished, available, released say it in a word."""


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_are_plain(package: str):
    """Tests that no docstring says in a roundabout way what one verb says."""
    offenders = [
        f"{path}:{node.lineno} {found.group()}"
        for path in python_files(package)
        for node in nodes_of(path)
        if isinstance(node, ast.Expr) and (text := text_of(node))
        for found in ROUNDABOUT.finditer(re.sub(r"`[^`]*`", "", text))
    ]
    assert_none(offenders, "Say it in a word:")


@pytest.mark.parametrize(
    ("docstring", "context", "expected"),
    [
        ("What was found.", "Search result Result", True),
        ("The plan.", "plan Plan", True),
        ("Most stages of a device.", "max_stages_per_device int most", True),
        ("Who a request comes from.", "Caller", True),
        ("[A]", "stage Integers", False),
        ("Bytes; None: the source states none.", "HostFacts memory_bytes int | None", False),
        ("Samples of each microbatch.", "Batch size int", False),
    ],
)
def test_vague_docstrings_are_found(docstring: str, context: str, expected: bool):
    """Tests that repeated names and bare pointers are found, and shapes and meanings are left."""
    assert is_vague(docstring, context=context) == expected
