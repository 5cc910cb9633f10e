"""The training command of a shell script: variables, arithmetic, conditions, functions and cases; nothing is run.

What the script does not say (`$1`, variables of the environment) stays as `$NAME` in the words, for a reader to name.
So does a variable that is set under a condition on files, commands or the cluster, which only the machine can answer.
"""

import ast
import operator
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import groupby, pairwise, takewhile

from profiles.configurations.flag_meanings import meaning_of
from profiles.configurations.megatron_trainers import SWIFT_COMMANDS
from profiles.discovery.gres import gpus_asked
from profiles.discovery.slurm_topology import expand_names

MAX_DEPTH = 100
"""Conditions and loops within each other."""

MAX_EXPANDED = 50_000
"""Characters that one statement may grow to."""

MAX_STATEMENTS = 100_000
"""That are played, those of functions as often as they are called."""

_ASSIGNMENT = re.compile(r"(?:(?:export|local|readonly|(?:declare|typeset)(?: -\w+)*)\s+)?([A-Za-z_]\w*)(\+?)=")
_VALUE = re.compile(rf"{_ASSIGNMENT.pattern}(?:\(.*|\"[^\"]*\"|'[^']*'|\S*)", re.DOTALL)  # and that is all
_ELEMENT = re.compile(r"([A-Za-z_]\w*)\[[^][]*\]\+?=")  # of an array, of which no more is known then
_OPEN = re.compile(r"[$`*?{~]")  # begins what a shell makes any number of words of
_REFERENCE = re.compile(
    r'"?\$\{(?P<array>[A-Za-z_]\w*)\[[@*]\]\}"?|"?\$(?P<all>[@*])"?'
    r"|\$\{(?P<count>#?)(?P<list>[A-Za-z_]\w*)\[(?P<index>[^][]+)\]\}"
    r"|\$\{(?P<braced>[A-Za-z_]\w*|\d+)(?:(?P<colon>:?)(?P<kind>[-=+?])(?P<other>(?:[^{}]|\{[^{}]*\})*))?\}"
    r"|\$\(\((?P<sum>[^()]*(?:\([^()]*\)[^()]*)*)\)\)|\$\[(?P<old>[^][]*)\]"
    r"|\$(?P<plain>[A-Za-z_]\w*|\d)"
)
_CASE = re.compile(r"\(?([^()$=]+)\)\s*(.*)", re.DOTALL)
"""A branch of `case`: patterns, and what follows."""
_FUNCTION = re.compile(
    r"(?:function\s+(?P<named>[\w-]+)\s*(?:\(\))?|(?P<name>[\w-]+)\s*\(\))\s*(?P<open>\{?)\s*(?P<rest>.*)", re.DOTALL
)
_CHANGE = re.compile(r"(?:let\s+|\(\(\s*)(?P<name>[A-Za-z_]\w*)\s*(?P<sign>[-+*/%]?)=(?!=)(?P<sum>[^=].*?)(?:\)\))?\s*")
"""Arithmetic that sets a variable."""
_STEP = re.compile(r"(?:let\s+|\(\(\s*)(?P<name>[A-Za-z_]\w*)(?:\+\+|--).*")
_SLURM = re.compile(r"^#SBATCH[ \t]+(.*?)(?:[ \t]#.*)?$", re.MULTILINE)
_HOSTS = re.compile(r"(?:[\w.,-]|\[[\d,-]+\])+")
_SLURM_OPTION = re.compile(r"(?<!\S)(?:--([\w-]+)[= ]|-([NnGw])) *((?!-)\S+)")
_SLURM_NAMES = {
    "N": "nodes", "n": "ntasks", "G": "gpus", "w": "nodelist", "tasks-per-node": "ntasks-per-node",
    "gres": "gpus-per-node", "tres-per-node": "gpus-per-node",
}  # fmt: skip
"""Other names of options of Slurm's header."""
_SLURM_MORE = {"nodes": ("NNODES", "JOB_NUM_NODES"), "gpus-per-node": ("GPUS_PER_NODE", "GPUS_ON_NODE")}
"""Variables that it sets by them, where these are not called like the option."""
_PLAIN = re.compile(r"[\w./:,-]+")
"""Characters that neither open, close nor end anything."""
_SUBSTITUTION = re.compile(r"\$\(|`")
_FIRST_MARK, _MOST_MARKS = 0xE000, 6_000
_MARK = re.compile("[\ue000-\uf8ff]")
"""Private characters, which no script has."""
_OPENING = {"if": "fi", "case": "esac", "for": "done", "while": "done", "until": "done", "{": "}"}
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
_NO, _UNKNOWN, _YES = -1, 0, 1
"""Answers in Kleene's logic: of `and` the least counts, of `or` the greatest, and `not` turns the sign."""
_SUCCEEDING = ("cd", "echo", "eval", "export", "mkdir", "module", "printf", "pushd", "set", "shift", "source", "true",
               "ulimit", "unset", ".", ":")  # fmt: skip
