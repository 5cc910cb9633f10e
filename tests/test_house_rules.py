"""The house rules as ratchets: each names every offender as file:line."""

import ast
import gc
import os
import re
import statistics
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import networkx
import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("api", "planner", "profiles", "solver_models")
MEASURED = (*PACKAGES, "benchmarks")

MAX_FUNCTION_LINES = 60
MAX_MEDIAN_LINES = 12
MAX_P90_LINES = 35
MAX_POSITIONAL = 2
MAX_PARAMETERS = 7
MAX_FILES = 20
MAX_PUBLIC_NAMES = 10

# Sets of words that several modules list, and how many. A number here only ever goes down.
WORDS_TWICE = {
    "B F I W": 9,
    "F I W": 2,
    "B I R": 2,
    "allow always never together": 2,
    "auto cpu cuda": 3,
    "bf16 fp16 fp32": 3,
    "bf16 fp8 fp8_block nvfp4": 3,
    "deepspeed megatron torchtitan": 2,
    "feasible infeasible optimal unknown": 2,
    "ignore skip stop": 2,
    "linear_key_head_dim linear_num_key_heads linear_num_value_heads linear_value_head_dim": 2,
}

# Modules with more public names than a module may have. A number here only ever goes down.
MANY_NAMES = {
    "api/cli/launch_commands.py": 11,
    "api/cli/options/arguments.py": 27,
    "api/cli/options/serving_arguments.py": 17,
    "api/cli/serving_commands.py": 12,
    "api/formatting.py": 13,
    "api/inputs.py": 16,
    "api/jobs/job.py": 14,
    "api/jobs/logs.py": 11,
    "api/jobs/request.py": 15,
    "api/profiling.py": 12,
    "api/running/healing.py": 18,
    "api/running/launching.py": 24,
    "api/service/access.py": 14,
    "api/service/handlers/health.py": 12,
    "api/service/handlers/plan_handlers.py": 20,
    "api/service/webhooks.py": 14,
    "api/service_commands.py": 13,
    "planner/bounds/device_packing/packing_bound.py": 11,
    "planner/bounds/order/windows_bound.py": 12,
    "planner/evidence/certificate.py": 13,
    "planner/execute/data/data_agreement.py": 11,
    "planner/execute/model/cut/cut_model.py": 11,
    "planner/execute/model/cut/trees.py": 11,
    "planner/execute/run/nvidia_smi.py": 13,
    "planner/decisions/unequal_shares/share_layouts.py": 11,
    "planner/judge/costs.py": 11,
    "planner/judge/rules/evidence.py": 12,
    "planner/judge/rules/groups.py": 13,
    "planner/judge/rules/lists.py": 13,
    "planner/judge/rules/options.py": 16,
    "planner/judge/rules/split_placement.py": 12,
    "planner/plan.py": 20,
    "planner/planning/runs/run.py": 11,
    "planner/replanning/slowdown_factors.py": 11,
    "profiles/discovery/hosts.py": 14,
    "profiles/estimates/operations.py": 11,
    "profiles/field_rules.py": 21,
    "profiles/importers/straggler.py": 11,
    "profiles/measure/families/transformers.py": 11,
    "profiles/measure/links.py": 15,
    "profiles/measure/model.py": 11,
    "profiles/model_profile.py": 14,
    "solver_models/instance.py": 14,
    "solver_models/exact_order/branch_and_bound.py": 15,
    "solver_models/exact_order/lower_bounds.py": 12,
    "solver_models/joint/partition_enumeration.py": 13,
    "solver_models/exact_order/propagation.py": 13,
    "solver_models/local_search/critical_path_search.py": 16,
    "solver_models/moves/annealing.py": 14,
    "solver_models/moves/neighbourhood.py": 18,
    "solver_models/partition/interval_kernels.py": 11,
    "solver_models/precompile.py": 12,
    "solver_models/search_params.py": 14,
    "solver_models/simulation/evaluator.py": 31,
}

# Compiled kernels that are longer than a function may be, with their present length. A length here only ever goes
# down: the test fails when a kernel grows past its entry, and also when it shrinks and the entry stays behind. It went
# up once, from 82: what a recorded play does most often stands in the loop itself, which is nine times as fast.
# Split into parts of 60 lines that take its arrays in tuples, it was 4 to 10 times as slow: numba counts the references
# of each array at every call.
LONG_KERNELS = {"solver_models/simulation/evaluator.py:_run": 79}

# Functions with more parameters than a function may have; the numbers only ever go down. These are what a user writes
# (`llama:layers=80,width=8192`).
MANY_PARAMETERS = {
    "profiles/measure/families/transformers.py:make_llama": 8,
    "profiles/measure/families/transformers.py:make_mixture": 9,
}

# planner's only two rooms that talk to the solvers; every other one is a judge and stands in the contract "judge".
ADVOCATES = {"decisions", "lowering", "planning"}

