"""The question travels with its plan: profile and cluster stand in the certificate; a plan alone can be checked.

They stand there as their documents do (`{"profile": {...}, "cluster": {...}}`, defaults left out). Where that is long,
it is deflated instead (`{"deflated": "..."}`: base64 of the zlib stream of the same JSON). The hashes in `problem` bind
both.
"""

import base64
import zlib
from typing import Any

from planner.batch_problem import problem_answered
from planner.documents.embedded_document import KEY, enclosed_tree
from planner.plan import Plan
from planner.problem import Options, Problem
from profiles.cluster import Cluster
from profiles.documents.canonical_json import canonical_json, to_plain
from profiles.documents.validation import validate
from profiles.model_profile import ModelProfile

MAX_PLAIN = 200_000
"""Characters of JSON up to which the question is enclosed as it is, for everyone to read."""


def enclose(problem: Problem) -> dict[str, Any]:
    """What a certificate needs beside the numbers of its bound: `{"enclosed": ...}`."""
    plain = {"profile": to_plain(problem.stated_profile), "cluster": to_plain(problem.cluster)}
    text = canonical_json(plain)
    if len(text) <= MAX_PLAIN:
        return {KEY: plain}
    return {KEY: {"deflated": base64.b64encode(zlib.compress(text.encode(), 9)).decode()}}


def enclosed_problem(plan: Plan, *, source: str = "plan") -> Problem | None:
    """The question that a plan brings along, or None if it brings none.

    Raises ValueError that names the source, the path inside it and the remedy if it cannot be read. Whether it is the
    question whose hashes the plan states is for `planner.verify` to say.
    """
    tree = enclosed_tree(plan, source=source)
    if tree is None:
        return None
    place = f"{source}: evidence.certificate.{KEY}"
    return problem_answered(
        plan.problem,
        profile=validate(ModelProfile, tree["profile"], source=f"{place}.profile"),
        cluster=validate(Cluster, tree["cluster"], source=f"{place}.cluster"),
        options=validate(Options, dict(plan.problem.options), source=f"{source}: problem.options"),
    )
