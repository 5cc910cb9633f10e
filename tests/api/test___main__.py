"""`pipeplan` and `python -m api`: tests of api/__main__.py."""

import subprocess
import sys
from pathlib import Path

import pytest


def test_interrupt_while_the_command_loads(repository_root: Path):
    """Tests that Ctrl+C in the midst of the imports gives 130 and one line, no traceback."""
    stop = "import os, signal, sys; sys.addaudithook(lambda name, given: name == 'import' and given[0] == 'typer' and "
    run = "os.kill(os.getpid(), signal.SIGINT)); import runpy; runpy.run_module('api', run_name='__main__')"
    done = subprocess.run((sys.executable, "-c", stop + run), cwd=repository_root, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\nerror: interrupted\n")


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (("--help",), {"networkx", "numpy", "planner.plan", "pydantic", "rich", "solver_models"}),
        (("plan", "--help-all"), {"networkx", "numpy", "planner.plan", "rich", "solver_models"}),
        (("verify", "examples/two-ranks.json"), {"numpy.ma", "planner.baselines", "planner.planning", "rich.live"}),
        (("simulate", "examples/two-ranks.json"), {"planner.baselines", "planner.planning", "rich.live"}),
        (("explain", "examples/two-ranks.json"), {"planner.planning", "rich.live"}),
    ],
    ids=lambda given: given[0] if isinstance(given, tuple) else "",
)
def test_start_is_light(arguments: tuple[str, ...], heavy: set[str], repository_root: Path):
    """Tests that the help loads nothing but typer, and that a plan is judged without a solver, compiler or search."""
    code = "import sys; from api.cli import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    command = (sys.executable, "-c", code, *arguments)
    done = subprocess.run(command, cwd=repository_root, capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert "api" in loaded
    assert not loaded & (heavy | {"fastapi", "highspy", "numba", "ortools", "pandas", "pulp", "torch", "uvicorn"})


LIGHT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"numba", "llvmlite", "ortools", "pulp", "highspy", "torch", "uvicorn", "fastapi"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from api.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("verify", "--certificate", "examples/two-ranks.json"), 0, "evidence"),
        (("explain", "examples/two-ranks.json"), 0, "What limits it"),
        (("plan", "demo:vgg16-ethernet"), 2, "pip install 'pipeline-planner[solve]'"),
        (("serve", "--port", "8765"), 2, "pip install 'pipeline-planner[serve]'"),
    ],
)
def test_light_installation(arguments: tuple[str, ...], code: int, said: str, repository_root: Path):
    """Tests that plans are verified and explained without solvers, and that planning without them names the extra."""
    done = subprocess.run(
        (sys.executable, "-c", LIGHT, *arguments), cwd=repository_root, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    assert said in done.stdout + done.stderr
