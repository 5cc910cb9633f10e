"""Recipes that are functions of Python (Megatron-Bridge, torchtitan): the constants that one sets. Nothing is run.

A call that begins with a capital letter makes a section of its keywords; a function of the same file is followed, and
one that is imported from a file that lies on the disk. What another one returns or changes is named as not read.
"""

import ast
import operator
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CLASS = "_class"
"""The entry of a section that says whose keywords it has."""

MAX_DEPTH = 20
"""Functions that call each other."""
MAX_STATEMENTS = 10_000

_WITHOUT_EFFECT = (
    ast.Expr,
    ast.AnnAssign,
    ast.Pass,
    ast.Import,
    ast.ImportFrom,
    ast.Assert,
    ast.Raise,
    ast.FunctionDef,
)
"""Statements that change no configuration, beside calls and assignments."""
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv}
_COMPARISONS = {ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.is_, ast.IsNot: operator.is_not}
_LAYOUT = "pipeline_model_parallel_layout"
_READING = ("get_", "compute_", "count_", "print_", "log_", "check_", "validate_", "is_", "has_")
"""How names of functions begin that set nothing of what they are handed."""
_ASKING = ("getattr", "hasattr", "isinstance")
_CHANGING_METHODS = ("append", "extend", "insert", "pop", "remove", "update")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRecipe:
    """Configuration that a recipe's function returns."""

    sections: Mapping[str, Any]
    """By name; sections within sections."""
    unread: Sequence[str]
    """Statements and values that only running the function would tell."""
    imported: Sequence[str] = ()
    """Other files whose functions were followed."""


@dataclass(frozen=True, slots=True)
class _Unread:
    text: str


_GOES_ON = object()
"""In place of a value: nothing is returned yet."""
_KEEPING = re.compile(r"\b(?:factory|register|cache|lru_cache)(?:\(|$)")
"""Decorators that leave a function as it is."""


def read_recipe(text: str, *, function: str | None, source: str, place: Path | None = None) -> ReadRecipe:
    """The function's sections; raises ValueError with the source's name where there is none of that name.

    `place`: where the file lies, beside those that it imports; None: it does not lie here.
    """
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{source}: is not a Python file ({str(error)[:60]}); correct it") from None
    try:
        return _read(_Reader(module, place=place), function=function, source=source)
    except RecursionError:
        raise ValueError(f"{source}: an expression is nested too deeply; give a simpler recipe") from None


def _read(reader: "_Reader", *, function: str | None, source: str) -> ReadRecipe:
    names = [name for name in reader.functions if not name.startswith("_")]
    if function is None and len(names) == 1:
        function = names[0]
    if function is None or (home := reader.home(function)) is None or home[1] not in home[0].functions:
        raise ValueError(f"{source}: write {source}:FUNCTION; there are {', '.join(names[:40]) or 'no functions'}")
    found = home[0].call(home[1], given={})
    if not isinstance(found, dict):
        raise ValueError(f"{source}:{function}: returns no configuration that can be read; give another function")
    return ReadRecipe(
        sections=reader.without_unread(found, before=""),
        unread=tuple(dict.fromkeys(reader.unread)),
        imported=tuple(dict.fromkeys(reader.all.called)),
    )


@dataclass(slots=True)
class _ReadFiles:
    """What all files of a recipe share: those looked for (None: not there, or being read), and those called."""

    files: dict[Path, "_Reader | None"] = field(default_factory=dict)
    called: list[str] = field(default_factory=list)
    depth: int = 0
    count: int = 0


