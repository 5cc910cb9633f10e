"""`torchrun --nproc-per-node N -m planner.execute.transformers_trainer plan.json train.py ARGUMENTS`: a script with a
`Trainer`, unchanged, whose training runs as planned.
"""

import argparse
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from planner.execute.run.kept_memory import restart_uncached

_LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK")
"""What accelerate would make processes with a share of the data each of."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one process of the script. Only here is torch imported: a process that starts anew has no use for it."""
    from planner.execute.session import refuse
    from planner.execute.transformers_trainer.planned_trainer import PlannedTrainer

    parser = argparse.ArgumentParser(prog="planner.execute.transformers_trainer", description=__doc__)
    parser.add_argument("plan", type=Path, help="plan document")
    parser.add_argument("script", type=Path, help="a script that takes Trainer from transformers")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script is given")
    options = parser.parse_args(arguments)
    PlannedTrainer.plan = options.plan
    PlannedTrainer.launcher = {name: os.environ.pop(name) for name in _LAUNCHER_VARIABLES if name in os.environ}
    for module in ("transformers", "transformers.trainer"):
        sys.modules[module].Trainer = PlannedTrainer  # type: ignore[attr-defined]  # transformers replaces its own module
    sys.argv = [str(options.script), *options.arguments]
    sys.path.insert(0, str(options.script.resolve().parent))
    runpy.run_path(str(options.script), run_name="__main__")
    if not PlannedTrainer.num_trained:
        refuse(f"{options.script} has trained nothing under the plan: it has no Trainer of transformers, or its own")


if __name__ == "__main__":
    restart_uncached("planner.execute.transformers_trainer")
    main()