"""Commands that do not fail where a script is of use."""
_PRINTING = ("echo", "printf")
_OF_MACHINES = re.compile(
    r"(?:SLURM|OMPI|PMI|PMIX|PBS|PALS|LSB)_\w+|HOSTNAME|USER|WORLD_SIZE|(?:LOCAL_|NODE_)?RANK|CUDA_VISIBLE_DEVICES"
)
"""Variables that a cluster sets; others that nobody sets are empty, as for a shell."""
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
    given: Mapping[str, str]
    """Values that count where a condition that nobody here can answer sets their variables."""
    asked: str = ""
    """Such a condition, the last one."""
    is_sure: bool = True
    """Whether what is played now does not depend on one."""
    unsure: dict[str, str] = field(default_factory=dict)
    """Variables that do, each with its condition; their value is their own name."""
    functions: dict[str, list["_Statement"]] = field(default_factory=dict)
    """By name; they are played where they are called."""
    played: int = 0
    """Statements so far."""


@dataclass(frozen=True, slots=True)
class _Statement:
    text: str
    joined: str
    """`&&` or `||` before it; empty: it begins a list."""


def read_script(text: str, *, given: Mapping[str, str] | None = None) -> Script:
    """Play a script's assignments and conditions; `given` are variables of its environment."""
    script = Script(variables={**_slurm_variables(text), **(given or {})}, given=given or {})
    _play(script, _statements(text), depth=0)
    return script


def _slurm_variables(text: str) -> dict[str, str]:
    """What Slurm sets by the header of the script; what that leaves open, or states per part of a job, stays a name."""
    found, headers = dict[str, str](), list[str]()
    for part in re.split(r"^(?=#!)", text.removeprefix("\ufeff"), flags=re.MULTILINE):  # one may be written by another
        lines = takewhile(lambda line: line.lstrip()[:1] in ("", "#"), part.splitlines())
        headers += _SLURM.findall("\n".join(lines))
    for long, short, stated in (option for header in headers for option in _SLURM_OPTION.findall(header)):
        name, value = _SLURM_NAMES.get(long or short, long), stated.strip("\"'")
        if name == "nodelist":
            count = str(len(set(expand_names(value)))) if _HOSTS.fullmatch(value) else ""  # else a file of names
            found = {f"SLURM_{each}": count for each in _SLURM_MORE["nodes"]} | found
            continue
        value = gpus_asked(long, value) if name.startswith("gpus") else value
        for variable in _SLURM_MORE.get(name, (name.replace("-", "_").upper(),)) if value else ():
            found[f"SLURM_{variable}"] = value
    parts = 1 + sum(header.split()[:1] in (["hetjob"], ["packjob"]) for header in headers)
    known = {name: value if value.isdecimal() and parts == 1 else f"${name}" for name, value in found.items()}
    return known if parts == 1 else {**known, "SLURM_HET_SIZE": str(parts)}


def _play(script: Script, statements: Sequence[_Statement], *, depth: int) -> None:
    """One after the other; functions are kept until they are called."""
    if depth > MAX_DEPTH:
        raise ValueError(f"functions call each other more than {MAX_DEPTH} deep; give the flags themselves")
    blocks, name, body, open_braces = _Blocks(), "", list[_Statement](), 0
    for each in statements:
        text, words = each.text.strip(), each.text.split()
        if name:
            open_braces += (words[-1:] == ["{"] or words[:1] == ["{"]) - (words[:1] == ["}"])
            if open_braces <= 0 and words[:1] == ["}"]:
                script.functions[name], name = body, ""
            elif words != ["{"] or open_braces > 1:
                body.append(each)
        elif match := _FUNCTION.fullmatch(text):
            name, open_braces = match["named"] or match["name"], len(match["open"])
            body = [_Statement(match["rest"], "")]
        else:
            script.played += 1
            if script.played > MAX_STATEMENTS:
                raise ValueError(f"more than {MAX_STATEMENTS:,} statements; give the flags themselves")
            _take(script, text, blocks=blocks, joined=each.joined, depth=depth)


