"""Which versions of torch the executor runs on; their pipelining runtime is private, and others may differ anywhere."""

import re

import torch

OLDEST, NEWEST = (2, 11), (2, 15)
"""All between are tested, each in an environment of its own (`make test-torch`)."""

TORCH_SENDS = ((2, 13), (2, 14))
"""The versions whose own sends and receives are used. 2.11 makes the receive buffers of all microbatches at the start,
without the metadata that later ones have; 2.12 refuses to send where an input got no gradient; 2.15 retires sends by
cells of their own. There all messages are ours."""


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


def sends_itself(text: str = "") -> bool:
    """Whether this torch's own sends and receives can be used between the stages of a chain."""
    return TORCH_SENDS[0] <= torch_version(text) <= TORCH_SENDS[1]


def show(version: tuple[int, int]) -> str:
    """As people write it."""
    return f"{version[0]}.{version[1]}"
