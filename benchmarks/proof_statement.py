"""Statements that a proof-logging solver can refute: integers with bounds, and constraints of two kinds.

Two kinds, so that who reads the solver's log needs to know two rules: a linear row, which may hold only where a switch
says so, and a clause, at least one of whose literals holds.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

SwitchLiteral = tuple[str, int]
"""A 0-1 variable, and the value that it is to have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearRow:
    """Sum of coefficient x variable <= most, where the switch `given` is as it says."""

    terms: tuple[tuple[str, int], ...]
    """(variable, coefficient) pairs, every variable once."""
    most: int
    """The greatest value of the sum."""
    given: SwitchLiteral | None = None
    """None: the row always holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """At least one of some literals holds."""

    literals: tuple[SwitchLiteral, ...]
    """The literals."""


Constraint = LinearRow | Clause


@dataclass(slots=True)
class Statement:
    """Variables with their bounds, and constraints: what is claimed to have no solution."""

    domains: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Least and greatest value of every variable."""
    constraints: list[Constraint] = field(default_factory=list)
    """In the order in which a solver is given them; the first is number 1 in its log."""
    thresholds: dict[tuple[str, int], str] = field(default_factory=dict)
    """Switches that may be 1 only where a variable is at least a number."""

    def integer(self, name: str, *, high: int) -> str:
        """A new variable from 0 to `high`; returns its name."""
        self.domains[name] = (0, high)
        return name

    def switch(self, name: str) -> str:
        """A new 0-1 variable; returns its name."""
        return self.integer(name, high=1)

    def row(self, terms: Iterable[tuple[str, int]], *, most: int, given: SwitchLiteral | None = None) -> None:
        """A linear row, unless the bounds of its variables say as much; equal variables are added up."""
        summed: dict[str, int] = {}
        for name, coefficient in terms:
            summed[name] = summed.get(name, 0) + coefficient
        found = tuple((name, coefficient) for name, coefficient in summed.items() if coefficient)
        if sum(c * self.domains[name][c > 0] for name, c in found) > most:
            self.constraints.append(LinearRow(terms=found, most=most, given=given))

    def after(
        self, later: str, *, earlier: str, lengths: Iterable[tuple[str, int]], given: SwitchLiteral | None = None
    ) -> None:
        """Variable `later` is at least variable `earlier` plus some lengths, each so many times."""
        self.row([(earlier, 1), (later, -1), *lengths], most=0, given=given)

    def clause(self, *literals: SwitchLiteral) -> None:
        """At least one of the literals holds."""
        self.constraints.append(Clause(literals=literals))

    def at_least(self, variable: str, value: int) -> list[SwitchLiteral]:
        """A literal that holds only where a variable is at least a number, none if it never is; to end a clause."""
        if value > self.domains[variable][1]:
            return []
        if (variable, value) not in self.thresholds:
            name = self.thresholds[variable, value] = self.switch(f"at_least_{len(self.thresholds)}")
            self.row([(variable, -1)], most=-value, given=(name, 1))
        return [(self.thresholds[variable, value], 1)]
