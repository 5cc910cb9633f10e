"""The training command of a shell script: variables, arrays, arithmetic, simple conditions and cases; nothing is run.

What the script does not say (`$1`, variables of the environment) stays as `$NAME` in the words, for a reader to name.
"""

import ast
import operator
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import pairwise

from profiles.configurations.megatron_trainers import SWIFT_COMMANDS

MAX_DEPTH = 100
"""Conditions and loops within each other."""

MAX_EXPANDED = 50_000
"""Characters that one statement may grow to."""

_ASSIGNMENT = re.compile(r"(?:(?:export|local|readonly|declare(?: -\w+)*)\s+)?([A-Za-z_]\w*)(\+?)=")
_REFERENCE = re.compile(
    r'"?\$\{(?P<array>[A-Za-z_]\w*)\[[@*]\]\}"?'
    r"|\$\{(?P<braced>[A-Za-z_]\w*|\d+)(?::?(?P<kind>[-=+?])(?P<other>(?:[^{}]|\{[^{}]*\})*))?\}"
    r"|\$\(\((?P<sum>[^()]*(?:\([^()]*\)[^()]*)*)\)\)"
    r"|\$(?P<plain>[A-Za-z_]\w*|\d)"
)
_CASE = re.compile(r"\(?([^()$=]+)\)\s*(.*)", re.DOTALL)
"""A branch of `case`: patterns, and what follows."""
_PLAIN = re.compile(r"[\w./:,-]+")
"""Characters that neither open, close nor end anything."""
_SUBSTITUTION = re.compile(r"\$\(|`")
_FIRST_MARK, _MOST_MARKS = 0xE000, 6_000
_MARK = re.compile("[\ue000-\uf8ff]")
"""Private characters, which no script has."""
_OPENING = {"if": "fi", "case": "esac", "for": "done", "while": "done", "until": "done"}
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS = {"-eq": operator.eq, "-ne": operator.ne, "-gt": operator.gt, "-ge": operator.ge, "-lt": operator.lt,
                "-le": operator.le}  # fmt: skip
_SIGNS = {ast.Eq: "-eq", ast.NotEq: "-ne", ast.Gt: "-gt", ast.GtE: "-ge", ast.Lt: "-lt", ast.LtE: "-le"}


@dataclass(slots=True, kw_only=True)
class Script:
    """The commands of a script, its variables filled in."""

    variables: dict[str, str]
    """Strings as they are, arrays as the text between their parentheses."""
    commands: list[str] = field(default_factory=list)
    """Everything that is no assignment, expanded."""
    left_out: list[str] = field(default_factory=list)
    """Statements under a condition that is not met, or within a loop."""
    empty: set[str] = field(default_factory=set)
    """Variables that conditions ask for and nobody sets: empty, as for a shell."""


def read_script(text: str, *, given: Mapping[str, str] | None = None) -> Script:
    """Play a script's assignments and conditions; `given` are variables of its environment."""
    script = Script(variables=dict(given or {}))
    blocks = _Blocks()
    for statement in _statements(text):
        _take(script, statement.strip(), blocks=blocks)
    return script


def training_words(script: Script) -> list[str]:
    """The words of the longest command that starts training; or of lists of flags, or of variables that hold them.

    Raises ValueError where there are no flags at all.
    """
    commands = [words for command in script.commands if (words := _split(command))]
    starts = [words for words in commands if program_of(words) is not None]
    flags = [word for words in commands if words[0].startswith("--") for word in words]
    if starts:
        return max(starts, key=len)
    if flags:
        return flags
    held = [word for value in script.variables.values() if "--" in value for word in _split(value)]
    if not held:
        raise ValueError("has no command with flags; give the script that starts the training, or its flags")
    return held


def program_of(words: Sequence[str]) -> tuple[int, str] | None:
    """Where in a command what it starts is named, and the name: a Python file, a module, or ms-swift's command."""
    for place, word in enumerate(words):
        if word.endswith(".py"):
            return place, word
    for place, (word, what) in enumerate(pairwise(words)):
        if word.rpartition("/")[2] == "megatron" and what in SWIFT_COMMANDS:
            return place + 1, f"megatron {what}"
        if word == "-m" and "." in what:
            return place + 1, what
    return None


