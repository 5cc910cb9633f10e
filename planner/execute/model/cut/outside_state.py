"""State that a model's code reaches outside of its modules: global variables, class attributes, enclosing variables."""

import dis
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from torch import nn

from planner.execute.model.cut.held_state import ATOMS, NOT_USERS

NOTHING = object()
"""In the place of a value where there is none."""
_FIXED = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, property, classmethod, staticmethod)
"""What is no state by itself."""
_STILL: tuple[type, ...] = (*_FIXED, *ATOMS, nn.Module)
"""What changes only where a name is given another value."""
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")


@dataclass(frozen=True, slots=True)
class OutsideVariable:
    """A variable outside of modules, by what has it and its name there."""

    address: int
    """Identity of what has it."""
    name: str
    holder: Any = field(compare=False, repr=False)
    """A Python module, a class, a function (a default value), or the cell of an enclosing function."""
    text: str = field(compare=False)
    """What it is called in messages, with a file and a line that use it."""

    @property
    def held(self) -> Any:
        """Its value now, or `NOTHING`."""
        if isinstance(self.holder, types.CellType):
            try:
                return self.holder.cell_contents
            except ValueError:
                return NOTHING
        if isinstance(self.holder, types.FunctionType):
            return _defaults(self.holder)
        return vars(self.holder).get(self.name, NOTHING)

    def hold(self, value: Any) -> None:
        """Give it a value, or take it away; default values keep their objects."""
        if isinstance(self.holder, types.FunctionType):
            return
        if isinstance(self.holder, types.CellType):
            self.holder.cell_contents = value
        elif value is not NOTHING:
            setattr(self.holder, self.name, value)
        elif self.name in vars(self.holder):
            delattr(self.holder, self.name)


def find_outside(module: nn.Module, *, has_still: bool = False) -> list[OutsideVariable]:
    """What forwards and forward hooks of a module and its parts reach, through functions of the same packages.

    `has_still`: also what none of these can change, such as a number that they read.
    """
    found: dict[OutsideVariable, None] = {}
    kinds = {kind: None for part in module.modules() for kind in type(part).__mro__ if _is_users(kind)}
    methods: dict[str, list[types.FunctionType]] = {}
    for kind in kinds:
        for name, value in vars(kind).items():
            if (function := _function_of(value)) is not None:
                methods.setdefault(name, []).append(function)
    pending = [*methods.get("forward", ()), *(each for part in module.modules() for each in _own_functions(part))]
    homes = {_home(each) for each in (*kinds, *pending)} - NOT_USERS
    seen, stored = set[types.FunctionType](), set[str]()
    while pending:
        function = pending.pop()
        if function in seen or _home(function) not in homes:
            continue
        seen.add(function)
        stored |= {name for name, _, is_stored in _uses(function.__code__) if is_stored}
        if _defaults(function):
            text = f"a default value of {function.__qualname__}{_place(function, '')}"
            found.setdefault(OutsideVariable(id(function), "", function, text))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            text = f"variable {name!r} around {function.__qualname__}{_place(function, name)}"
            found.setdefault(OutsideVariable(id(cell), name, cell, text))
        for name in _names(function):
            pending += methods.get(name, ())
            for variable in _look_up(name, function, kinds=kinds):
                if isinstance(variable.held, types.FunctionType):
                    pending.append(variable.held)
                elif not isinstance(variable.held, _FIXED) and _home(type(variable.held)) in homes | NOT_USERS:
                    found.setdefault(variable)
    return [each for each in found if has_still or each.name in stored or not isinstance(each.held, _STILL)]


def _look_up(name: str, function: types.FunctionType, *, kinds: dict[type, None]) -> Iterator[OutsideVariable]:
    """What a name in the code of a function may be, if it is a variable of the user's."""
    space, home = function.__globals__, sys.modules.get(function.__module__)
    if name in space and home is not None and vars(home) is space:
        value, place = space[name], _place(function, name)
        yield OutsideVariable(id(home), name, home, f"global variable {name!r}{place}")
        if isinstance(value, types.ModuleType | type) and _is_users(value):
            for other in [each for each in _names(function) if each in vars(value)]:
                text = f"{value.__name__}.{other}{_place(function, other)}"
                yield OutsideVariable(id(value), other, value, text)
    for kind in kinds:
        if name in vars(kind):
            text = f"class attribute {name!r} of {kind.__qualname__}{_place(function, name)}"
            yield OutsideVariable(id(kind), name, kind, text)


@cache
def _uses(code: types.CodeType) -> tuple[tuple[str, int, bool], ...]:
    """The globals, attributes and enclosing variables that a code, and those inside it, name: in which line, and
    whether they are given a value there.
    """
    found = [
        (str(each.argval), (each.positions and each.positions.lineno) or code.co_firstlineno, each.opname[0] == "S")
        for each in dis.get_instructions(code)
        if each.opname.partition("_")[2] in _NAMING and not str(each.argval).startswith("__")
    ]
    inside = (_uses(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return (*found, *(each for uses in inside for each in uses))


_NAMING = frozenset({"GLOBAL", "ATTR", "METHOD", "DEREF", "NAME"})
"""What follows LOAD_ or STORE_ in the instructions that name such a variable."""


def _names(function: types.FunctionType) -> dict[str, None]:
    return dict.fromkeys(name for name, _, _ in _uses(function.__code__))


def _place(function: types.FunctionType, name: str) -> str:
    """The file, and the line of a function that gives a variable a value, or names it, or else its own first line."""
    uses = [(not is_stored, line) for other, line, is_stored in _uses(function.__code__) if other == name]
    line = min(uses)[1] if uses else function.__code__.co_firstlineno
    return f" ({Path(function.__code__.co_filename).name}, line {line})"


def _own_functions(part: nn.Module) -> Iterator[types.FunctionType]:
    """A forward in the place of that of its class, and forward hooks."""
    hooks = [hook for name in _HOOKS for hook in (getattr(part, name, None) or {}).values()]
    for value in (vars(part).get("forward"), *hooks):
        if (function := _function_of(value)) is not None:
            yield function


def _function_of(value: Any) -> types.FunctionType | None:
    for name in ("__wrapped__", "__func__", "fget", "func"):
        value = getattr(value, name, value)
    return value if isinstance(value, types.FunctionType) else None


def _defaults(function: types.FunctionType) -> list[Any]:
    """Default values of its arguments that may change, by position and then by name."""
    every = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    return [each for each in every if not isinstance(each, _STILL)]


def _is_users(value: Any) -> bool:
    return _home(value) not in NOT_USERS


def _home(value: Any) -> str:
    """The package of a class, a function or a Python module."""
    name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None) or ""
    return name.partition(".")[0]
