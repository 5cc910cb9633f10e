"""`python -m planner.execute.lowered_table < compute.csv`: torch's own table with sends, receives and reductions.

Goes with torch 2.13 and 2.14 (`_PipelineScheduleRuntime._load_csv(format="compute_comms")`); 2.15 has other cells.
"""

import sys

import torch
from torch.distributed.pipelining.schedules import _Action, _add_reduce_grad, _add_send_recv, _add_unshard_reshard

from planner.execute.table.table_check import check_lowered_table
from planner.execute.torch_versions.supported import LOWERING, lowers_tables, show


def _lower_table(text: str) -> str:
    """The table with communication for a compute-only one, a row per rank; torch itself adds it.

    Raises ValueError for a table that cannot be run, and for another version of torch.
    """
    if not lowers_tables():
        raise ValueError(
            f"torch {torch.__version__} is installed, but such tables need {show(LOWERING[0])} to "
            f"{show(LOWERING[1])}; leave communication to torch"
        )
    rows = [[_Action.from_str(cell) for cell in line.split(",") if cell] for line in text.splitlines()]
    owner = {action.stage_index: rank for rank, row in enumerate(rows) for action in row if action is not None}
    microbatches = {action.microbatch_index for row in rows for action in row if action is not None}
    computed = {
        rank: _add_reduce_grad(_add_unshard_reshard(row), len(microbatches))  # type: ignore[arg-type]
        for rank, row in enumerate(rows)
    }
    lowered = _add_send_recv(computed, stage_to_rank=owner.__getitem__, num_stages=len(owner))  # type: ignore[arg-type]
    table = [[str(action) for action in lowered[rank] if action is not None] for rank in sorted(lowered)]
    if faults := check_lowered_table(table, num_stages=len(owner), num_microbatches=len(microbatches)):
        raise ValueError(f"the table cannot be run: {'; '.join(faults[:3])}; export it again")
    return "".join(f"{','.join(row)}\n" for row in table)


def main() -> None:
    """From standard input to standard output; exit with 2 and one message for what is no table."""
    try:
        sys.stdout.write(_lower_table(sys.stdin.read()))
    except (ValueError, RuntimeError) as error:
        sys.stderr.write(f"planner.execute: {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