@dataclass(slots=True)
class _Reader:
    """Follows one file's functions, and those that it imports."""

    module: ast.Module
    place: Path | None
    all: _ReadFiles = field(default_factory=_ReadFiles)
    unread: list[str] = field(default_factory=list)
    functions: dict[str, ast.FunctionDef] = field(init=False)
    constants: dict[str, Any] = field(default_factory=dict)
    imports: dict[str, tuple[int, str]] = field(default_factory=dict)
    """By their names here: folders up (0: from any above), and the dotted name."""

    def __post_init__(self) -> None:
        last = {name: node for node in self.module.body for name in _bound(node)}
        self.functions = {name: node for name, node in last.items() if isinstance(node, ast.FunctionDef)}
        found = dict[str, set[tuple[int, str]]]()
        for node in ast.walk(self.module):
            if isinstance(node, ast.ImportFrom):
                within = f"{node.module}." if node.module else ""
                for each in node.names:
                    found.setdefault(each.asname or each.name, set()).add((node.level, within + each.name))
            elif isinstance(node, ast.Import):
                for each in node.names:
                    found.setdefault(each.asname or each.name, set()).add((0, each.name if each.asname else ""))
        self.imports = {name: min(origins) for name, origins in found.items() if len(origins) == 1}
        for node in self.module.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                value = self.value(node.value, {})
                self.constants |= {each.id: value for each in targets if isinstance(each, ast.Name)}
            elif not isinstance(node, (*_WITHOUT_EFFECT, ast.ClassDef)):
                self.skip(node, self.constants, said=_shown(node))
        for name in [name for name in self.constants if isinstance(last.get(name), ast.Import | ast.ImportFrom)]:
            del self.constants[name]

    def home(self, name: str, *, left: int = MAX_DEPTH) -> "tuple[_Reader, str] | None":
        """The file that defines a function or constant, and its name there; None: none that lies on the disk."""
        if name in self.functions or name in self.constants:
            return self, name
        head, dot, rest = name.partition(".")
        level, whole = self.imports.get(head, (0, ""))
        *module, inner = f"{whole}{dot}{rest}".split(".")
        above = list(self.place.absolute().parents) if self.place and whole and left else []
        for folder in above[level - 1 : level] if level else above:
            place = folder.joinpath(*module)
            for path in (place / "__init__.py", Path(f"{place}.py")) if all(map(str.isidentifier, module)) else ():
                if (other := self.opened(path)) is not None:
                    return other.home(inner, left=left - 1)
        return None

    def followed(self, name: str, names: Mapping[str, Any]) -> "tuple[_Reader, str] | None":
        """As `home`, but for what a parameter or variable hides."""
        return None if name.partition(".")[0] in names else self.home(name)

    def opened(self, path: Path) -> "_Reader | None":
        """Another file; what it does beside defining functions and constants is not said of the recipe."""
        if path not in self.all.files:
            self.all.files[path] = None
            with suppress(OSError, SyntaxError, ValueError, RecursionError, MemoryError):
                self.all.files[path] = found = _Reader(ast.parse(path.read_bytes()), place=path, all=self.all)
                found.unread = self.unread
        return self.all.files[path]

    def call(self, name: str, placed: Sequence[Any] = (), *, given: Mapping[str, Any]) -> Any:
        """Value that a function returns, evaluated without running it."""
        node = self.functions[name]
        if self.all.depth == MAX_DEPTH:
            raise ValueError(f"{name}(): more than {MAX_DEPTH} functions call each other; give a simpler recipe")
        self.unread += [f"@{_shown(each)}" for each in node.decorator_list if not _KEEPING.search(ast.unparse(each))]
        self.all.depth += 1
        try:
            found = self.run(node.body, self.parameters(node.args, placed, given=given))
            return None if found is _GOES_ON else found
        finally:
            self.all.depth -= 1

    def parameters(self, told: ast.arguments, placed: Sequence[Any], *, given: Mapping[str, Any]) -> dict[str, Any]:
        """Values of a function's parameters; of one without a value, that it was not read."""
        plain = [*told.posonlyargs, *told.args]
        stars = [place for place, each in enumerate(placed) if isinstance(each, _Unread) and each.text.startswith("*")]
        for place in stars[:1]:  # how many it stands for is not known
            placed = [*placed[:place], *[placed[place]] * (len(plain) + 1)]
        names: dict[str, Any] = {each.arg: _Unread(each.arg) for each in (*plain, *told.kwonlyargs)}
        defaults = zip(plain[len(plain) - len(told.defaults) :], told.defaults, strict=True)
        named = [*defaults, *zip(told.kwonlyargs, told.kw_defaults, strict=True)]
        more = {key: value for key, value in given.items() if key not in names}
        names |= {each.arg: self.value(value, {}) for each, value in named if value is not None}
        names |= {each.arg: value for each, value in zip(plain, placed, strict=False)}
        names |= {key: value for key, value in given.items() if key not in more}
        if told.vararg:
            rest = list(placed[len(plain) :])
            is_read = not any(isinstance(each, _Unread) for each in placed)
            names[told.vararg.arg] = rest if is_read else _Unread(told.vararg.arg)
        return {**names, told.kwarg.arg: more} if told.kwarg else names

    def run(self, body: Sequence[ast.stmt], names: dict[str, Any]) -> Any:
        """What is returned, or that nothing is."""
        for place, statement in enumerate(body):
            self.all.count += 1
            if self.all.count > MAX_STATEMENTS:
                raise ValueError(f"more than {MAX_STATEMENTS:,} statements; give a simpler recipe")
            found: Any = _GOES_ON
            match statement:
                case ast.Return(value=value):
                    return None if value is None else self.value(value, names)
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        self.assign(target, self.value(value, names), names=names)
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    self.assign(target, self.value(value, names), names=names)
                case ast.Expr(value=ast.Call() as call):
                    self.do(call, names)
                case ast.If(test=test):
                    if isinstance(chosen := self.value(test, names), _Unread):
                        found = self.pass_by(body[place:], names, said=f"if {chosen.text}: ...")
                    else:
                        found = self.run(statement.body if chosen else statement.orelse, names)
                case ast.Try(handlers=rest, finalbody=[]) if {type(each.body[-1]) for each in rest} <= {ast.Raise}:
                    found = self.run([*statement.body, *statement.orelse], names)
                case ast.FunctionDef(name=name):
                    names[name] = _Unread(f"{name}()")
                    if any(isinstance(node, ast.Attribute) and _is_set(node) for node in ast.walk(statement)):
                        self.skip(statement, names, said=_shown(statement))
                case ast.Import() | ast.ImportFrom():
                    own = [each for each in _bound(statement) if each in self.functions or each in self.constants]
                    names |= {each: _Unread(each) for each in own}
                case _ if not isinstance(statement, _WITHOUT_EFFECT):
                    found = self.pass_by(body[place:], names, said=_shown(statement))
            if found is not _GOES_ON:
                return found
        return _GOES_ON

    def pass_by(self, body: Sequence[ast.stmt], names: dict[str, Any], *, said: str) -> Any:
        """Name the first statement as not followed, and all behind it if it may return."""
        self.skip(body[0], names, said=said)
        if not any(isinstance(node, ast.Return) for node in ast.walk(body[0])):
            return _GOES_ON
        for each in body[1:]:
            self.skip(each, names, said=said)
        return _Unread(said)

    def skip(self, statement: ast.stmt, names: dict[str, Any], *, said: str) -> None:
        """Name a statement that is not followed: what it assigns, or hands to a call, is not known from there on."""
        self.unread.append(said)
        for node in ast.walk(statement):
            if isinstance(node, ast.Call):
                self.do(node, names, is_followed=False)
            elif isinstance(node, ast.Name | ast.Attribute) and not isinstance(node.ctx, ast.Load):
                self.assign(node, _Unread(said), names=names)

    def do(self, call: ast.Call, names: dict[str, Any], *, is_followed: bool = True) -> None:
        """A call for what it changes: of a function of this file, of one that is handed a layout, or of another."""
        name = ast.unparse(call.func)
        root, _, method = name.rpartition(".")
        values = [self.value(each, names) for each in call.args]
        sections = [each for each in values if isinstance(each, dict)]
        if is_followed and self.followed(name, names) is not None:
            self.value(call, names)
        elif method in _CHANGING_METHODS and isinstance(call.func, ast.Attribute) and root.partition(".")[0] in names:
            if method == "update" and isinstance(names[root.partition(".")[0]], dict):
                self.unread.append(f"what {name}() sets")
            else:
                self.assign(call.func.value, _Unread(_shown(call)), names=names)
        elif sections and name not in _ASKING:
            self.set_there(
                name, sections[0], handed=[*values, *(self.value(each.value, names) for each in call.keywords)]
            )
        elif isinstance(call.func, ast.Attribute) and isinstance(self.value(call.func.value, names), dict):
            self.unread += [] if method.startswith(_READING) else [f"what {name}() sets"]

    def set_there(self, name: str, section: dict[str, Any], *, handed: Sequence[Any]) -> None:
        """A function of another file, as `with_global_batch_size(cfg, 512)`, sets the field that its name states.

        To what it is handed beside the section, where that is all of its name. Whatever else it sets is not known.
        """
        short = name.rpartition(".")[2].lstrip("_")
        places = [section, *(each for each in section.values() if isinstance(each, dict))]
        fields = {key for place in places for key, value in place.items() if not isinstance(value, dict)} | {_LAYOUT}
        named = max((key for key in fields if f"_{short}".endswith(f"_{key}")), key=len, default="")
        is_plain = named == _LAYOUT or short in (f"set_{named}", f"with_{named}")
        if not is_plain:
            self.unread.append(f"what {name}() sets")
        if not named or short.startswith(_READING):
            return
        others = [each for each in handed if each is not section]
        is_told = is_plain and len(others) == 1 and isinstance(others[0], str | int | list)
        for place in [each for each in places if named in each] or [section]:
            place[named] = others[0] if is_told else _Unread(f"{name}()")

    def assign(self, target: ast.expr, value: Any, *, names: dict[str, Any]) -> None:
        """To a name, or to a field of a section, which begins where there was none."""
        if isinstance(target, ast.Name):
            names[target.id] = value
        elif isinstance(target, ast.Attribute) and (section := self.section(target.value, names)) is not None:
            section[target.attr] = value
        elif isinstance(target, ast.Tuple | ast.List):
            has_star = any(isinstance(part, ast.Starred) for part in target.elts)
            is_told = isinstance(value, list) and len(value) == len(target.elts) and not has_star
            unread = value if isinstance(value, _Unread) else _Unread(_shown(target))
            for part, each in zip(target.elts, value if is_told else [unread] * len(target.elts), strict=True):
                self.assign(part.value if isinstance(part, ast.Starred) else part, each, names=names)
        else:
            self.unread.append(_shown(target))

    def section(self, node: ast.expr, names: dict[str, Any]) -> dict[str, Any] | None:
        """The one that an expression names; what was not read becomes an open one."""
        if isinstance(node, ast.Name):
            held, key = names, node.id
            if key not in names and not isinstance(found := self.value(node, names), _Unread):
                names[key] = found
        elif isinstance(node, ast.Attribute) and (found := self.section(node.value, names)) is not None:
            held, key = found, node.attr
        else:
            return None
        value = held.setdefault(key, {})
        if isinstance(value, _Unread):
            self.unread.append(f"what {value.text} sets")
            value = held[key] = {CLASS: value.text}
        return value if isinstance(value, dict) else None

    def value(self, node: ast.expr, names: Mapping[str, Any]) -> Any:
        """A constant, a section, or what was not read."""
        unread = _Unread(_shown(node))
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                home = None if name in names else self.home(name)
                return names.get(name, unread) if home is None else home[0].constants.get(home[1], unread)
            case ast.Attribute(value=inner, attr=name):
                found = self.value(inner, names)
                return found.get(name, unread) if isinstance(found, dict) else unread
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                values = [self.value(part, names) for part in parts]
                return unread if any(isinstance(each, _Unread) for each in values) else values
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                found = self.value(inner, names)
                return -found if isinstance(found, int | float) else unread
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                found = self.value(inner, names)
                return unread if isinstance(found, _Unread) else not found
            case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
                pair = self.value(left, names), self.value(right, names)
                is_small = all(type(each) is int and abs(each) < 10**12 for each in pair)
                is_divided = not isinstance(sign, ast.FloorDiv) or pair[1]
                return _OPERATORS[type(sign)](*pair) if is_small and is_divided else unread
            case ast.Compare(left=left, ops=[sign], comparators=[right]) if type(sign) in _COMPARISONS:
                pair = self.value(left, names), self.value(right, names)
                return unread if any(isinstance(each, _Unread) for each in pair) else _COMPARISONS[type(sign)](*pair)
            case ast.Call():
                return self.made(node, names)
        return unread

    def made(self, call: ast.Call, names: Mapping[str, Any]) -> Any:
        """A section by the keywords of its class, what a function of this file returns, or a section handed through."""
        name = ast.unparse(call.func)
        given = {each.arg: self.value(each.value, names) for each in call.keywords if each.arg is not None}
        held = [self.value(each.value, names) for each in call.keywords if each.arg is None]
        self.unread += [f"{name}(**{each.text})" for each in held if isinstance(each, _Unread)]
        given = {key: value for each in held if isinstance(each, dict) for key, value in each.items()} | given
        values = list[Any]()
        for each in call.args:
            told = self.value(each.value, names) if isinstance(each, ast.Starred) else None
            values += told if isinstance(told, list) else [self.value(each, names)]
        if (home := self.followed(name, names)) is not None and home[1] in home[0].functions:
            other, own = home
            self.all.called += [str(other.place)] if other is not self else []
            return other.call(own, values, given=given)
        if name.rpartition(".")[2].lstrip("_")[:1].isupper():
            return {**given, CLASS: name}
        if sections := [each for each in values if isinstance(each, dict)]:
            self.set_there(name, sections[0], handed=[*values, *given.values()])
            return sections[0]
        inner = getattr(call.func, "value", None)
        if isinstance(inner, ast.Call) and isinstance(before := self.value(inner, names), _Unread):
            name = f"{before.text}.{name.rpartition('.')[2]}"
        if all(isinstance(each, str | int | float) for each in (*values, *given.values())) and not held:
            return _Unread(f"{name}({', '.join([*map(repr, values), *(f'{key}={given[key]!r}' for key in given)])})")
        return _Unread(_shown(call))

    def without_unread(self, section: Mapping[str, Any], *, before: str) -> dict[str, Any]:
        """The section's literal values; all others are named in `unread`."""
        kept: dict[str, Any] = {}
        for name, value in section.items():
            if isinstance(value, _Unread):
                self.unread.append(f"{before}{name} = {value.text}")
            elif isinstance(value, dict):
                kept[name] = self.without_unread(value, before=f"{before}{name}.")
            else:
                kept[name] = value
        return kept


def _bound(node: ast.stmt) -> list[str]:
    """Names that a statement gives a meaning, in any of its branches."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    parts = list(ast.walk(node))
    names = [each.id for each in parts if isinstance(each, ast.Name) and _is_set(each)]
    names += [each.name for each in parts if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
    return names + [each.asname or each.name for each in parts if isinstance(each, ast.alias)]


def _is_set(node: ast.AST) -> bool:
    return not isinstance(getattr(node, "ctx", None), ast.Load)


def _shown(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 80 else f"{text[:78]}…)"
