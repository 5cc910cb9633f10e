"""The bundle that is saved when our own verifier rejects a plan: all that is needed to see it happen again."""

import json
import platform
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from planner.batch_problem import Question, workload_of_question
from planner.document import plan_to_plain
from planner.plan import Plan
from planner.progress import Limits
from planner.release import RELEASE
from profiles.documents.canonical_json import to_plain
from profiles.workload import workload_to_plain

_BUNDLE_FORMAT = "pipeplan-bundle/1"


def render_bundle(problem: Question, limits: Limits, *, error: BaseException) -> str:
    """The workload, the limits, the versions, what was said, and the rejected plan where the error carries it."""
    plan = getattr(error, "plan", None)
    bundle = {
        "format": _BUNDLE_FORMAT,
        "message": str(error),
        "limits": to_plain(limits),
        "versions": {"python": platform.python_version(), "pipeline-planner": RELEASE, **_versions()},
        "workload": workload_to_plain(workload_of_question(problem)),
        "rejected_plan": plan_to_plain(plan) if isinstance(plan, Plan) else None,
    }
    return json.dumps(bundle, ensure_ascii=False) + "\n"


def _versions() -> dict[str, str]:
    found = {}
    for name in ("ortools", "highspy", "pulp", "numba"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def save_bundle(text: str) -> Path:
    """Write the bundle beside the user, or in the temporary folder where that is not allowed."""
    for folder in (Path.cwd(), Path(tempfile.gettempdir())):
        path = folder / "pipeplan-bundle.json"
        try:
            path.write_text(text, encoding="utf-8")
        except OSError:
            continue
        return path
    raise OSError("no folder to write the bundle to; set TMPDIR to one that can be written")