# What of the solvers' floor the simulator and the rules of published schedules play with.
PLAYED = {
    "planner/simulation/simulate.py": {
        "solver_models.device_rows",
        "solver_models.instance",
        "solver_models.simulation.recorded_play",
    },
    "planner/layout/device_groups.py": {"solver_models.device_rows"},
    "planner/baselines/pipeline.py": {"solver_models.device_rows"},
    "planner/baselines/greedy/capped_orders.py": {
        "solver_models.device_rows",
        "solver_models.simulation.evaluator",
        "solver_models.simulation.list_schedule",
        "solver_models.simulation.preferences",
    },
    "planner/baselines/encoded_orders.py": {
        "solver_models.device_rows",
        "solver_models.instance",
        "solver_models.simulation.columns",
        "solver_models.simulation.evaluator",
        "solver_models.simulation.list_schedule",
    },
    "planner/baselines/out_of_order/pipelined.py": {"solver_models.simulation.preferences"},
    "planner/baselines/spp/compared_orders.py": {"solver_models.simulation.preferences"},
    "planner/baselines/zero_bubble/weight_grads.py": {
        "solver_models.device_rows",
        "solver_models.simulation.weight_filling",
    },
}

# What also plays, without a compiler: orders that are given, and jobs that are put into one.
PLAYED_ANYWHERE = {"solver_models.simulation.in_order", "solver_models.simulation.job_list"}

# Orders become times in one compiled recurrence, in the judge's equations, and where there are no events to wait for.
RECURRENCES = {
    "solver_models/simulation/evaluator.py:_run": "whatever is searched, simulated and scheduled",
    "planner/judge/times.py:check_times": "the judge's equations, which share nothing",
    "solver_models/simulation/in_order.py:run_in_order": "given orders: of runs, without a compiler; of loops",
}

# Other functions in which the clocks of devices advance, and why. The list only ever gets shorter.
OTHER_RECURRENCES = {
    "solver_models/local_search/critical_path_search.py:heads": "the graph that judges moves; 5 times as fast as play",
    "solver_models/simulation/weight_filling.py:fill_orders": "fills waits that it knows beforehand, as events cannot",
    "solver_models/simulation/job_list.py:_list_jobs": "jobs of several sizes, parts of stages, actions as they ran",
    "solver_models/moves/dealt_annealing.py:_play_assignment": "a million 1F1B; twice as fast as a given order",
    "solver_models/recomputation/microbatch_orders.py:play_orders": "a million orders; 1.5 times as fast as heads",
    "planner/bounds/loop/loop_order.py:play": "1F1B in a loop, thousands of cases at once, without a compiler",
}

CLOCKS = {"free", "clock", "clocks", "free_ns", "link_free", "channel_free", "FREE", "CLOCK"}
"""Names of what advances, as variables or as columns."""

NO_RECURRENCES = {
    "planner/replanning/link_times.py": "when devices were free, as measured",
    "solver_models/simulation/event_heap.py": "the events of the evaluator",
}
"""Modules that note clocks and play nothing."""

# In two halves, so that this file does not offend against its own rule.
FOREIGN_ADDRESSES = tuple(
    head + tail
    for head, tail in [
        ("pypi", ".org"),
        ("files.python", "hosted"),
        ("download.pyt", "orch.org"),
        ("registry.", "npmjs"),
        ("/wo", "rk/"),
        ("/tmp/bash", "_jobs"),
        ("/opt/", "pypi"),
        ("/opt/", "wheels"),
        ("/ro", "ot/"),
        (".libr", "ary/"),
    ]
)
GENERATED = {"build", "dist", "out", "__pycache__", "node_modules"}

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef

BLOCKS = ("body", "orelse", "handlers", "finalbody", "cases")
"""The fields of a statement that hold statements, or what holds those."""
SIMPLE = (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Assert, ast.Raise)
"""Most statements, which hold no others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One function definition and where it stands."""

    path: str
    node: FunctionNode
    owners: tuple[ast.AST, ...]
    """The classes and functions around it, outermost first."""

    @property
    def lines(self) -> int:
        """From def to its last line, docstring included, decorators not."""
        assert self.node.end_lineno is not None
        return self.node.end_lineno - self.node.lineno + 1

    @property
    def is_method(self) -> bool:
        return bool(self.owners) and isinstance(self.owners[-1], ast.ClassDef)

    @property
    def is_kernel(self) -> bool:
        """Compiled by numba, which takes arguments by position (`solver_models.jit.kernel`)."""
        return self.path.startswith("solver_models/") and "kernel" in self.decorators

    @property
    def is_nested(self) -> bool:
        """Inside another function: often a callback, whose signature its caller dictates."""
        return any(isinstance(owner, FunctionNode) for owner in self.owners)

    @property
    def decorators(self) -> set[str]:
        """The last name of each decorator: `command` for @app.command("plan")."""
        calls = (
            decorator.func if isinstance(decorator, ast.Call) else decorator for decorator in self.node.decorator_list
        )
        return {ast.unparse(call).rpartition(".")[2] for call in calls}

    @property
    def num_positional(self) -> int:
        """Parameters that a caller may pass by position, self and cls aside."""
        count = len(self.node.args.posonlyargs) + len(self.node.args.args)
        return count - (self.is_method and "staticmethod" not in self.decorators)

    @property
    def num_parameters(self) -> int:
        """All parameters, self and cls aside."""
        return self.num_positional + len(self.node.args.kwonlyargs)

    def __str__(self) -> str:
        return f"{self.path}:{self.node.lineno} {self.node.name}"


