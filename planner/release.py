"""Which release of this project runs."""

from importlib.metadata import PackageNotFoundError, version

UNINSTALLED = "uninstalled"
"""What a release is called that runs from its source alone, as on a machine that reaches no package index."""


def release() -> str:
    """Its version, or `UNINSTALLED`."""
    try:
        return version("pipeline-planner")
    except PackageNotFoundError:
        return UNINSTALLED
