"""Every message that the product refuses something with: `python -m tests.messages` prints those that break a rule.

A message is one sentence of cause and one of remedy: `-m 0 is out of range; give 1 or more`. Found are the texts of
raised errors, and of what makes one (`MAKERS`), with constants of their module, and what a function puts around a text
(`wrappers`), filled in. Each other value that a message shows counts as one word. Left out are errors that no user
sees, and parts of other messages (`INNER`).
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from tests.test_house_rules import PACKAGES, ROOT, nodes_of, parse, python_files

MAX_WORDS = 25
"""In the sentence of the cause, and in that of the remedy."""

MAKERS = {"refusal", "ServiceError", "Complaint", "unauthenticated", "busy", "error", "_refusal", "_unreadable"}
"""Functions and classes that make an error from a text among their arguments."""

INNER = {
    "AssertionError": "ours, never shown",
    "KeyError": "caught where it is raised",
    "NotImplementedError": "caught where it is raised",
    "DoesNotApplyError": "the note in the row of a baseline that does not apply",
    "_DifferenceError": "within the message that the model cannot be cut",
    "_MismatchError": "within the message that a stage cannot be tried",
    "TooManyCasesError": "the bound is left out",
    "NoRoomError": "the note in the row of a baseline",
    "OutOfTimeError": "the note in the row of a baseline",
    "LeaseLostError": "another worker has the job",
    "DamagedError": "within the answer `500 damaged`, which names the remedy",
    "QuotaError": "a code; the answer has a text of its own",
    "ChildDiedError": "within the reason why a job failed",
    "PlanError": "our own broken promise: api/planning_run.py adds where the inputs are and asks to report it",
    "OtherRulesError": "the bound is named as not rechecked",
    "OutOfRangeError": "a candidate that does not count",
    "json.JSONDecodeError": "within the message that a file is broken",
    "BrokenOffError": "says which plan was written",
    "TypeError": "of Python's own",
    "StoreFullError": "the answer has a text of its own",
}
"""Errors without a remedy of their own, and why."""

PARTS = (
    "{text} lasts from",  # profiles/importers/own_trace.py: which event of a broken trace
    "its end is missing",
    "it is cut off or too large",
    "no whole numbers",
    "the plan uses {min(others)} as well",
    "the plan is none of those that the complete model describes",
    "was not done after",
    "options: {found[0]}",  # planner/option_conflicts.py: its rules bring the remedy
    "layer {layer.name} has no cost on",  # planner/judge/reading.py: a verdict
    "{blocks} blocks do not divide by",  # profiles/configurations: the caller says which flag helps
    "{rest} blocks do not divide by",
    "{', '.join(map(str, sizes))} blocks per rank",
    "{blocks} blocks{more} do not divide by",
    "master:",  # solver_models: another part of the search takes over
    "a stage has {len(chosen)} sets",
    "no slot holds a stage",
    "its values were made before,",
    "the ranks wait for each other:",
    "Expected more than 1 value per channel",  # torch's own message, which its users know
    "saved tensor {place.number}",  # our own broken promises
    "stage {self.stage_index} has no reduction",
    "{STATUS} has no {name}",
    "stage {number} is planned with {what}, but {problem}",  # the problem brings its remedy
    "{notes.refusals[0]}; or",  # the first refusal has its remedy
)
"""How texts begin that are only seen within another message, which has the remedy."""

WITHIN = "planner/execute/model/cut/"
"""Reasons that `cut_model` puts into `... cannot be cut into layers: REASON; REMEDY`."""

VERBS = """
add ask begin build buy call cancel change check choose compare compile compute convert copy cordon correct
count declare delete divide drop export form free freeze gather get give install keep launch leave let list load log
lower make mark measure merge mount move name normalise number open pass pip plan point print profile put
raise read recompute reduce register remove rename renumber repair replace report request restore resume return retry
revoke round run save search see send set shard shorten show slow sort start state stop submit switch synchronise
take try turn update use wait wrap write
"""
REMEDY = re.compile(
    rf"(?:^|[;:,(.–] ?|\bor |\band |\bthen |: )(?:please |first )?(?:{'|'.join(VERBS.split())})\b", re.IGNORECASE
)
REFERRED = re.compile(
    r"(?i)\{[^{}]*(?:remed|wanted|hint|advice|form|why_none)[^{}]*\}|\{[^{}]*(?:refusal|complaint|reason|error)[^{}]*\}$"
    r"|`?pipeplan \w+|\bsee \b"
)
"""A remedy that is filled in, or a message of another place that brings its own."""
ROUNDABOUT = re.compile(
    r"(?i)\b(?:foreseen|whoever|nobody|somebody|spoken to|at hand|go(?:es)? on|told apart|lets go|asked for)\b"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message, where it is raised, and by which class or function."""

    place: str
    kind: str
    text: str

    def faults(self) -> Iterator[str]:
        """What is wrong with it."""
        plain = re.sub(r"\{[^{}]*\}", "X", self.text)
        if not (REMEDY.search(plain) or REFERRED.search(self.text)):
            yield "no remedy"
        parts = [part for part in re.split(r";\s|(?<=[a-z)])\.\s+(?=[A-Z`])", plain) if part.strip()]
        longest = max((sum(any(map(str.isalnum, word)) for word in part.split()) for part in parts), default=0)
        if longest > MAX_WORDS:
            yield f"{longest} words in a sentence"
        if len(parts) > 3:
            yield f"{len(parts)} sentences"
        if ROUNDABOUT.search(plain):
            yield f"say it plainly: {ROUNDABOUT.search(plain)[0]}"  # type: ignore[index]