def python_files(*folders: str) -> list[str]:
    """Every module under the folders, as paths from the root with forward slashes."""
    return sorted(path.relative_to(ROOT).as_posix() for folder in folders for path in (ROOT / folder).rglob("*.py"))


def javascript_files() -> list[str]:
    """Every script of the page and of pictures, as paths from the root."""
    return sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "api").rglob("*.js"))


def room(path: str) -> str:
    """The file or folder of a package that a module belongs to."""
    return Path(path).parts[1].removesuffix(".py")


@cache
def parse(path: str) -> ast.Module:
    return ast.parse(read(path), filename=path)


@cache
def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@cache
def nodes_of(path: str) -> list[ast.AST]:
    """Every node of a module, as `ast.walk` finds them, but in one loop: under a watch for branches calls are dear."""
    return nodes_below(parse(path))


def nodes_below(root: ast.AST) -> list[ast.AST]:
    """The node and all below it."""
    found = [root]
    for node in found:
        for value in vars(node).values():
            if isinstance(value, ast.AST):
                found.append(value)
            elif type(value) is list:
                found += [each for each in value if isinstance(each, ast.AST)]
    return found


@cache
def definitions(path: str) -> list[tuple[ast.ClassDef | FunctionNode, tuple[ast.AST, ...]]]:
    """Every class and function of a module, with the classes and functions around it."""
    return list(definitions_below(parse(path), ()))


def definitions_below(
    node: ast.AST, owners: tuple[ast.AST, ...]
) -> Iterator[tuple[ast.ClassDef | FunctionNode, tuple[ast.AST, ...]]]:
    for block in BLOCKS:
        for child in getattr(node, block, ()):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield child, owners
                yield from definitions_below(child, (*owners, child))
            elif not isinstance(child, SIMPLE):
                yield from definitions_below(child, owners)


def functions(*folders: str) -> list[Function]:
    return [function for path in python_files(*folders) for function in functions_of(path)]


@cache
def functions_of(path: str) -> list[Function]:
    """Every function of a module."""
    return [
        Function(path=path, node=node, owners=owners)
        for node, owners in definitions(path)
        if not isinstance(node, ast.ClassDef)
    ]


def text_files() -> Iterator[tuple[str, str]]:
    """Every text file of the repository that is not generated, with its text."""
    for folder, subfolders, names in os.walk(ROOT):
        subfolders[:] = [
            name
            for name in subfolders
            if name == ".ci" or not (name.startswith(".") or name in GENERATED or name.endswith(".egg-info"))
        ]
        for name in names:
            path = Path(folder, name)
            if name == ".git":  # in a second work tree a file that names the first
                continue
            try:
                yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue


def imported_modules(path: str) -> Iterator[tuple[int, str]]:
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.lineno, node.module


def imported_names(path: str) -> Iterator[tuple[int, str]]:
    """What a module imports, by whole names: `planner.plan.Plan`."""
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def configuration() -> dict[str, Any]:
    """What pyproject.toml says."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def assert_none(offenders: list[str], rule: str) -> None:
    if offenders:
        listing = "\n  ".join(offenders)
        pytest.fail(f"{rule}\n  {listing}\n({len(offenders)} in all)", pytrace=False)


@pytest.fixture(autouse=True, scope="module")
def trees_are_no_garbage() -> Iterator[None]:
    """Looking for garbage among the trees takes twice as long as parsing; other files' tests shall not do so either."""
    gc.disable()
    yield
    gc.enable()
    for kept in (read, parse, nodes_of, definitions, functions_of):
        kept.cache_clear()


def test_no_function_is_long():
    """Tests that no function is over 60 lines, the listed kernels aside."""
    offenders = [
        f"{function}: {function.lines} lines"
        for function in functions(*MEASURED)
        if function.lines > MAX_FUNCTION_LINES
        and not (function.is_kernel and f"{function.path}:{function.node.name}" in LONG_KERNELS)
    ]
    assert_none(offenders, f"A function has at most {MAX_FUNCTION_LINES} lines; split these:")


def test_long_kernels_only_shrink():
    """Tests that each listed kernel exists and has exactly the length it is listed with."""
    lengths = {f"{function.path}:{function.node.name}": function.lines for function in functions("solver_models")}
    offenders = [
        f"{name}: listed with {listed} lines, has {lengths.get(name, 'no definition')}"
        for name, listed in LONG_KERNELS.items()
        if lengths.get(name) != listed
    ]
    assert_none(offenders, "LONG_KERNELS only shrinks; shorten the kernel or lower its entry:")


@pytest.mark.parametrize(("decile", "limit"), [(5, MAX_MEDIAN_LINES), (9, MAX_P90_LINES)], ids=["median", "p90"])
def test_functions_are_short(decile: int, limit: int):
    """Tests that the median and the ninetieth percentile of all function lengths stay low."""
    everything = sorted(functions(*MEASURED), key=lambda function: -function.lines)
    if len(everything) < 10:
        pytest.skip("fewer than ten functions")
    length = statistics.quantiles((function.lines for function in everything), n=10)[decile - 1]
    longest = [f"{function}: {function.lines} lines" for function in everything[:15]]
    if length > limit:
        assert_none(longest, f"Decile {decile} of function lengths is {length:.1f}, allowed {limit}; the longest are:")


