"""Who may share a process with whom, each asked of a fresh interpreter."""

import itertools
import json
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.long_runs import shortened

SOLVERS = ("ortools.sat.python.cp_model", "pulp", "highspy")
HEAVY = {
    "fastapi",
    "highspy",
    "numba",
    "ortools",
    "pulp",
    "rich",
    "solver_models",
    "starlette",
    "torch",
    "typer",
    "uvicorn",
}

SOLVE_CP_SAT = """
from ortools.sat.python import cp_model
model = cp_model.CpModel()
x, y = model.new_int_var(0, 10, "x"), model.new_int_var(0, 10, "y")
model.add(2 * x + 3 * y <= 12)
model.maximize(3 * x + 4 * y)
solver = cp_model.CpSolver()
solver.parameters.num_workers = 2
assert solver.solve(model) == cp_model.OPTIMAL
assert round(solver.objective_value) == 18, solver.objective_value
"""

SOLVE_HIGHS = """
import pulp
problem = pulp.LpProblem("toy", pulp.LpMaximize)
x, y = (pulp.LpVariable(name, 0, 10, cat="Integer") for name in "xy")
problem += 3 * x + 4 * y
problem += 2 * x + 3 * y <= 12
assert problem.solve(pulp.HiGHS(msg=False)) == pulp.LpStatusOptimal
assert round(pulp.value(problem.objective)) == 18, pulp.value(problem.objective)
"""


def run_python(code: str, *, root: Path) -> str:
    """Run code in a fresh interpreter at the repository's root and return what it printed."""
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"exit {done.returncode} from:\n{textwrap.indent(code, '    ')}\n{done.stderr}"
    return done.stdout


def loaded_packages(statement: str, *, root: Path) -> set[str]:
    """The top-level names in sys.modules after the statement."""
    report = "import json, sys; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    return set(json.loads(run_python(f"{statement}\n{report}", root=root)))


def all_of(package: str, modules: Iterable[str]) -> str:
    """The statement that imports them."""
    return "import " + ", ".join(f"{package}.{module}" for module in modules)


@pytest.mark.parametrize(
    "order", shortened([SOLVERS, SOLVERS[::-1]], whole=list(itertools.permutations(SOLVERS))), ids="-".join
)
def test_solvers_import_in_any_order(order: tuple[str, ...], repository_root: Path):
    """Tests that the three solver libraries share a process whichever comes first.

    `make test` takes two orders: of any two libraries, each comes first in one of them.
    """
    run_python("\n".join(f"import {name}" for name in order), root=repository_root)


@pytest.mark.parametrize("halves", [(SOLVE_CP_SAT, SOLVE_HIGHS), (SOLVE_HIGHS, SOLVE_CP_SAT)], ids=["sat-lp", "lp-sat"])
def test_both_solvers_solve_in_one_process(halves: tuple[str, str], repository_root: Path):
    """Tests that CP-SAT and HiGHS (through PuLP) each find the optimum after the other has run."""
    run_python("\n".join(halves), root=repository_root)


def test_import_stays_light(repository_root: Path):
    """Tests that the judge and the data come without a solver, a compiler, torch or a web framework."""
    judge, data = ("judge", "judge.times", "judge.case"), ("plan", "problem", "actions")
    profiles = all_of("profiles", ("model_profile", "cluster", "load"))
    assert loaded_packages(f"{all_of('planner', (*judge, *data))}\n{profiles}", root=repository_root) & HEAVY == set()


NO_COMPILER = """
import sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name in ("llvmlite", "numba"):
            raise ModuleNotFoundError(name=name)

sys.meta_path.insert(0, Nothing())
"""

JUDGED_PLAN = """
from planner.verify import verify
from tests.planner.builders import make_layer, make_link, make_plan, make_problem
problem = make_problem([make_layer("x"), make_layer("y")], [make_link("a b")], num_microbatches=2)
plan = make_plan(problem, ["x @ a", "y @ b"], {"a": "0F0 0F1 0I0 0W0 0B1", "b": "1F0 1B0 1F1 1I1 1W1"})
verdict = verify(problem, plan)
assert verdict.timeline is not None
print(verdict.timeline.makespan_ns, [violation.rule for violation in verdict.violations])
"""


