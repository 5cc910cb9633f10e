"""The same as a Celery task, with messages and results in a folder: `celery -A celery_tasks worker`."""

import os
from pathlib import Path

import small_model
from celery import Celery

FOLDER = Path(os.environ["PEER_FOLDER"])
for name in ("messages", "processed", "results", "control"):
    (FOLDER / name).mkdir(parents=True, exist_ok=True)

app = Celery("peer", broker="filesystem://", backend=f"file://{FOLDER / 'results'}")
app.conf.broker_transport_options = {
    "data_folder_in": str(FOLDER / "messages"),
    "data_folder_out": str(FOLDER / "messages"),
    "processed_folder": str(FOLDER / "processed"),
    "store_processed": True,
    "control_folder": str(FOLDER / "control"),
}
app.conf.task_acks_late = True
app.conf.task_reject_on_worker_lost = True


@app.task
def solve(seconds: float = 0.0) -> int:
    """The answer."""
    return small_model.solve(seconds)
