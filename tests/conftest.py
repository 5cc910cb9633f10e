"""What every test shares: where the repository is, how long hypothesis may think, and that Ctrl+C is heard."""

import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.long_runs import examples

ROOT = Path(__file__).resolve().parent.parent

# No deadline: the first example may compile a kernel. Derandomized: the same commit always gives the same verdict.
settings.register_profile(
    "house",
    deadline=None,
    derandomize=True,
    max_examples=examples(50),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("quick", parent=settings.get_profile("house"), max_examples=10)
settings.register_profile("search", parent=settings.get_profile("house"), derandomize=False, max_examples=1000)
settings.load_profile("house")

# A shell starts background jobs with the interrupt ignored, and processes pass that on to theirs.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`make test` runs the quick tests first, and everything else behind them."""
    parser.addoption(
        "--only-slow", action="append", default=[], metavar="PATH", help="of the tests below PATH, those marked slow"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what `--only-slow` says."""
    folders = [ROOT / path for path in config.getoption("--only-slow")]
    left_out = {
        item
        for item in items
        if item.get_closest_marker("slow") is None and any(item.path.is_relative_to(folder) for folder in folders)
    }
    config.hook.pytest_deselected(items=[*left_out])
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def repository_root() -> Path:
    """The folder that holds pyproject.toml."""
    return ROOT
