"""Processes that go through a model in rounds until they are stopped: the load under which another one measures."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from profiles.measure.intake import load_model
from profiles.measure.rounds import Rounds


class _Plain:
    """Nothing is put off: a neighbour's backward is a whole one."""

    is_deferring = False

    def __init__(self, module: nn.Module) -> None:
        """As the executor's own, which is told the module."""

    def take(self) -> Callable[[], None]:
        return lambda: None


@contextmanager
def neighbours(count: int, *, model: str, size: int, device: str, dtype: str | None) -> Iterator[None]:
    """So many processes, all at work when the block begins, and ended with it; raises ValueError if one does not start.

    `model`: by its name; `size`: samples per microbatch.
    """
    about = json.dumps({"model": model, "size": size, "device": device, "dtype": dtype})
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "profiles.measure.neighbour", about]
    with ExitStack() as stack:
        started = [
            stack.enter_context(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
            for _ in range(count)
        ]
        for process in started:
            stack.callback(process.kill)
        for process in started:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise ValueError(f"a neighbour process did not start with {model!r}; it said why above")
        yield


def main(about: str) -> None:
    """Say so once the first round is through, then go on until killed, or until nobody is there any more."""
    given = json.loads(about)
    torch.set_num_threads(1)
    dtype = None if given["dtype"] is None else getattr(torch, given["dtype"])
    model = load_model(given["model"]).model
    rounds = Rounds(model, size=given["size"], defer=_Plain, device=torch.device(given["device"]), dtype=dtype)
    parent = os.getppid()
    rounds.repeat(1)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while os.getppid() == parent:
        rounds.repeat(1)


if __name__ == "__main__":
    main(sys.argv[1])