def training_words(script: Script) -> list[str]:
    """The words of the longest command that starts training; or of lists of flags, or of variables that hold them.

    Raises ValueError where there are no flags at all.
    """
    commands = [words for command in script.commands if (words := _split(command))]
    named = [words for words in commands if program_of(words) is not None]
    starts = [words for words in named if words[0] not in _PRINTING] or named
    flags = [word for words in commands if words[0].startswith("--") for word in words]
    if starts:
        return max(starts, key=len)
    if flags:
        return flags
    held = [word for value in script.variables.values() if "--" in value for word in _split(value)]
    if not held:
        why = next((f" outside of {text[:60]!r}, which is not played" for text in script.left_out if ".py" in text), "")
        raise ValueError(f"has no command with flags{why}; give the script that starts the training, or its flags")
    return held


def other_commands(script: Script, words: Sequence[str]) -> list[str]:
    """The commands that start the same program with other flags, which were not read; not those that print them."""
    if (started := program_of(words)) is None:
        return []
    others = [each for command in script.commands if (each := _split(command)) and each[0] not in _PRINTING]
    return [
        f"another command of {started[1]}: {' '.join(each)[:60]}"
        for each in others
        if (found := program_of(each)) is not None
        and found[1] == started[1]
        and each[found[0] :] != words[started[0] :]
    ]


def program_of(words: Sequence[str]) -> tuple[int, str] | None:
    """Where in a command what it starts is named, and the name: a Python file, a module, or ms-swift's command."""
    for place, word in enumerate(words):
        if word.endswith(".py"):
            return place, word
    for place, (word, what) in enumerate(pairwise(words)):
        if word.rpartition("/")[2] == "megatron" and what in SWIFT_COMMANDS:
            return place + 1, f"megatron {what}"
        if word in ("-m", "--module") and "." in what:
            return place + 1, what
    return None


def _statements(text: str) -> list[_Statement]:
    """Cut at line ends, `;`, `&&` and `||` outside of quotes and brackets; comments go."""
    found, own, closing, joined = list[_Statement](), list[str](), list[str](), ""
    text = text.replace("\r\n", "\n")
    at, last = 0, "\n"
    while at < len(text):
        if plain := _PLAIN.match(text, at):
            own.append(plain[0])
            at, last = plain.end(), plain[0][-1]
            continue
        char, rest, inside = text[at], text[at : at + 2], closing[-1] if closing else ""
        if rest == "\\\n":  # joins lines, but not behind a comment
            own.append(" ")
            at, last = at + 2, " "
            continue
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
            if statement := "".join(own).strip():
                found.append(_Statement(statement, joined))
                joined = ""
            joined = rest if rest in ("&&", "||") else joined  # a line may end behind the sign
            own, last = [], "\n"
            at += 2 if rest in ("&&", "||", ";;") else 1
            continue
        elif inside not in ('"', "'") and char == "\n":
            taken = " "
        own.append(taken)
        at, last = at + len(taken), taken[-1]
    return [*found, _Statement("".join(own).strip(), joined)]


def _opened(text: str, *, at: int, before: str) -> str:
    """What closes that which begins here; empty: nothing begins."""
    char = text[at]
    if char in "\"'":
        return char
    if char == "(" and before in ("=", "$", "("):
        return ")"
    return "]]" if text.startswith("[[ ", at) else ""


class _Blocks:
    """The conditions and loops that are open: whether each one's present branch is taken, and whether one has been."""

    def __init__(self) -> None:
        self.open: list[tuple[str, int, int]] = []
        self.cases: list[str] = []
        """What each open `case` compares."""
        self.asks = ""
        """`if`, `elif`, `while` or `until` while its condition is read."""
        self.status = _YES
        """Of the statements before, as `&&` and `||` ask for it."""

    def runs(self, joined: str) -> int:
        """Whether what follows such a sign is done, wherever it stands."""
        return self.status if joined == "&&" else -self.status if joined else _YES

    def taken(self, joined: str) -> int:
        """The same in its branch: the least of all answers around it, unknown where one is."""
        return min(self.runs(joined), *(taken for _, taken, _ in self.open), _YES)

    def note(self, answer: int, *, joined: str) -> None:
        """The answer of a statement, behind those before it."""
        self.status = {"&&": min, "||": max}[joined](self.status, answer) if joined else answer

    def begin(self, word: str, *, taken: int) -> None:
        if len(self.open) == MAX_DEPTH:
            raise ValueError(f"more than {MAX_DEPTH} conditions within each other; give the flags themselves")
        self.open.append((_OPENING[word], taken, taken))

    def other(self, *, taken: int) -> None:
        """Another branch of the innermost one."""
        closing, _, had = self.open.pop()
        self.open.append((closing, min(taken, -had), max(taken, had)))

    def answer(self) -> None:
        """The condition is read whole."""
        if self.asks in _OPENING:  # nobody counts the rounds of a loop
            status = -self.status if self.asks == "until" else self.status
            self.begin(self.asks, taken=status if self.asks == "if" else min(status, _UNKNOWN))
        elif self.open:
            self.other(taken=self.status)
        self.asks = ""