def test_folders_are_small():
    """Tests that no folder of the product holds more modules, Python and JavaScript, than one reads at a glance."""
    modules = [path for path in python_files(*PACKAGES) if not path.endswith("__init__.py")] + javascript_files()
    folders = Counter(str(Path(path).parent) for path in modules)
    assert_none(
        [f"{folder} has {count} modules" for folder, count in folders.items() if count > MAX_FILES],
        f"A folder has at most {MAX_FILES} modules:",
    )


def test_modules_have_few_public_names():
    """Tests that modules offer few names, and that those that offer more only ever offer less."""
    many = {
        path: count
        for path in python_files(*PACKAGES)
        if (count := sum(1 for _ in public_names(parse(path)))) > MAX_PUBLIC_NAMES
    }
    offenders = [
        f"{path} has {many.get(path, 0)} public names, listed {MANY_NAMES.get(path, 0)}"
        for path in sorted(many.keys() | MANY_NAMES)
        if many.get(path, 0) != MANY_NAMES.get(path, 0)
    ]
    assert_none(offenders, f"A module has at most {MAX_PUBLIC_NAMES} public names:")


def public_names(module: ast.Module) -> Iterator[str]:
    """The names that a module defines for others."""
    for statement in module.body:
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names = [name]
            case ast.Assign(targets=targets):
                names = [target.id for target in targets if isinstance(target, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name)):
                names = [name]
            case _:
                names = []
        yield from (name for name in names if not name.startswith("_"))


def test_modules_do_not_import_in_circles():
    """Tests that no module needs itself, whether at its import, when it is called, or for its types alone."""
    modules = {module_name(path): path for path in python_files(*PACKAGES)}
    graph = networkx.DiGraph(
        (name, imported)
        for name, path in modules.items()
        for _, whole in imported_names(path)
        for imported in [whole if whole in modules else whole.rpartition(".")[0]]
        if imported in modules and imported != name
    )
    circles = [sorted(circle) for circle in networkx.strongly_connected_components(graph) if len(circle) > 1]
    assert_none([" <-> ".join(circle) for circle in circles], "Modules import each other in a circle:")


def module_name(path: str) -> str:
    """`planner.plan` for `planner/plan.py`, `planner.bounds` for its `__init__.py`."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def test_no_utils():
    """Tests that no file is called utils: a file is named for the one thing it does."""
    offenders = [f"{path}:1" for path in python_files(*MEASURED, "tests") if Path(path).stem in {"utils", "util"}]
    assert_none(offenders, "Name the file for what it does:")


def test_only_the_command_line_prints():
    """Tests that print is called nowhere in the packages but in api/cli/."""
    offenders = [
        f"{path}:{node.lineno}"
        for path in python_files(*PACKAGES)
        if not path.startswith("api/cli/") and "print" in read(path)
        for node in nodes_of(path)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert_none(offenders, "Only api/cli/ prints; return the text instead:")


SAYS_WHAT = re.compile(r'def test_[^"]*?:\n +"""Tests that ')
"""Matches no more often than there are such tests: files where it matches as often as there are tests pass unparsed."""


def test_every_test_says_what_it_tests():
    """Tests that every test has a docstring that begins with these two words."""
    offenders = [
        str(function)
        for path in python_files("tests")
        if read(path).count("def test_") > len(SAYS_WHAT.findall(read(path)))
        for function in functions_of(path)
        if function.node.name.startswith("test_")
        and not function.is_nested
        and not (ast.get_docstring(function.node) or "").startswith("Tests that ")
    ]
    assert_none(offenders, 'A test\'s docstring begins "Tests that ":')


ALL_CLOCKS = re.compile(r'setattr\((?:"(?:[\w.]+\.)?time\.\w+"|(?:[\w.]+\.)?time, )')


def test_no_test_sets_the_clocks_of_all_threads():
    """Tests that a test gives one module another clock: event loops of services go by those of `time` itself."""
    offenders = [path for path in python_files("tests") if ALL_CLOCKS.search(read(path))]
    assert_none(offenders, "Call tests.own_time.tell_time, and mention nothing else of it:")


def test_no_registry_and_no_machine():
    """Tests that no file names a package registry's host or a path of the machine it was written on."""
    offenders = [
        f"{path}:{number} {address}"
        for path, text in text_files()
        for address in FOREIGN_ADDRESSES
        if address in text
        for number, line in enumerate(text.splitlines(), start=1)
        if address in line
    ]
    assert_none(offenders, "The repository stands alone; take these addresses out:")


def test_public_definitions_are_documented():
    """Tests that every public class, function and method of the four packages has a docstring."""
    offenders = [
        f"{path}:{node.lineno} {node.name}"
        for path in python_files(*PACKAGES)
        for node, owners in definitions(path)
        if all(isinstance(owner, ast.ClassDef) and not owner.name.startswith("_") for owner in owners)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]
    assert_none(offenders, "Say in one sentence what it is or does:")


