"""`torchrun --nproc-per-node N -m planner.execute plan.json --model module:factory`: train exactly as planned."""

from collections.abc import Sequence

from planner.execute.run.kept_memory import restart_uncached


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one process of the plan. Only here is torch imported: a process that starts anew has no use for it."""
    from planner.execute.program import main as run_process

    run_process(arguments)


if __name__ == "__main__":
    restart_uncached("planner.execute")
    main()
