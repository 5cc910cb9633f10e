"""OR-Tools behind a plain FastAPI application, as tutorials write it: `uvicorn fastapi_app:app`."""

from fastapi import FastAPI
from small_model import solve

app = FastAPI()


@app.post("/solve")
def solve_now(seconds: float = 0.0) -> dict[str, int]:
    """The answer, when it is there."""
    return {"heaviest": solve(seconds)}