def _take(script: Script, statement: str, *, blocks: _Blocks, joined: str, depth: int) -> None:
    word, _, rest = statement.partition(" ")
    is_case = bool(blocks.open) and blocks.open[-1][0] == "esac"
    if word == "case":
        value, _, first = rest.partition(" in")
        blocks.begin(word, taken=_NO)
        blocks.cases.append(_expand(script, value).strip().strip("\"'"))
        rest = first.strip()
    elif is_case and (match := _CASE.match(statement)):
        patterns = [each.strip().strip("\"'") for each in match[1].split("|")]
        if _known_operand(script, value := blocks.cases[-1]) is None:
            blocks.other(taken=_ask(script, f"case {value}"))
        else:
            blocks.other(taken=_YES if any(fnmatchcase(value, each) for each in patterns) else _NO)
        rest = match[2].strip()
    elif word in ("if", "elif", "while", "until"):
        blocks.asks, blocks.status = word, _answer(script, rest)
        _ask(script, statement if word in _OPENING and word != "if" else script.asked)
        return
    elif word == "then" or (word == "do" and blocks.asks):
        blocks.answer()
    elif blocks.asks:
        blocks.note(_answer(script, statement), joined=joined)
        return
    elif word == "{":
        blocks.begin(word, taken=blocks.runs(joined))
    elif word == "for":
        blocks.begin(word, taken=_NO if blocks.taken(joined) == _NO else _rounds(script, rest))
        return
    elif word == "else" and blocks.open:
        blocks.other(taken=_YES)
    elif blocks.open and word == blocks.open[-1][0]:
        blocks.open.pop()
        if is_case:
            blocks.cases.pop()
        return
    elif word not in ("do", "else"):
        is_repeated = any(closing == "done" for closing, _, _ in blocks.open) and program_of(statement.split())
        if statement and (is_repeated or blocks.taken(joined) == _NO):
            script.left_out.append(" ".join(statement.split()))
        if statement and blocks.taken(joined) != _NO and (not is_repeated or _VALUE.fullmatch(statement)):
            was_sure, script.is_sure = script.is_sure, script.is_sure and blocks.taken(joined) == _YES
            blocks.note(_do(script, statement, depth=depth), joined=joined)
            script.is_sure = was_sure
        return
    if rest:
        _take(script, rest.strip(), blocks=blocks, joined="", depth=depth)


def _rounds(script: Script, rest: str) -> int:
    """Whether `for` has any, as through arguments that nobody gives; what its variable is behind them is open."""
    _, within, words = _expand(script, rest).partition(" in ")
    words = words.strip() if within else script.variables.get("@", "$@")
    is_given = "@" in script.variables or not re.fullmatch(r'"?\$\{?[@*](?::\d+)?\}?"?', words)
    if not rest.startswith("((") and (not is_given or _known_operand(script, words) == ""):
        return _NO
    found, was_sure, script.is_sure = _ask(script, f"for {rest}"), script.is_sure, False
    if name := re.match(r"[(\s]*([A-Za-z_]\w*)", rest):
        _set(script, name[1], value=f"${name[1]}")
    script.is_sure = was_sure
    return found