def _statements(text: str) -> list[str]:
    """Cut at line ends, `;`, `&&` and `||` outside of quotes and brackets; comments go."""
    found, own, closing = list[str](), list[str](), list[str]()
    text = text.replace("\r\n", "\n").replace("\\\n", " ")
    at, last = 0, "\n"
    while at < len(text):
        if plain := _PLAIN.match(text, at):
            own.append(plain[0])
            at, last = plain.end(), plain[0][-1]
            continue
        char, rest, inside = text[at], text[at : at + 2], closing[-1] if closing else ""
        if char == "#" and inside not in ('"', "'") and last in " \t\n(":
            at = text.find("\n", at)
            at = len(text) if at < 0 else at
            continue
        taken = char
        if char == "\\" and inside != "'":
            taken = rest
        elif inside and text.startswith(inside, at):
            taken = closing.pop()
        elif inside not in ('"', "'") and (opened := _opened(text, at=at, before=last)):
            closing.append(opened)
        elif not inside and (char in ";\n" or rest in ("&&", "||")):
            found.append("".join(own))
            own, last = [], "\n"
            at += 2 if rest in ("&&", "||", ";;") else 1
            continue
        elif inside not in ('"', "'") and char == "\n":
            taken = " "
        own.append(taken)
        at, last = at + len(taken), taken[-1]
    return [*found, "".join(own)]


def _opened(text: str, *, at: int, before: str) -> str:
    """What closes that which begins here; empty: nothing begins."""
    char = text[at]
    if char in "\"'":
        return char
    if char == "(" and before in ("=", "$", "("):
        return ")"
    return "]]" if text.startswith("[[ ", at) else ""


class _Blocks:
    """The `if` and loops that are open: whether each one's present branch is taken, and whether one has been."""

    def __init__(self) -> None:
        self.open: list[tuple[str, bool, bool]] = []
        self.cases: list[str] = []
        """What each open `case` compares."""

    @property
    def is_taken(self) -> bool:
        return all(taken for _, taken, _ in self.open)

    def begin(self, word: str, *, taken: bool) -> None:
        if len(self.open) == MAX_DEPTH:
            raise ValueError(f"more than {MAX_DEPTH} conditions within each other; give the flags themselves")
        self.open.append((_OPENING[word], taken, taken))

    def other(self, *, taken: bool) -> None:
        """Another branch of the innermost one."""
        closing, _, had = self.open.pop()
        self.open.append((closing, taken and not had, taken or had))


def _take(script: Script, statement: str, *, blocks: _Blocks) -> None:
    word, _, rest = statement.partition(" ")
    is_case = bool(blocks.open) and blocks.open[-1][0] == "esac"
    if word == "case":
        value, _, first = rest.partition(" in")
        blocks.begin(word, taken=False)
        blocks.cases.append(_expand(script, value).strip().strip("\"'"))
        if first.strip():
            _take(script, first.strip(), blocks=blocks)
    elif is_case and (match := _CASE.match(statement)):
        patterns = [each.strip().strip("\"'") for each in match[1].split("|")]
        blocks.other(taken=any(fnmatchcase(blocks.cases[-1], each) for each in patterns))
        if match[2]:
            _take(script, match[2].strip(), blocks=blocks)
    elif word in _OPENING:
        blocks.begin(word, taken=word == "if" and blocks.is_taken and _is_met(script, rest))
    elif word == "elif" and blocks.open:
        blocks.other(taken=_is_met(script, rest))
    elif word in ("then", "else", "do"):
        if word == "else" and blocks.open:
            blocks.other(taken=True)
        if rest:
            _take(script, rest.strip(), blocks=blocks)
    elif blocks.open and word == blocks.open[-1][0]:
        blocks.open.pop()
        if is_case:
            blocks.cases.pop()
    elif statement and not blocks.is_taken:
        script.left_out.append(" ".join(statement.split()))
    elif statement:
        _do(script, statement)


def _do(script: Script, statement: str) -> None:
    """Assignments, as many as there are, then the command behind them."""
    while match := _ASSIGNMENT.match(statement):
        name, adds, value = match[1], match[2], statement[match.end() :]
        before = script.variables.get(name, "") if adds else ""
        if value.startswith("("):
            script.variables[name] = f"{before} {_expand(script, value.strip()[1:-1])}".strip()
            return
        first = _first_word(value)
        plain = " ".join(_split(_expand(script, first))) if "'" in first or '"' in first else _expand(script, first)
        script.variables[name] = before + plain
        statement = value[len(first) :].strip()
    if statement:
        script.commands.append(_expand(script, statement))


def _first_word(text: str) -> str:
    """Up to the first blank outside of quotes and brackets."""
    match = re.match(
        r"""(?:\$\(\(.*?\)\)|\$\([^)]*\)|\$\{(?:[^{}]|\{[^{}]*\})*\}|"(?:\\.|[^"\\])*"|'[^']*'|\\.|[^\s"'])*""",
        text,
        re.DOTALL,
    )
    return match[0] if match else ""


