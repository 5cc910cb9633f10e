"""What a reading of every module shows: it serves users, and docstrings and messages say something.

One file, so that one process parses the product once.
"""

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from planner.launch.manifest_fields import require_known_fields
from planner.verify import GROUPS
from profiles.load import load_workload
from tests.messages import MAX_WORDS, VERBS, Message, messages, sentences_of_verdicts, wrappers
from tests.test_house_rules import (
    FILLERS,
    PACKAGES,
    ROOT,
    assert_none,
    nodes_of,
    python_files,
    trees_are_no_garbage,  # noqa: F401
)

ENTRY_POINTS = (
    "api.__main__",
    "planner.execute.__main__",
    "planner.execute.session",
    "planner.execute.transformers_trainer.__main__",
    "planner.export.torchtitan_recipe",
    "planner.dealt_stages",
    "planner.packing.loaders",
    "planner.packing.pack_times",
    "planner.execute.data.packed_rows",
    "planner.decisions.looped_order",
    "planner.decisions.fully_shard.option",
    "planner.decisions.max_active_stages.move",
    "planner.decisions.max_active_stages.option",
    "planner.decisions.offload.move",
    "planner.decisions.offload.option",
    "planner.decisions.price.driver",
    "planner.decisions.price.option",
    "planner.decisions.recompute",
    "planner.decisions.recompute_in_turn",
    "planner.decisions.recompute_layers.move",
    "planner.decisions.recompute_layers.option",
    "planner.decisions.recompute_microbatches.move",
    "planner.decisions.recompute_microbatches.option",
    "planner.decisions.sharded_optimizer",
    "planner.decisions.split_placement.move",
    "planner.decisions.split_placement.option",
    "planner.decisions.unequal_shares.move",
    "planner.decisions.unequal_shares.option",
    "planner.decisions.width",
)
"""`pipeplan` (the service and the launchers come with it), `python -m planner.execute`, the loop of one's own, and a
script with a Trainer of transformers, torchtitan's program, data loaders that deal and pack, and decisions found by
folder."""


@cache
def modules() -> dict[str, str]:
    """Every module of the packages and its file."""
    return {
        path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in python_files(*PACKAGES)
    }


def named(name: str) -> Iterator[str]:
    """The module of a dotted name and the packages that it is in; nothing for names of others."""
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        if (prefix := ".".join(parts[:length])) in modules():
            yield prefix


@cache
def uses(module: str) -> set[str]:
    """The modules that one imports, anywhere in it, and those that it starts by name (`python -m`)."""
    found: set[str] = set()
    for node in nodes_of(modules()[module]):
        if isinstance(node, ast.Import):
            found.update(*(named(alias.name) for alias in node.names))
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update(*(named(f"{node.module}.{alias.name}") for alias in node.names))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in modules():
            found.update(named(node.value))
    return found


def reach(*starts: str) -> set[str]:
    """Everything that the modules use, and what that uses."""
    seen: set[str] = set()
    ahead = {prefix for start in starts for prefix in named(start)}
    while ahead:
        module = ahead.pop()
        seen.add(module)
        ahead |= uses(module) - seen
    return seen


def test_every_module_is_reached():
    """Tests that what users start reaches every module."""
    left = modules().keys() - reach(*ENTRY_POINTS)
    assert_none(sorted(left), "Serves nobody: move it to benchmarks/, or use it:")


def test_a_module_for_nobody_is_found(monkeypatch):
    """Tests that a module that only another unused one imports is not reached."""
    monkeypatch.setitem(modules(), "planner.unused", "planner/judge/__init__.py")
    assert "planner.unused" not in reach(*ENTRY_POINTS)
    assert Path(ROOT / modules()["planner.simulation.simulate"]).exists()
    assert "planner.layout.costs" in reach("planner.simulation.simulate")


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


def make_gpt(settings: str) -> object:
    """A model by its settings; only this imports torch."""
    from profiles.measure.families.catalog import make_family

    return make_family("gpt", settings)


@cache
def found_messages() -> tuple[Message, ...]:
    """Those of the product, looked for once."""
    return tuple(messages())


def test_messages_say_what_to_do():
    """Tests that every refusal is a short cause and a remedy; `python -m tests.messages` lists those that are not."""
    found = found_messages()
    assert len(found) > 900
    assert_none(
        [f"{each.place} {fault}: {each.text}" for each in found for fault in each.faults()], "Say cause and remedy:"
    )


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("-m {count} is out of range; give 1 or more", []),
        ("{path}: is cut off; {REMEDY}", []),
        ("{path}: {error}", []),
        ("{path}: cannot be read ({error})", ["no remedy"]),
        ("the plan has no stages", ["no remedy"]),
        ("the plan that is asked for has no stages; plan again", ["say it plainly: asked for"]),
        ("a " * 26 + "b; plan again", ["27 words in a sentence"]),
    ],
)
def test_faults_of_messages_are_found(text: str, faults: list[str]):
    """Tests that a missing remedy, a long sentence and a roundabout word are found, and nothing else is."""
    assert list(Message(place="here", kind="ValueError", text=text).faults()) == faults


def test_what_a_function_puts_around_a_text_is_read():
    """Tests that messages made by a function with the remedy are found whole, so that one without it would be."""
    assert wrappers()["refused_certificate"] == "certificate: {}; make the bound again"
    texts = [each.text for each in found_messages() if each.kind == "refused_certificate"]
    assert len(texts) > 40
    assert all(text.startswith("certificate: ") and text.endswith("; make the bound again") for text in texts)


def test_verdicts_say_a_cause():
    """Tests that what a rule of the verifier says is one sentence of at most 25 words."""
    found = list(sentences_of_verdicts())
    assert len(found) > 80
    faults = [
        f"{each.place}: {each.text}"
        for each in found
        if len(each.text.split()) > MAX_WORDS or re.search(r"[.;] \w", each.text.split("{", 1)[0])
    ]
    assert_none(faults, "Say the cause in one short sentence:")


def test_every_rule_has_a_remedy():
    """Tests that each rule of the verifier has a sentence of at most 25 words that says what to do."""
    verbs = set(VERBS.split())
    faults = [
        f"{rule.__name__}: {text}"
        for _, rules in GROUPS
        for rule, text in rules.items()
        if text.split()[0].lower() not in verbs or len(text.split()) > MAX_WORDS or not text.endswith(".")
    ]
    assert_none(faults, "Begin with a verb, end with a full stop:")


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (
            lambda: load_workload("demo:vgg16-ethernt"),
            "demo:vgg16-ethernt: no such demo; did you mean demo:vgg16-ethernet?",
        ),
        (lambda: make_gpt("layer=4"), "gpt: 'layer=4' is not a setting; did you mean 'layers'?"),
        (
            lambda: require_known_fields({"restartPolcy": "Never"}, "PodSpec", where="p"),
            "p: a pod has no field 'restartPolcy' (its value is 'Never'); did you mean restartPolicy?",
        ),
    ],
)
def test_a_likely_word_is_the_whole_remedy(ask: Callable[[], object], said: str):
    """Tests that a misspelt name is answered with the one that was meant, and with nothing else."""
    with pytest.raises(ValueError, match=rf"^{re.escape(said)}$"):
        ask()


def test_the_script_finds_messages_of_all_packages():
    """Tests that messages are found in each package of the product."""
    assert {Path(each.place).parts[0] for each in found_messages()} == set(PACKAGES)
