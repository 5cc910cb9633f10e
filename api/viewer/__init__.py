"""The picture of a plan: one HTML file that holds everything it needs and asks nothing of the network."""

import base64
import hashlib
import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

from api.viewer.content import plan_content, problem_content, used_devices
from planner.plan import Plan
from planner.problem import Problem
from planner.simulation.simulate import Timeline

SHARED = (
    "dom.js",
    "theme.js",
    "model.js",
    "timeline/folding.js",
    "timeline/view.js",
    "describe.js",
    "timeline/paint.js",
    "timeline/legend.js",
    "timeline/overlay.js",
    "timeline/controls.js",
    "timeline/timeline.js",
    "terms.js",
    "headline.js",
    "tables.js",
    "bands.js",
    "memory.js",
    "machine.js",
    "baselines.js",
)
"""The modules that the service's page loads, too."""

_SCRIPTS = (*SHARED, "page.js", "main.js")
"""The modules of a picture, in the order in which they are put together."""

_MODULE_KEYWORDS = re.compile(r"^import [^;]*;\n|^export (?=\w)", re.MULTILINE)
"""What makes a script a module; in one file there is nothing to import."""

_PLACE = re.compile(r"\{\{(policy|style|content|script)\}\}")


def render_picture(
    problem: Problem, plan: Plan, *, timeline: Timeline, other: tuple[Plan, Timeline] | None = None
) -> str:
    """The timeline of a plan as one HTML file; with `other`, a second plan below it on the same time scale.

    The bound of the plan's evidence is drawn as a line, if there is one.
    """
    content = picture_content(problem, plan, timeline=timeline, other=other)
    parts = _fixed_parts() | {"content": embed_json(content)}
    return _PLACE.sub(lambda place: parts[place[1]], _read("viewer.html"))


def picture_content(
    problem: Problem, plan: Plan, *, timeline: Timeline, other: tuple[Plan, Timeline] | None = None
) -> dict[str, Any]:
    """What a picture shows, as plain data; arguments as for `render_picture`."""
    pairs = [pair for pair in ((plan, timeline), other) if pair is not None]
    shown = set().union(*(used_devices(*pair) for pair in pairs))
    return problem_content(problem) | {
        "lowerBoundNs": None if plan.evidence is None else plan.evidence.lower_bound_ns,
        "plans": [plan_content(problem, drawn, timeline=played, shown=shown) for drawn, played in pairs],
    }


def embed_json(value: object) -> str:
    """JSON that is inert inside a script element: ASCII only, and no character that HTML could take for markup."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


@cache
def _fixed_parts() -> dict[str, str]:
    """What is the same in every picture; the policy admits this script and this style by their hashes, and no other."""
    style = _read("viewer.css")
    script = (
        '"use strict";\n(() => {\n' + "\n".join(_MODULE_KEYWORDS.sub("", _read(name)) for name in _SCRIPTS) + "})();\n"
    )
    policy = (
        f"default-src 'none'; script-src '{_source_hash(script)}'; style-src '{_source_hash(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return {"style": style, "script": script, "policy": policy}


def _source_hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _read(name: str) -> str:
    return files(__name__).joinpath(name).read_text(encoding="utf-8")