def test_columns_have_names():
    """Tests that tables are read by the names of their columns: in kernels no column is a number, elsewhere none but
    0 and 1. The judge, which shares nothing with the core, keeps its own tables of F, I and W.
    """
    offenders = []
    for path in python_files("planner", "profiles", "solver_models"):
        if path.startswith("planner/judge/"):
            continue
        kernels = {node for function in functions_of(path) if function.is_kernel for node in nodes_below(function.node)}
        for node in nodes_of(path):
            if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
                numbers = [element.value for element in node.slice.elts if is_number(element)]
                most = 0 if node in kernels else 1
                offenders += [f"{path}:{node.lineno} {ast.unparse(node)}" for number in numbers if number > most]
    assert_none(offenders, "Name the column, in the module or in solver_models/simulation/columns.py:")


def is_number(node: ast.expr) -> bool:
    """Whether the node is an integer written out."""
    return isinstance(node, ast.Constant) and type(node.value) is int


def test_keyword_only_beyond_two():
    """Tests that at most two parameters may be passed by position; kernels and callbacks aside."""
    offenders = [
        f"{function}: {function.num_positional} positional parameters"
        for function in functions(*PACKAGES)
        if function.num_positional > MAX_POSITIONAL
        and not (function.is_kernel or function.is_nested)
        and function.node.name not in {"__exit__", "__aexit__"}
    ]
    assert_none(offenders, "Put a * after the second parameter:")


def test_sets_of_words_stand_once():
    """Tests that no two modules list the same words, so that a word more is one edit, but for those listed here."""
    found: dict[frozenset[str], set[str]] = {}
    for path in python_files(*PACKAGES):
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Tuple | ast.List | ast.Set) and len(node.elts) > 2:
                words = [each.value for each in node.elts if isinstance(each, ast.Constant)]
                if len(words) == len(node.elts) and all(isinstance(word, str) for word in words):
                    found.setdefault(frozenset(words), set()).add(path)
    twice = {" ".join(sorted(words)): len(paths) for words, paths in found.items() if len(paths) > 1}
    offenders = [
        f"{words}: in {twice.get(words, 1)} modules, listed {WORDS_TWICE.get(words, 1)}"
        for words in sorted(twice.keys() | WORDS_TWICE)
        if twice.get(words) != WORDS_TWICE.get(words)
    ]
    assert_none(offenders, "Words among which something chooses stand in one module:")


def test_few_parameters():
    """Tests that functions have at most seven parameters, and the listed ones exactly theirs."""
    counts = {
        f"{function.path}:{function.node.name}": function.num_parameters
        for function in functions("api", "planner", "profiles", "solver_models", "benchmarks")
        if function.num_parameters > MAX_PARAMETERS
    }
    offenders = [
        f"{name}: {counts.get(name, 'not above')}, listed with {MANY_PARAMETERS.get(name, 'nothing')}"
        for name in sorted(counts.keys() | MANY_PARAMETERS)
        if counts.get(name) != MANY_PARAMETERS.get(name)
    ]
    assert_none(offenders, f"A function has at most {MAX_PARAMETERS} parameters; group those that belong together:")


def test_only_advocates_import_the_solvers_floor():
    """Tests that in planner only lowering and planning import solver_models, and what plays its own rules."""
    offenders = [
        f"{path}:{line} imports {module}"
        for path in python_files("planner")
        if room(path) not in ADVOCATES and "solver_models" in read(path)
        for line, module in imported_modules(path)
        if module.partition(".")[0] == "solver_models" and module not in PLAYED_ANYWHERE | PLAYED.get(path, set())
    ]
    assert_none(offenders, "The judge does not read the advocate's notes:")


def test_orders_become_times_in_few_places():
    """Tests that the clocks of devices advance where the lists say, and nowhere else."""
    listed = RECURRENCES | OTHER_RECURRENCES
    known = {f"{function.path}:{function.node.name}" for function in functions("planner", "solver_models")}
    modules = NO_RECURRENCES.keys() | {name.partition(":")[0] for name in listed}
    offenders = [f"{name} is listed and is not there" for name in listed if name not in known]
    offenders += [
        f"{function} advances a clock"
        for function in functions("planner", "solver_models")
        if function.path not in modules and any(map(is_clock, stored_in(function.node)))
    ]
    assert_none(offenders, "Orders become times in one recurrence:")


