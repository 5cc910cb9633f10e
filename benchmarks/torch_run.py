"""One process of a run of torch's own: `torchrun --nproc-per-node N -m benchmarks.torch_run ABOUT.json FOLDER`.

Trains with one of torch's schedule classes, or with DistributedDataParallel, and writes when every iteration began and
ended on this process.
"""

import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import distributed

from benchmarks.real_torch import TorchSchedule, WholeModelData
from planner.execute.training import load_training


def make_runner(about: dict[str, Any]) -> Callable[[int], None]:
    """What trains an iteration: with `schedule`, one of torch's own, otherwise data parallel."""
    if "schedule" in about:
        return TorchSchedule(**about).step
    return WholeModelData(load_training(about.pop("model")), **about).step


def main() -> None:
    """Train as many iterations as are asked for."""
    about = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    folder, steps = Path(sys.argv[2]), about.pop("steps")
    distributed.init_process_group("gloo", timeout=timedelta(seconds=120))
    step, times = make_runner(about), []
    for number in range(steps):
        begin = time.time_ns()
        step(number)
        times.append((begin, time.time_ns()))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"times{distributed.get_rank()}.json").write_text(json.dumps(times), encoding="utf-8")
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