def _do(script: Script, statement: str, *, depth: int) -> int:
    """Assignments, as many as there are, then the command behind them; whether it succeeds, as far as that is known."""
    known = script.variables
    if match := _CHANGE.fullmatch(statement) or _STEP.fullmatch(statement):
        sign, name = match.groupdict().get("sign"), match["name"]
        before = f"{known.get(name, '?')} {sign} " if sign else ""
        _set(script, name, value="" if sign is None else _sum(script, f"{before}({match['sum']})"))
        if not known.get(name):
            known.pop(name, None)
        return _YES
    if statement.startswith(("[ ", "[[ ", "((", "test ", "! ", "false")):
        return _answer(script, statement)
    if match := _ELEMENT.match(statement):
        known.pop(match[1], None)
        return _YES
    while match := _ASSIGNMENT.match(statement):
        name, adds, value = match[1], match[2], statement[match.end() :]
        before = known.get(name, "") if adds else ""
        if value.startswith("("):
            _set(script, name, value=f"{before} {_expand(script, value.strip()[1:-1])}".strip())
            return _YES
        first = _first_word(value)
        plain = " ".join(_split(_expand(script, first))) if "'" in first or '"' in first else _expand(script, first)
        _set(script, name, value=before + plain)
        statement = value[len(first) :].strip()
    if not statement:
        return _YES
    command = _expand(script, statement)
    word, _, rest = command.partition(" ")
    if word == "eval":
        return _do(script, " ".join(_split(rest)), depth=depth)
    if word in script.functions:
        _call(script, script.functions[word], words=rest, depth=depth)
    elif word == "set" and rest.startswith("-- "):
        _place(script, rest[3:])
    elif word == "shift" and "@" in known:
        _place(script, " ".join(known["@"].split()[int(rest) if rest.isdigit() else 1 :]))
    elif word in ("unset", "read", "mapfile", "readarray"):
        for name in _split(rest):
            known.pop(name.partition("[")[0], None)
    else:
        script.commands.append(command)
    return _YES if word in _SUCCEEDING and "|" not in command else _ask(script, command)


def _set(script: Script, name: str, *, value: str) -> None:
    """A value; where nobody knows whether it is set, what is given for it, or nothing for an argument not given."""
    known, present = script.variables, script.variables.get(name, "")
    if script.is_sure:
        known[name] = value
        script.unsure.pop(name, None)
        return
    kept = present if "--" in present and value.startswith(present) else ""
    if (
        value not in (present, "$OPTARG")
        and not re.fullmatch(r"\$\d", value)
        and (_matters(value[len(kept) :]) or _matters(present[len(kept) :]))
    ):
        if name not in script.given:
            script.unsure[name] = script.asked
        known[name] = f"{kept} {script.given.get(name, f'${name}')}".strip()


def _matters(value: str) -> bool:
    """Whether a time or a size may depend on it: on a word, or on a flag among its flags."""
    flags = re.findall(r"--([A-Za-z][\w-]*)", value)
    return any(meaning_of(flag.replace("-", "_")) != "irrelevant" for flag in flags) if flags else bool(value.strip())


def _call(script: Script, body: Sequence[_Statement], *, words: str, depth: int) -> None:
    """A function with its arguments; those of the caller come back behind it."""
    before = {name: value for name, value in script.variables.items() if name == "@" or name.isdigit()}
    _place(script, words)
    _play(script, body, depth=depth + 1)
    _place(script, "")
    script.variables |= before
    if "@" not in before:
        del script.variables["@"]


def _place(script: Script, words: str) -> None:
    """The arguments `$1`, `$2` and so on, and `$@`, all of them."""
    for name in [name for name in script.variables if name.isdigit()]:
        del script.variables[name]
    placed = _split(words)
    script.variables |= {str(place): word for place, word in enumerate(placed, start=1)} | {"@": " ".join(placed)}