# What layers cost and hold as a profile states it, and what stages on devices do, as `CostModel` adds it up. Beside
# `planner/layout/` only these modules ask for it; others ask the laid-out plan. The lists only ever get shorter.
LAYER_COSTS = """layer_work bytes_at wider fused_backward_ns recompute_kinds shardable_bytes_at synchronised_bytes
synchronised_bytes_at gathered_bytes gathered_bytes_at is_trainable"""
LAYER_COST_READERS = {
    "api/auditing/audited_problem.py",
    "api/viewer/content.py",
    "planner/baselines/layer_pipe/plans.py",
    "planner/baselines/partitions.py",
    "planner/baselines/spp/division.py",
    "planner/baselines/uneven_cores.py",
    "planner/bounds/cases/case_tables.py",
    "planner/bounds/loop/loop_layers.py",
    "planner/bounds/minimum_costs.py",
    "planner/bounds/recompute_bound.py",
    "planner/bounds/shared_layers.py",
    "planner/decisions/sharded_optimizer.py",
    "planner/fidelity/calibration.py",
    "planner/fidelity/group_costs.py",
    "planner/lowering.py",
    "planner/planning/complete/complete_search.py",
    "planner/planning/improvers/branch_and_check.py",
    "planner/planning/starts/class_pipelines.py",
    "planner/planning/starts/looped_shapes.py",
    "planner/problem.py",
    "planner/replanning/as_measured.py",
}
STATES = "state_bytes"
STATE_READERS = {
    "api/auditing/audited_problem.py",
    "planner/bounds/cases/case_tables.py",
    "planner/bounds/first_backward.py",
    "planner/bounds/group_counts.py",
    "planner/bounds/heaviest_path.py",
    "planner/bounds/shared_layers.py",
    "planner/evidence/certificate.py",
    "planner/fidelity/group_costs.py",
    "planner/problem.py",
    "planner/replanning/migration.py",
}
STAGE_COSTS = "stage_cost least_cost planned_ns part_cost static_bytes_of traffic"
STAGE_COST_READERS = {
    "planner/baselines/applicability.py",
    "planner/baselines/layer_pipe/plans.py",
    "planner/baselines/listed.py",
    "planner/bounds/cases/case_tables.py",
    "planner/bounds/order/schedule_bound.py",
    "planner/bounds/order/stage_replicas.py",
    "planner/dealt_stages.py",
    "planner/decisions/unequal_shares/move.py",
    "planner/export/torch_table.py",
    "planner/fidelity/calibration.py",
    "planner/fidelity/overhead.py",
    "planner/planning/complete/complete_question.py",
    "planner/planning/fused_backwards.py",
    "planner/planning/starts/dealt_layouts.py",
    "planner/replanning/diagnosis.py",
    "planner/replanning/link_times.py",
}


@pytest.mark.parametrize(
    ("figures", "packages", "listed"),
    [
        (LAYER_COSTS, ("planner", "api"), LAYER_COST_READERS),
        (STATES, ("planner", "api"), STATE_READERS),
        (STAGE_COSTS, ("planner",), STAGE_COST_READERS),
    ],
)
def test_costs_are_read_in_few_places(figures: str, packages: tuple[str, ...], listed: set[str]):
    """Tests that the listed modules ask for costs of layers, or of stages, beside the layout, and no others."""
    found = {
        path
        for path in python_files(*packages)
        if not path.startswith(("planner/layout/", "planner/judge/"))
        and any(isinstance(node, ast.Attribute) and node.attr in figures.split() for node in nodes_of(path))
    }
    offenders = [f"{path}: {'not listed' if path in found else 'listed for nothing'}" for path in found ^ listed]
    assert_none(sorted(offenders), "Ask planner/layout/stage_replicas.py for the laid-out plan:")


def stored_in(function: FunctionNode) -> Iterator[ast.expr]:
    """What a function assigns to, or adds to."""
    for node in nodes_below(function):
        match node:
            case ast.Assign(targets=targets):
                yield from targets
            case ast.AugAssign(target=target, op=ast.Add()):
                yield target


def is_clock(target: ast.expr) -> bool:
    """Whether it is an entry of clocks, or the clock of something."""
    match target:
        case ast.Subscript(value=ast.Name(id=name) | ast.Attribute(attr=name), slice=place):
            return bool(CLOCKS & {name, *(each.id for each in ast.walk(place) if isinstance(each, ast.Name))})
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            return owner != "self" and name in CLOCKS
    return False


def test_contract_lists_every_judge():
    """Tests that the import contract names every room of planner but lowering and planning, and no other."""
    contracts = configuration()["tool"]["importlinter"]["contracts"]
    (listed,) = (contract["source_modules"] for contract in contracts if contract["id"] == "judge")
    rooms = {room(path) for path in python_files("planner")} - ADVOCATES - {"__init__"}
    assert sorted(listed) == sorted(f"planner.{name}" for name in rooms)


def test_every_package_is_listed():
    """Tests that pyproject.toml installs each folder that holds Python, and no other."""
    folders = {Path(path).parent.as_posix().replace("/", ".") for path in python_files(*PACKAGES)}
    assert sorted(configuration()["tool"]["setuptools"]["packages"]) == sorted(folders)


