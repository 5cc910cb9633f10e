"""Compiled functions are cached where no stale one can be found."""

import ast
import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from solver_models import compiled

ROOM = Path(compiled.__file__).parent


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the sources, with a cache folder of its own."""
    shutil.copytree(ROOM, tmp_path / "room", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "room"


def load(room: Path) -> ModuleType:
    """`compiled.py` of a copy, loaded anew."""
    spec = importlib.util.spec_from_file_location("copied_compiled", room / "compiled.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def folder_of(room: Path) -> Path:
    return load(room).cache_folder()


def compiled_modules() -> Iterator[tuple[str, ast.Module]]:
    """Every module of solver_models that has a kernel."""
    for path in sorted(ROOM.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(
            isinstance(node, ast.FunctionDef) and any(ast.unparse(d) == "kernel" for d in node.decorator_list)
            for node in ast.walk(tree)
        ):
            yield path.relative_to(ROOM).as_posix(), tree


def test_the_folder_exists_and_stays(copied: Path, tmp_path: Path):
    """Tests that the same sources always give the same folder, below the one the user names."""
    folder = folder_of(copied)
    assert folder.is_dir()
    assert folder.is_relative_to(tmp_path / "cache")
    assert folder_of(copied) == folder


@pytest.mark.parametrize("name", compiled._SOURCES)
def test_every_source_counts(copied: Path, name: str):
    """Tests that a change of any source leads to another folder."""
    before = folder_of(copied)
    path = copied / name
    path.write_text(path.read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
    assert folder_of(copied) != before


def test_what_other_kernels_call_is_a_source():
    """Tests that every compiled module which another one calls is among the sources."""
    compiled_names = {name for name, _ in compiled_modules()}
    called = {
        f"{node.module.removeprefix('solver_models.').replace('.', '/')}.py"
        for name, tree in compiled_modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("solver_models.")
    }
    assert called & compiled_names <= set(compiled._SOURCES)
    assert "compiled.py" in compiled._SOURCES


def test_an_unwritable_folder_is_replaced(copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Tests that a folder which cannot be made, or not be written to, gives way to a temporary one."""
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    folder = folder_of(copied)
    assert not folder.is_relative_to(tmp_path)
    assert folder.name.startswith("kernels-")


def test_kernels_are_cached_there(copied: Path, tmp_path: Path):
    """Tests that a compiled function leaves its index in the folder, and numba's own setting as it was."""
    module = load(copied)
    before = module.numba.config.CACHE_DIR
    source = tmp_path / "twice_over.py"
    source.write_text("def twice(a):\n    return 2 * a\n", encoding="utf-8")
    spec = importlib.util.spec_from_file_location("twice_over", source)
    assert spec is not None
    assert spec.loader is not None
    twice_over = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(twice_over)
    assert module.kernel(twice_over.twice)(21) == 42
    assert before == module.numba.config.CACHE_DIR
    assert list(module.cache_folder().rglob("twice_over*.nbi"))
