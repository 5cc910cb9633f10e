"""The same as a Prefect flow that a runner serves: `python prefect_flow.py`, beside `prefect server start`."""

import small_model
from prefect import flow


@flow
def solve(seconds: float = 0.0) -> int:
    """The answer."""
    return small_model.solve(seconds)


if __name__ == "__main__":
    solve.serve(name="peer", limit=1)