# File names and class names that stand for one idea on several floors, with the idea.
SAME_IDEA_FILES = {
    "costs.py": "the core's reading of the contract and the judge's",
    "device_arrangement.py": "devices lined up by recursive cuts of the links",
    "device_groups.py": "which devices act as one",
    "evidence.py": "a plan's evidence, written and judged",
    "lower_bounds.py": "floors under every order: quick ones, and the schedule bound",
    "move.py": "a decision's part of the search",
    "option.py": "what a decision excludes",
    "memory.py": "bytes on a device: measured, modelled, bounded, judged",
    "plans.py": "the plans of a baseline that builds whole plans",
    "progress.py": "a run's progress, and how it is shown",
    "recomputing.py": "which stages recompute",
    "routes.py": "the paths of transfers",
    "samples.py": "how many samples a microbatch has",
    "driver.py": "the runs of the candidates of a question",
    "split_placement.py": "W or half of I on another device",
    "stage_replicas.py": "replicas of stages, bounded and judged",
}
SAME_IDEA_CLASSES = {
    "Audit": "what was found out, and what the service says of it",
    "Job": "as the store knows it, and as the service tells of it",
    "Covering": "a covering programme, as its user sees it and as it is solved",
    "CudaClock": "the clock of a CUDA stream; the executor imports nothing of profiles",
    "HeadsAndTails": "earliest starts and what must follow",
    "HostClock": "the clock of the host; the executor imports nothing of profiles",
    "Verdict": "what the judge found, and what the service says of it",
    "Route": "a path through the network; the judge shares no code",
    "StageReplica": "one replica of one stage",
    "TimeWindows": "heads and tails of the actions of every order in time",
    "Transfer": "what one stage replica sends another for every microbatch",
}


def repeated(places: dict[str, list[str]], listed: dict[str, str]) -> list[str]:
    """Names in several places that are not listed, and names that are listed and no longer in several places."""
    unlisted = [
        f"{name}: {', '.join(found)}" for name, found in places.items() if len(found) > 1 and name not in listed
    ]
    return unlisted + [f"{name}: listed, but not repeated" for name in listed if len(places.get(name, [])) < 2]


def test_file_names_are_unique():
    """Tests that no two modules have the same file name, the listed ideas on several floors aside."""
    places: dict[str, list[str]] = {}
    for path in python_files(*PACKAGES):
        if not Path(path).name.startswith("__"):
            places.setdefault(Path(path).name, []).append(path)
    assert_none(repeated(places, SAME_IDEA_FILES), "One file name, one idea; rename, or list the idea they share:")


def test_class_names_are_unique():
    """Tests that no class name occurs twice, the listed ideas on several floors aside."""
    places: dict[str, list[str]] = {}
    for path in python_files(*PACKAGES):
        for node, _ in definitions(path):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{path}:{node.lineno}")
    assert_none(repeated(places, SAME_IDEA_CLASSES), "One class name, one meaning; rename, or list what they share:")


# Words of a private language that identifiers and docstrings no longer use, with the field's terms in their place
# (stage replica, device order, transfer, assignment, lower bound, temperature, objective, direction or path ...).
DIALECT = """lane lanes word words seat seats seated seating seatings hand hands floor floors apart deal dealt dealing
heat heats turn turns leg legs flow flows game games waste way ways parcel parcels knob knobs glue glued mates blame
rungs gains course courses census book books herald wishes climb worth roster courier news residence anatomy intake
trip trips"""
DIALECT_OF_CLASSES = "said asked wanted telling whereabouts again"

# Identifiers that keep such a part, and why.
KEPT_NAMES = {
    "recompute_in_turn, dealing, turns": "fields of documents",
    "dealing_unasked, dealing_once, dealing_replicas, dealing_devices, dealing_order": "names of rules in verdicts",
    "RecomputeInTurn": "the option of recompute_in_turn",
    "way_part_bytes, worth_at_least, worth_at_most": "keys of reports",
    "one_way, both_ways_ns": "keys of measured link tables",
    "bound_turn, BoundTurnParams, turn_s, turn_actions, turn_plays": "search parameters",
    "stale_turns, round_turns, every_turns": "search parameters",
    "heats, floor_heats, near_heats, polish_heat, polish_heats": "search parameters",
    "floor_ticks, floor_devices, most_floors, min_ways, max_ways, way_actions, climb_s": "search parameters",
    "deal, Dealing": "documented functions and classes of planner.dealing, and a field of Training",
    "nvlink_lanes, _NVLINK_LANE_BYTES_PER_S": "NVLink's own term",
    "floor": "math.floor",
}
# Lanes are NVLink's own term, words a shell's, and `FloorDiv` Python's.
KEPT_IN_FILES = {
    "api/discovery/nvidia_host.py": {"lanes"},
    "profiles/configurations/argument_forms.py": {"word", "words", "read_words", "training_words"},
    "profiles/configurations/python_recipe.py": {"FloorDiv"},
    "profiles/configurations/shell_script.py": {"word", "words", "_first_word", "training_words", "FloorDiv"},
    "profiles/discovery/hosts.py": {"lanes"},
    "profiles/discovery/nvlink.py": {"lanes", "lane_bytes_per_s"},
}

# Words that docstrings do not use; the others of the dialect are ordinary English there.
DIALECT_IN_PROSE = re.compile(
    r"(?i)\b(?:lanes?|seats?|seated|seatings?|heats?|games?|wastes?|legs?|trips?|parcels?|knobs?|glued?|mates|rungs|census"
    r"|herald|roster|courier|whereabouts|floors?(?!\())\b"
)
PROSE_KEPT = {
    "planner/execute/run/nvidia_smi.py",
    "profiles/discovery/hosts.py",
    "profiles/discovery/nvlink.py",
}  # lanes of NVLink and PCIe

PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")


