"""Profile five well-known models on this machine's GPU, in bf16, at three microbatch sizes, and write a document each.

Every document holds recomputation beside the plain figures. `make gpu-profiles` runs it; `--device cpu --quick` tries
the same on tiny shapes.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from api.failures import InputError
from api.profiling import ProfileRequest, run_profile
from benchmarks.gpu_models import MODELS, TINY
from profiles.workload import dump_workload


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 2 and one message where there is no such device."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu_profiles", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny shapes, few repetitions")
    parser.add_argument("--only", choices=sorted(MODELS), action="append", help="this model alone; repeatable")
    parser.add_argument("-o", "--output", type=Path, default=Path("out/gpu-profiles"), help="folder of the documents")
    options = parser.parse_args(arguments)
    console = Console(stderr=True, markup=False, highlight=False)
    for name, (model, sizes) in (TINY if options.quick else MODELS).items():
        if options.only and name not in options.only:
            continue
        target = options.output / f"{name}-{options.device}.json"
        try:
            write(target, model, sizes=sizes, options=options, console=console)
        except InputError as error:
            print(f"gpu-profiles: {name}: {error}", file=sys.stderr)
            return 2
        print(target)
    return 0


def write(target: Path, model: str, *, sizes: str, options: argparse.Namespace, console: Console) -> None:
    """One document; a run that is broken off continues from the journal beside it."""
    wanted = ProfileRequest(
        model=model,
        microbatch_size=sizes,
        device=options.device,
        dtype="bf16",
        devices=1,
        repetitions=3 if options.quick else 20,
        journal=str(target.with_suffix(".partial")),
        no_links=True,
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    outcome = run_profile(wanted, console=console, style="lines")
    target.write_text(dump_workload(outcome.workload), encoding="utf-8")
    target.with_suffix(".partial").unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