def _first_word(text: str) -> str:
    """Up to the first blank outside of quotes and brackets."""
    match = re.match(
        r"""(?:\$\(\(.*?\)\)|\$\([^)]*\)|\$\{(?:[^{}]|\{[^{}]*\})*\}|`[^`]*`|"(?:\\.|[^"\\])*"|'[^']*'|\\.|[^\s"'])*""",
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
        if match["all"]:
            return known.get("@", f"${match['all']}")
        if match["list"]:
            return _element(script, match) or match[0]
        if (asked := match["sum"] if match["old"] is None else match["old"]) is not None:
            return _sum(script, asked) or match[0]
        name = match["braced"] or match["plain"]
        is_open = name not in known or (match["colon"] and _known_operand(script, known[name]) == "")
        if match["kind"] == "+":
            return "" if is_open else _expand(script, match["other"])
        if is_open and match["kind"] in ("-", "="):
            other = _expand(script, match["other"].strip("\"'"))
            known |= {name: other} if match["kind"] == "=" else {}
            return other
        return known.get(name, f"${name}")

    found = _REFERENCE.sub(value, text)
    if len(found) > MAX_EXPANDED:
        raise ValueError(f"a statement grows to {len(found):,} characters; give the flags themselves")
    return found


def _element(script: Script, match: re.Match[str]) -> str:
    """The number of an array's elements, or one of them; empty: it is not known."""
    text, index = script.variables.get(match["list"], ""), match["index"].strip("\"'")
    words = [] if "IFS" in script.variables else _split(text)
    if match["count"]:
        return str(len(words)) if words and index in "@*" and not _OPEN.search(text) else ""
    named = [word.partition("]=")[2] for word in words if word.startswith(f"[{_expand(script, index)}]=")]
    place = _sum(script, index)
    if named or not place.isdecimal() or int(place) >= len(words):
        return "" if not named or _OPEN.search(text) else named[-1]
    return "" if any(map(_OPEN.search, words[: int(place) + 1])) else words[int(place)]


def _sum(script: Script, text: str) -> str:
    """Whole numbers added, multiplied and so on; empty where a name is not known."""
    known = _expand(script, re.sub(r"(?<![$\w{])([A-Za-z_]\w*)", r"$\1", text))
    if not re.fullmatch(r"(?:\d{1,12}|[-+*/%()\s<>=!?:&|])+", known):
        return ""
    known = known.replace("&&", " and ").replace("||", " or ")
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
    if isinstance(node, ast.BoolOp):
        return int((all if isinstance(node.op, ast.And) else any)(_count(each) for each in node.values))
    if isinstance(node, ast.IfExp):
        return _count(node.body if _count(node.test) else node.orelse)
    raise ValueError("no whole numbers")


def _ask(script: Script, condition: str) -> int:
    """Unknown; the condition is kept for messages about what depends on it."""
    if script.is_sure:
        script.asked = " ".join(condition.split())[:60]
    return _UNKNOWN


def _answer(script: Script, condition: str) -> int:
    """Tests of strings and numbers in [ ], [[ ]] or (( )); what a shell would have to look for or to run is unknown."""
    if condition.startswith("! "):
        return -_answer(script, condition[2:].lstrip())
    played = condition.replace("$#", str(sum(name.isdigit() for name in script.variables)))
    if condition.startswith("(("):
        found = _sum(script, played.strip()[2:-2])
        return _ask(script, condition) if not found else _NO if found == "0" else _YES
    words = _split(_expand(script, played))
    if words[:1] in (["true"], [":"], ["false"]):
        return _NO if words[0] == "false" else _YES
    if words[:1] not in (["test"], ["["], ["[["]):
        return _ask(script, condition)
    tested = [_known_operand(script, word) for word in words[1 : None if words[0] == "test" else -1]]
    return _any_answer(tested, has_patterns=words[0] == "[[") or _ask(script, condition)


def _known_operand(script: Script, word: str) -> str | None:
    """A word of a test, empty for a variable that nobody sets; None: only the machine itself knows it."""
    names = re.findall(r"\$\{?(\w+)", word)
    if _SUBSTITUTION.search(word) or any(name in script.unsure or _OF_MACHINES.fullmatch(name) for name in names):
        return None
    return "" if re.fullmatch(r"\$\w+", word) else word


def _any_answer(words: list[str | None], *, has_patterns: bool) -> int:
    """Tests joined by signs, of which `&&` binds more than `||`."""
    parts = (_parts(each, signs=("&&", "-a")) for each in _parts(words, signs=("||", "-o")))
    return max(min(_test(part, has_patterns=has_patterns) for part in each) for each in parts)


def _parts(words: list[str | None], *, signs: tuple[str, str]) -> list[list[str | None]]:
    return [list(part) for is_sign, part in groupby(words, key=signs.__contains__) if not is_sign] or [[]]


def _test(words: list[str | None], *, has_patterns: bool) -> int:
    if words and words[0] == "!":
        return -_test(words[1:], has_patterns=has_patterns)
    match words:
        case [*_, None] | [None, *_]:
            return _UNKNOWN
        case ["-n", str(text)] | [str(text)]:
            is_true = bool(text)
        case ["-z", str(text)]:
            is_true = not text
        case [str(left), "=" | "==" | "!=" as sign, str(right)]:
            is_true = (fnmatchcase(left, right) if has_patterns else left == right) == (sign != "!=")
        case [str(left), str(sign), str(right)] if sign in _COMPARISONS:
            if not all(re.fullmatch(r"-?\d+", each) for each in (left, right)):
                return _UNKNOWN if left and right else _NO  # as a shell, which finds no number there
            is_true = bool(_COMPARISONS[sign](int(left), int(right)))
        case _:
            return _UNKNOWN if words else _NO
    return _YES if is_true else _NO


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
