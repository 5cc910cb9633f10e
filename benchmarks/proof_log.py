"""Checks a log of Pumpkin's, step by step, against the statement that it refutes, without Pumpkin.

The log (DRCP) names atoms, `variable op number`, and has steps of two kinds. An *inference* says that some atoms imply
another one, by a constraint or by a nogood that was derived before: it holds if the constraint cannot be met where the
atoms hold and the other one does not. A *nogood* says that its atoms do not hold together: it holds if the inferences
that it names, one after the other, lead from them to a contradiction. The end is the nogood of no atoms.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from re import compile as pattern

from benchmarks.proof_statement import Clause, Constraint, LinearRow, Statement, SwitchLiteral

Atom = tuple[str, str, int]
"""A variable, one of <=, >=, ==, != and a number."""

OPPOSITE = {"<=": (">=", 1), ">=": ("<=", -1), "==": ("!=", 0), "!=": ("==", 0)}
"""What holds where an atom does not, and what is added to its number."""

ATOM = pattern(r"a (\d+) \[(\w+) (<=|>=|==|!=) (-?\d+)\]")


class ProofError(ValueError):
    """A step of the log does not follow."""


def opposite(atom: Atom) -> Atom:
    """What holds where an atom does not."""
    name, comparison, value = atom
    other, shift = OPPOSITE[comparison]
    return name, other, value + shift


class Box:
    """Values that variables may have; a variable that nothing was said of has those of its domain."""

    def __init__(self, domains: dict[str, tuple[int, int]]) -> None:
        self.domains = domains
        self.bounds: dict[str, tuple[int, int]] = {}
        self.holes: dict[str, set[int]] = {}
        self.is_empty = False

    def of(self, name: str) -> tuple[int, int]:
        """Least and greatest value."""
        return self.bounds.get(name) or self.domains[name]

    def add(self, atom: Atom) -> None:
        """Only what keeps to the atom is left."""
        name, comparison, value = atom
        low, high = self.of(name)
        if comparison in (">=", "=="):
            low = max(low, value)
        if comparison in ("<=", "=="):
            high = min(high, value)
        if comparison == "!=":
            self.holes.setdefault(name, set()).add(value)
        holes = self.holes.get(name, ())
        while low <= high and low in holes:
            low += 1
        while low <= high and high in holes:
            high -= 1
        self.bounds[name] = low, high
        self.is_empty = self.is_empty or low > high

    def has(self, atom: Atom) -> bool:
        """Whether the atom holds for every value that is left."""
        name, comparison, value = atom
        low, high = self.of(name)
        if comparison == "<=":
            return high <= value
        if comparison == ">=":
            return low >= value
        if comparison == "==":
            return low == high == value
        return not low <= value <= high or value in self.holes.get(name, ())


def is_broken(constraint: Constraint, box: Box) -> bool:
    """Whether nothing in the box meets a constraint."""
    if isinstance(constraint, Clause):
        return not any(_may_hold(box, literal) for literal in constraint.literals)
    if constraint.given is not None and not _must_hold(box, constraint.given):
        return False
    return sum(c * box.of(name)[c < 0] for name, c in constraint.terms) > constraint.most


def _may_hold(box: Box, literal: SwitchLiteral) -> bool:
    low, high = box.of(literal[0])
    return low <= literal[1] <= high


def _must_hold(box: Box, literal: SwitchLiteral) -> bool:
    low, high = box.of(literal[0])
    return low == high == literal[1]


@dataclass(slots=True)
class CheckedLog:
    """What a log holds, all of which follows."""

    inferences: int = 0
    """Steps by a constraint, a domain or a nogood."""
    nogoods: int = 0
    """Nogoods derived."""
    rows: int = field(default=0)
    """Inferences by linear rows."""


class LogChecker:
    """Goes through a log."""

    def __init__(self, statement: Statement) -> None:
        self.statement, self.found = statement, CheckedLog()
        self.atoms: dict[int, Atom] = {}
        self.nogoods: dict[int, tuple[Atom, ...]] = {}
        self.stage: dict[int, tuple[tuple[Atom, ...], Atom | None]] = {}
        self.is_refuted = False

    def check(self, lines: Iterable[str]) -> CheckedLog:
        """What the log holds; raises ProofError, with the line, if a step does not follow or the end is none."""
        is_concluded = False
        for number, line in enumerate(lines, start=1):
            if is_concluded and line.strip():
                raise ProofError(f"line {number}: stands behind the conclusion")
            try:
                is_concluded = self._take(line) or is_concluded
            except (KeyError, IndexError, ValueError) as error:
                raise ProofError(f"line {number}: {line.strip()[:200]!r}: {error}") from None
        if not (is_concluded and self.is_refuted):
            raise ProofError("the log ends without the nogood of no atoms")
        return self.found

    def _take(self, line: str) -> bool:
        """One line; returns whether it is the conclusion."""
        words = line.split()
        if not words:
            return False
        if words[0] == "a":
            named = ATOM.fullmatch(line.strip())
            if named is None or int(named[1]) in self.atoms:
                raise ValueError("is no new atom")
            self.statement.domains[named[2]]
            self.atoms[int(named[1])] = named[2], named[3], int(named[4])
        elif words[0] == "i":
            self._infer(words)
        elif words[0] == "n":
            self._derive(words)
        elif words != ["c", "UNSAT"]:
            raise ValueError("is no step of a refutation")
        return words[0] == "c"

    def _atom(self, code: str) -> Atom:
        number = int(code)
        return self.atoms[number] if number > 0 else opposite(self.atoms[-number])

    def _infer(self, words: Sequence[str]) -> None:
        """Premises that imply an atom, or nothing."""
        plain = [word for word in words[2:] if word[:2] not in ("c:", "l:")]
        hints = {word[:2]: word[2:] for word in words[2:] if word[:2] in ("c:", "l:")}
        split = plain.index("0") if "0" in plain else len(plain)
        premises = tuple(map(self._atom, plain[:split]))
        implied = self._atom(plain[split + 1]) if split + 1 < len(plain) else None
        box = Box(self.statement.domains)
        for atom in (*premises, *(() if implied is None else (opposite(implied),))):
            box.add(atom)
        if not box.is_empty and not self._is_against(int(hints["c:"]) if "c:" in hints else None, box):
            raise ValueError("does not follow")
        self.stage[int(words[1])] = premises, implied
        self.found.inferences += 1

    def _is_against(self, source: int | None, box: Box) -> bool:
        """Whether a constraint, or a nogood, has no solution in the box; None: only the domains count."""
        if source is None:
            return False
        if source in self.nogoods:
            return all(box.has(atom) for atom in self.nogoods[source])
        if not 1 <= source <= len(self.statement.constraints):
            raise ValueError("names no constraint and no nogood")
        constraint = self.statement.constraints[source - 1]
        self.found.rows += isinstance(constraint, LinearRow)
        return is_broken(constraint, box)

    def _derive(self, words: Sequence[str]) -> None:
        """Atoms that do not hold together."""
        split = words.index("0") if "0" in words[2:] else len(words)
        atoms, box, step = tuple(map(self._atom, words[2:split])), Box(self.statement.domains), int(words[1])
        if step in self.nogoods or step <= len(self.statement.constraints):
            raise ValueError("is a number that is taken")
        for atom in atoms:
            box.add(atom)
        for hint in words[split + 1 :]:
            premises, implied = self.stage[int(hint)]
            if box.is_empty:
                break
            if all(box.has(atom) for atom in premises):
                if implied is None:
                    box.is_empty = True
                else:
                    box.add(implied)
        if not box.is_empty:
            raise ValueError("does not follow from the inferences that it names")
        self.nogoods[step] = atoms
        self.is_refuted = self.is_refuted or not atoms
        self.stage.clear()
        self.found.nogoods += 1


def check_log(statement: Statement, path: Path) -> CheckedLog:
    """What a log holds; raises ProofError if it does not refute the statement."""
    with path.open(encoding="utf-8") as lines:
        return LogChecker(statement).check(lines)