def identifiers_of(path: str) -> Iterator[tuple[int, str, bool]]:
    """Every name that a module defines or uses but for modules it imports, its line, and whether it names a class."""
    for node in nodes_of(path):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Name):
            yield line, node.id, False
        elif isinstance(node, ast.Attribute):
            yield line, node.attr, False
        elif isinstance(node, ast.arg | ast.keyword) and node.arg is not None:
            yield line, node.arg, False
        elif isinstance(node, FunctionNode | ast.ClassDef):
            yield line, node.name, isinstance(node, ast.ClassDef)


SCRIPT_TOKEN = re.compile(r"""//[^\n]*|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|[A-Za-z_$][\w$]*|.""", re.DOTALL)
TEMPLATE_TOKEN = re.compile(r"\\.|\$\{|`|[^\\$`]+|.", re.DOTALL)


def script_identifiers(text: str) -> Iterator[tuple[int, str]]:
    """The names in a script and their lines, without comments and strings; what stands in `${}` counts."""
    opened, at = [], 0
    while at < len(text):
        is_text = bool(opened) and opened[-1] == "`"
        found = (TEMPLATE_TOKEN if is_text else SCRIPT_TOKEN).match(text, at)
        assert found is not None
        token = found[0]
        if (is_text and token == "`") or (not is_text and token == "}"):
            opened.pop()
        elif token in ("`", "${") or (token == "{" and not is_text):
            opened.append(token)
        elif not is_text and (token[0].isalpha() or token[0] in "_$"):
            yield text.count("\n", 0, at) + 1, token
        at = found.end()


def modules_imported(path: str) -> set[str]:
    """The names that stand for modules in a file: modules keep their names."""
    return {
        alias.asname or alias.name
        for node in nodes_of(path)
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
        if (ROOT / node.module.replace(".", "/") / f"{alias.name}.py").is_file()
    }


def test_identifiers_use_the_fields_terms():
    """Tests that no part of an identifier of the product is a word of the dialect, the listed names aside."""
    kept = {name for names in KEPT_NAMES for name in names.split(", ")}
    banned, banned_in_classes = set(DIALECT.split()), {*DIALECT.split(), *DIALECT_OF_CLASSES.split()}
    offenders = {
        f"{path}:{line} {name}"
        for path in python_files(*PACKAGES)
        for line, name, is_class in identifiers_of(path)
        if name not in kept
        and (banned_in_classes if is_class else banned) & {part.lower() for part in PART.findall(name)}
        and name not in KEPT_IN_FILES.get(path, set()) | modules_imported(path)
    }
    assert_none(sorted(offenders), "Use the field's term, or list the name with its reason:")


SCRIPT_NAMES_KEPT = {"floor", "legs", "dealt"}
"""Math.floor, and keys of the picture's content and of reports on traces."""


def test_scripts_use_the_fields_terms():
    """Tests that no part of a script's identifiers is a word of the dialect, the listed names aside."""
    offenders = {
        f"{path}:{line} {name}"
        for path in javascript_files()
        for line, name in script_identifiers(read(path))
        if name not in SCRIPT_NAMES_KEPT and set(DIALECT.split()) & {part.lower() for part in PART.findall(name)}
    }
    assert_none(sorted(offenders), "Use the field's term, or list the name with its reason:")


def test_names_of_scripts_are_found():
    """Tests that names in code and within templates are found, and words in comments and strings are not."""
    text = 'const a = "lane"; // leg\nlet b = `turn ${c ? `word ${d}` : {e: 1}.e} seat`;'
    assert list(script_identifiers(text)) == [
        (1, "const"), (1, "a"), (2, "let"), (2, "b"), (2, "c"), (2, "d"), (2, "e"), (2, "e"),
    ]  # fmt: skip


def test_docstrings_use_the_fields_terms():
    """Tests that no docstring of the product uses a word of the dialect."""
    offenders = [
        f"{path}:{node.lineno} {found.group()}"
        for path in python_files(*PACKAGES)
        if path not in PROSE_KEPT
        for node in nodes_of(path)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for found in DIALECT_IN_PROSE.finditer(re.sub(r"`[^`]*`", "", node.value.value))
    ]
    assert_none(offenders, "Use the field's term:")


FILLERS = """
a an the of to in on for and or is are was its it this that with by as at be from what which who how where when if one
each every all
"""
"""Say nothing by themselves."""


def stems(text: str) -> set[str]:
    """Its words without endings and fillers."""
    words = (word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", text))
    return {re.sub(r"(?:ies|es|s|ed|ing)$", "", word) for word in words if word not in FILLERS.split()}


def test_docstrings_say_more_than_names():
    """Tests that no class and no function has a docstring whose words are all in its name."""
    offenders = [
        f"{path}:{node.lineno} {node.name}: {docstring}"
        for path in python_files(*PACKAGES)
        for node in nodes_of(path)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if (docstring := ast.get_docstring(node)) and stems(docstring) <= stems(node.name)
    ]
    assert_none(offenders, "Say what its name does not:")


def test_a_docstring_that_repeats_a_name_is_found():
    """Tests that endings, fillers and the order of words do not matter."""
    assert stems("All of the transfers.") <= stems("all_transfers")
    assert not stems("Those of activations.") <= stems("all_transfers")
