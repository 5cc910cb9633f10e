"""A mixed integer linear programme with conditions, before any solver's words: variables, rows and disjoint tasks.

A row `low <= sum of coefficient x variable <= high` may hold only where some literals do. A literal is the index of a
0-1 variable, or `~index` for its opposite.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

Literal = int
"""Index of a 0-1 variable that is to be 1, or `~index` of one that is to be 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """An integer between two bounds."""

    name: str
    """Unique within the programme, made of letters, digits and underscores."""
    low: int
    """Least value."""
    high: int
    """Greatest value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A linear constraint, where all of `given` hold."""

    terms: tuple[tuple[int, int], ...]
    """(variable, coefficient) pairs, every variable once."""
    low: int | None
    """Least value; None: any."""
    high: int | None
    """Greatest value; None: any."""
    given: tuple[Literal, ...] = ()
    """Literals without all of which the row says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionalTask:
    """Something that takes a resource for a time, if it is there at all."""

    start: int
    """Variable: when it starts."""
    length: int
    """Variable: how long it takes."""
    end: int
    """Variable: when it ends."""
    present: Literal
    """True where the task is performed; then it takes its duration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disjoint:
    """Tasks of which no two that are there overlap."""

    tasks: tuple[OptionalTask, ...]
    is_ordered: bool
    """Whether rows say so already; a solver that knows intervals is told all the same."""


@dataclass(slots=True)
class Programme:
    """Minimises one of its variables."""

    variables: list[Variable] = field(default_factory=list)
    """By index."""
    rows: list[Row] = field(default_factory=list)
    """Linear constraints."""
    disjoint: list[Disjoint] = field(default_factory=list)
    """Resources."""
    objective: int = 0
    """The variable that is minimised."""

    def integer(self, name: str, *, low: int = 0, high: int) -> int:
        """A new variable; returns its index."""
        self.variables.append(Variable(name=name, low=low, high=high))
        return len(self.variables) - 1

    def switch(self, name: str) -> int:
        """A new 0-1 variable; returns its index."""
        return self.integer(name, high=1)

    def add(
        self,
        terms: Mapping[int, int] | Iterable[tuple[int, int]],
        *,
        low: int | None = None,
        high: int | None = None,
        given: Sequence[Literal] = (),
    ) -> None:
        """A new row; coefficients of the same variable are added up."""
        summed: dict[int, int] = {}
        for variable, coefficient in terms.items() if isinstance(terms, Mapping) else terms:
            summed[variable] = summed.get(variable, 0) + coefficient
        found = tuple((variable, coefficient) for variable, coefficient in summed.items() if coefficient)
        self.rows.append(Row(terms=found, low=low, high=high, given=tuple(given)))

    def precede(self, earlier: int, later: int, *, given: Sequence[Literal] = ()) -> None:
        """Variable `earlier` is at most variable `later`."""
        self.add({later: 1, earlier: -1}, low=0, given=given)

    def at_least(self, variable: int, value: int, *, given: Sequence[Literal] = ()) -> None:
        """A variable is at least a number, where all of `given` hold; says nothing for numbers it cannot be below."""
        if value > self.variables[variable].low:
            self.add({variable: 1}, low=value, given=given)

    def imply(self, given: Sequence[Literal], literal: Literal) -> None:
        """Where all of `given` hold, `literal` does."""
        self.forbid((*given, ~literal))

    def forbid(self, literals: Sequence[Literal]) -> None:
        """At least one of the literals is false."""
        terms = [(x, 1) if x >= 0 else (~x, -1) for x in literals]
        self.add(terms, high=len(literals) - 1 - sum(x < 0 for x in literals))

    def fixed(self, values: Mapping[int, int]) -> "Programme":
        """The same programme with the values of some variables given."""
        variables = [
            replace(each, low=values[n], high=values[n]) if n in values else each
            for n, each in enumerate(self.variables)
        ]
        return replace(self, variables=variables)

    def range_of(self, row: Row) -> tuple[int, int]:
        """The least and greatest value that the terms of a row can have by the bounds of their variables."""
        bounds = [(self.variables[v], c) for v, c in row.terms]
        low = sum(c * (v.low if c > 0 else v.high) for v, c in bounds)
        high = sum(c * (v.high if c > 0 else v.low) for v, c in bounds)
        return low, high