def test_plans_are_played_without_a_compiler(repository_root: Path):
    """Tests that a plain installation, without numba, plays and judges a plan to the same nanosecond."""
    plain = run_python(NO_COMPILER + JUDGED_PLAN, root=repository_root)
    assert plain == run_python(JUDGED_PLAN, root=repository_root)
    assert plain.endswith(" []\n")


def test_verifying_needs_no_solver(repository_root: Path):
    """Tests that the simulator and the verifier come with the evaluator, and without a solver, torch or the web."""
    loaded = loaded_packages("import planner.simulation.simulate, planner.verify", root=repository_root)
    assert loaded & (HEAVY - {"numba", "solver_models"}) == set()


def test_planning_begins_without_the_slow_solvers(repository_root: Path):
    """Tests that CP-SAT and PuLP, which take a second to import, wait until a search asks for them."""
    loaded = loaded_packages("import planner.planning", root=repository_root)
    assert loaded & {"ortools", "pandas", "pulp"} == set()


def test_planner_init_is_empty(repository_root: Path):
    """Tests that importing one room of planner runs no other: planner/__init__.py holds nothing."""
    assert (repository_root / "planner" / "__init__.py").read_text(encoding="utf-8") == ""


def test_inner_floors_import_without_the_doors(repository_root: Path):
    """Tests that importing every module below api brings in no web, no terminal, and only two rooms torch."""
    walk = """
        import importlib, pkgutil
        for package in map(importlib.import_module, ("planner", "profiles", "solver_models")):
            for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
                if not module.name.startswith(("planner.execute", "profiles.measure")):
                    importlib.import_module(module.name)
    """
    loaded = loaded_packages(textwrap.dedent(walk), root=repository_root)
    assert loaded & {"api", "fastapi", "rich", "starlette", "torch", "typer", "uvicorn"} == set()


@pytest.mark.parametrize("module", ["program", "table.watch"])
def test_the_executor_comes_alone(module: str, repository_root: Path):
    """Tests that the executor brings torch and of this project planner only: no solver, no web framework, no profiles.

    It runs inside other people's repositories, where a folder called profiles may be theirs.
    """
    loaded = loaded_packages(f"import planner.execute.{module}", root=repository_root)
    assert loaded & (HEAVY - {"torch"} | {"api", "profiles", "pydantic"}) == set()
    assert {"planner", "torch"} & loaded == ({"planner"} if module == "table.watch" else {"planner", "torch"})


def test_what_a_measurement_becomes_needs_no_torch(repository_root: Path):
    """Tests that records, journals, link tables and profiles made of them can be had without torch."""
    statement = all_of("profiles.measure", ("assemble", "links", "link_run", "record"))
    assert loaded_packages(statement, root=repository_root) & HEAVY == set()


def test_the_measurement_imports_no_planner(repository_root: Path):
    """Tests that what is timed as I and W is given to the measurement, not imported by it."""
    statement = all_of("profiles.measure", ("measure_layers", "load_model", "link_worker"))
    assert loaded_packages(statement, root=repository_root) & {"api", "planner", "solver_models"} == set()


WITHOUT_TORCH = (
    "run.process_agreement",
    "__main__",
    "enter",
    "record.executed_timeline",
    "table.layout",
    "table.placement",
    "table.route_check",
    "table.routes",
    "table.watch",
    "table.wiring",
    "run.host_check",
)


def test_what_the_executor_decides_needs_no_torch(repository_root: Path):
    """Tests that ranks, checks, placement and messages can be had, and tested, without torch."""
    assert loaded_packages(all_of("planner.execute", WITHOUT_TORCH), root=repository_root) & HEAVY == set()