def sentences_of_verdicts() -> Iterator[Message]:
    """What the verifier's rules say of a plan: a cause each, whose remedy stands beside it."""
    for path in sorted((ROOT / "planner" / "judge" / "rules").glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assigned = {
            node: node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "message"
        }
        direct = [
            (node, node.args[-1])
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Finding"
        ]
        for node, said in [*assigned.items(), *direct]:
            text = _text(said, {})
            if text is not None:
                yield Message(place=f"{path.relative_to(ROOT)}:{node.lineno}", kind="Finding", text=text)


def messages() -> Iterator[Message]:
    """Those of the whole product, file by file."""
    for path in python_files(*PACKAGES):
        yield from _messages_of(path)


def _messages_of(path: str) -> Iterator[Message]:
    tree = parse(path)
    constants = {
        target.id: text
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and isinstance(text := _text(node.value, {}), str)
    }
    if path.startswith(WITHIN):
        return
    for node in nodes_of(path):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield from _of_call(node.exc, path, constants, is_raised=True)
        elif isinstance(node, ast.Call):
            yield from _of_call(node, path, constants, is_raised=False)


def _of_call(call: ast.Call, path: str, constants: dict[str, str], *, is_raised: bool) -> Iterator[Message]:
    kind = ast.unparse(call.func)
    is_maker = kind.rpartition(".")[2] in MAKERS
    if kind in INNER or kind.startswith("logger.") or is_raised == is_maker:
        return  # what is raised by a maker is found as a call of it
    detail = [keyword.value for keyword in call.keywords if keyword.arg == "detail"]
    arguments = detail or (call.args if is_maker else call.args[:1])
    for argument in arguments[1:] if kind.endswith("refusal") and not detail else arguments:
        text = _text(argument, constants)
        text = None if text is None else wrappers().get(kind, "{}").replace("{}", text)
        if text is not None and " " in re.sub(r"\{[^{}]*\}", "X", text) and not text.startswith(PARTS):
            yield Message(place=f"{path}:{call.lineno}", kind=kind, text=text)


@cache
def wrappers() -> dict[str, str]:
    """What functions of one text return as a ValueError, with {} where the text stands, by their names."""
    found = dict[str, str]()
    for node in (each for path in python_files(*PACKAGES) for each in nodes_of(path)):
        match node:
            case ast.FunctionDef(
                args=ast.arguments(args=[ast.arg(arg=name)]),
                body=[*_, ast.Return(value=ast.Call(func=ast.Name(id="ValueError"), args=[ast.JoinedStr() as said]))],
            ):
                found[node.name] = "".join(_part(part, {}) for part in said.values).replace(f"{{{name}}}", "{}")
    return found


def _text(node: ast.expr, constants: dict[str, str]) -> str | None:
    """What an expression says, with `{...}` for what is only known when it is said; none if it is no text."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(_part(part, constants) for part in node.values)
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = [_text(side, constants) for side in (node.left, node.right)]
        return None if sides == [None, None] else "".join("{}" if side is None else side for side in sides)
    return None


def _part(part: ast.expr, constants: dict[str, str]) -> str:
    if isinstance(part, ast.FormattedValue):
        if isinstance(part.value, ast.Name) and part.value.id in constants:
            return constants[part.value.id]
        return "{" + re.sub(r"[{}]", "", ast.unparse(part.value)) + "}"
    return str(part.value) if isinstance(part, ast.Constant) else ""


def main() -> None:
    """Print what is wrong, message by message; with --all, every message."""
    found = list(messages())
    for message in found:
        faults = ", ".join(message.faults())
        if faults or "--all" in sys.argv:
            sys.stdout.write(f"{message.place} [{faults}] {message.text}\n")
    sys.stdout.write(f"{len(found)} messages\n")


if __name__ == "__main__":
    main()