def _expand(script: Script, text: str) -> str:
    """References replaced by what is known; the others stay."""

    def value(match: re.Match[str]) -> str:
        known = script.variables
        if match["array"]:
            return known.get(match["array"], match[0])
        if match["sum"] is not None:
            return _sum(script, match["sum"]) or match[0]
        name = match["braced"] or match["plain"]
        if match["kind"] == "+":
            return _expand(script, match["other"]) if known.get(name) else ""
        if name not in known and match["kind"] in ("-", "="):
            return _expand(script, match["other"].strip("\"'"))
        return known.get(name, f"${name}")

    found = _REFERENCE.sub(value, text)
    if len(found) > MAX_EXPANDED:
        raise ValueError(f"a statement grows to {len(found):,} characters; give the flags themselves")
    return found


def _sum(script: Script, text: str) -> str:
    """Whole numbers added, multiplied and so on; empty where a name is not known."""
    known = _expand(script, re.sub(r"(?<![$\w{])([A-Za-z_]\w*)", r"$\1", text))
    if not re.fullmatch(r"(?:\d{1,12}|[-+*/%()\s<>=!?:])+", known):
        return ""
    if choice := re.fullmatch(r"([^?:]+)\?([^?:]+):([^?:]+)", known):
        known = f"({choice[2].strip()}) if ({choice[1].strip()}) else ({choice[3].strip()})"
    try:
        return str(_count(ast.parse(known.strip(), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return ""


def _count(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _count(node.left), _count(node.right)
        if max(abs(left), abs(right)) < 10**12:
            return int(_OPERATORS[type(node.op)](left, right))
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _SIGNS:
        return int(_COMPARISONS[_SIGNS[type(node.ops[0])]](_count(node.left), _count(node.comparators[0])))
    if isinstance(node, ast.IfExp):
        return _count(node.body if _count(node.test) else node.orelse)
    raise ValueError("no whole numbers")


def _is_met(script: Script, condition: str) -> bool:
    """Tests of strings and numbers in [ ] or [[ ]], joined by || within; what a shell would have to run is not met."""
    text = _expand(script, condition)
    script.empty.update(re.findall(r"\$(\w+)", text))
    words = [("" if re.fullmatch(r"\$\w+", word) else word) for word in _split(text)]
    if not words or words[0] not in ("[", "[["):
        return False
    body = words[1:-1]
    return any(_is_true(part) for part in _parts(body))


def _parts(words: list[str]) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for word in words:
        if word in ("||", "-o"):
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _is_true(words: list[str]) -> bool:
    if words and words[0] == "!":
        return not _is_true(words[1:])
    match words:
        case ["-n", text] | [text]:
            return bool(text)
        case ["-z", text]:
            return not text
        case [left, "=" | "==", right]:
            return left == right
        case [left, "!=", right]:
            return left != right
        case [left, sign, right] if sign in _COMPARISONS and left.lstrip("-").isdigit() and right.lstrip("-").isdigit():
            return bool(_COMPARISONS[sign](int(left), int(right)))
    return False


def _split(text: str) -> list[str]:
    """Words as a shell would make them; one that is a whole command (`bash -c "..."`) is cut again.

    What another command would print, `$(...)` or between backquotes, is one piece of a word, as it is written.
    """
    text, pieces = _without_substitutions(text)
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    parts = [part for word in words for part in (shlex.split(word) if ".py " in word and "--" in word else [word])]
    return [_MARK.sub(lambda mark: pieces[ord(mark[0]) - _FIRST_MARK], part) for part in parts] if pieces else parts


def _without_substitutions(text: str) -> tuple[str, list[str]]:
    """The text with a mark for each substitution, and these."""
    pieces, found, at = list[str](), list[str](), 0
    while match := _SUBSTITUTION.search(text, at):
        end = _end_of(text, at=match.start())
        if end < 0 or len(pieces) == _MOST_MARKS:
            break
        found += [text[at : match.start()], chr(_FIRST_MARK + len(pieces))]
        pieces.append(" ".join(text[match.start() : end].split()))
        at = end
    return "".join([*found, text[at:]]), pieces


def _end_of(text: str, *, at: int) -> int:
    """Behind a substitution that begins here; -1: it has no end."""
    if text[at] == "`":
        return text.find("`", at + 1) + 1 or -1
    depth = 0
    for place in range(at + 1, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if not depth:
            return place + 1
    return -1
