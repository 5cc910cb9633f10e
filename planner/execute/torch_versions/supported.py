"""Which versions of torch the executor runs on; some of what it uses is private, and others may differ."""

import re

import torch

OLDEST, NEWEST = (2, 11), (2, 15)
"""All between are tested, each in an environment of its own (`make test-torch`)."""


def torch_version(text: str = "") -> tuple[int, int]:
    """Major and minor number of the installed torch, or of a version given as text; (0, 0) if there are none."""
    found = re.match(r"(\d+)\.(\d+)", text or torch.__version__)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def require_supported(text: str = "") -> None:
    """Raise ValueError, with the range, unless the executor is tested on this torch."""
    if not OLDEST <= torch_version(text) <= NEWEST:
        raise ValueError(
            f"torch {text or torch.__version__} is installed, but the executor is tested on {show(OLDEST)} to "
            f"{show(NEWEST)}; install one of these"
        )


def show(version: tuple[int, int]) -> str:
    """As people write it."""
    return f"{version[0]}.{version[1]}"
