"""What a team finds again: projects, tags, searches, pages, and what is different between two plans."""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from api.client import workload_document
from api.doctor import make_toy_problem
from api.jobs.workers.inspection import inspect
from planner.batch_problem import Question
from planner.document import render_plan
from planner.plan import Plan
from planner.planning import make_plan
from planner.progress import Limits
from tests.api.service.servers import Running, serving
from tests.api.service.test_http import check_job, request

QUICK = Limits(time_limit_s=30.0, max_rounds=1)


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service that solves nothing, with five jobs of two projects."""
    with serving(tmp_path_factory.mktemp("team"), num_workers=0) as running:
        for number in range(5):
            tags = ["even" if number % 2 == 0 else "odd", f"n{number}"]
            post(running, seed=number, project="vision" if number < 3 else "text/large", tags=tags)
        yield running


def post(running: Running, *, seed: int, question: Question | None = None, **fields: object) -> dict[str, Any]:
    """A submission with these fields."""
    problem = question or make_toy_problem()
    body = {"workload": workload_document(problem), "limits": {"max_rounds": 1, "seed": seed}, **fields}
    status, _, text = request(running, "POST", "/v1/plans", body, {"Prefer": "wait=60"} if not fields else {})
    job: dict[str, Any] = json.loads(text)
    assert status in (200, 202), job
    check_job(job)
    return job


def found(running: Running, query: str) -> list[str]:
    """The tags `n0`, `n1` ... of the plans that a search finds, in its order."""
    status, _, text = request(running, "GET", f"/v1/plans?{query}")
    assert status == 200, text
    return [tag for plan in json.loads(text)["plans"] for tag in plan["tags"] if tag[1:].isdigit()]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", "43210"),
        ("project=vision", "210"),
        ("project=text/large", "43"),
        ("tag=even", "420"),
        ("tag=eve", ""),
        ("tag=even&project=vision", "20"),
        ("name=TOY", "43210"),
        ("name=t%25y", ""),
        ("model=toy", "43210"),
        ("model=TOY", ""),
        ("model=to", ""),
        ("name=_", ""),
        ("state=queued", "43210"),
        ("state=failed", ""),
        ("since=2020-01-01", "43210"),
        ("until=2020-01-01T00:00:00Z", ""),
        ("sha256=000000", ""),
    ],
)
def test_searches(team: Running, query: str, expected: str):
    """Tests that plans are found by project, tag, part of a name, state and date, and nothing is a wildcard."""
    assert found(team, query) == [f"n{digit}" for digit in expected]


def test_hashes_find_profiles(team: Running):
    """Tests that the beginning of a profile's hash finds every plan of the profile."""
    sha256 = make_toy_problem().profile_sha256
    assert len(found(team, f"sha256={sha256[:8]}")) == 5
    assert len(found(team, f"sha256={sha256}&limit=3")) == 3


def test_pages_have_no_gap(team: Running):
    """Tests that following `next` comes by every plan once, whatever is searched for."""
    address, seen = "/v1/plans?limit=1&tag=even", []
    while address:
        document = json.loads(request(team, "GET", address)[2])
        seen += [plan["tags"][1] for plan in document["plans"]]
        address = document.get("next")
    assert seen == ["n4", "n2", "n0"]


def test_pages_have_no_gap_beside_deletions(team: Running):
    """Tests that a page follows a plan that was deleted meanwhile, and that an unknown one is refused."""
    jobs = [post(team, seed=60 + number, project="waste") for number in range(3)]
    address, gone = "/v1/plans?limit=1&project=waste", []
    while address:
        document = json.loads(request(team, "GET", address)[2])
        gone += [plan["id"] for plan in document["plans"]]
        for plan in document["plans"]:
            assert request(team, "DELETE", plan["links"]["self"])[0] == 204
        address = document.get("next")
    assert gone == [job["id"] for job in jobs[::-1]]
    status, _, text = request(team, "GET", f"/v1/plans?after={gone[0]}")
    assert (status, json.loads(text)["errors"][0]["pointer"]) == (422, "/after")


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=101",
        "limit=1_0",
        "limit=%2B5",
        "limit=5.0",
        "project=%20",
        "tag=a%25b",
        "sha256=xyz",
        "state=lost",
        "since=yesterday",
        "after=1",
        f"after={'0' * 32}",
        "created_after=1",
        "tag=even&tag=n2",
        "limit=1&limit=1",
    ],
)
def test_what_cannot_be_searched_for(team: Running, query: str):
    """Tests that a parameter that cannot be is refused by its name."""
    status, _, text = request(team, "GET", f"/v1/plans?{query}")
    assert (status, json.loads(text)["errors"][0]["pointer"]) == (422, f"/{query.partition('=')[0]}")


def test_projects_are_listed(team: Running):
    """Tests that projects are listed with their number of plans, and that their addresses lead to them."""
    projects = {row["name"]: row for row in json.loads(request(team, "GET", "/v1/projects")[2])["projects"]}
    assert {name: row["num_plans"] for name, row in projects.items()} == {"vision": 3, "text/large": 2}
    listed = json.loads(request(team, "GET", projects["text/large"]["href"])[2])["plans"]
    assert {plan["project"] for plan in listed} == {"text/large"}


def test_plans_are_filed_anew(team: Running):
    """Tests that a plan moves to another project with other tags, and that neither may be anything."""
    job = post(team, seed=50, project="attic")
    here = job["links"]["self"]
    filed = json.loads(request(team, "POST", f"{here}:file", {"project": "cellar", "tags": ["b", "a", "b"]})[2])
    assert (filed["project"], filed["tags"]) == ("cellar", ["a", "b"])
    for body in ({"project": "no spaces"}, {"tags": ["x" * 64]}, {"tags": ["t"] * 17}, {"surprise": 1}):
        assert request(team, "POST", f"{here}:file", body)[0] == 422
    assert request(team, "DELETE", here)[0] == 204
    assert request(team, "POST", f"{here}:file", {})[0] == 404


@cache
def toy_plan() -> Plan:
    """A plan of the toy problem."""
    return make_plan(make_toy_problem(), limits=QUICK)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("profile_sha256", "0" * 64, "with other layers or times"),
        ("cluster_sha256", "0" * 64, "for another machine"),
        ("num_microbatches", 99, "with another number of microbatches"),
        ("microbatch_size", 99, "with microbatches of another size"),
        ("profile", "another", "plans of different models are not compared"),
    ],
)
def test_a_plan_of_another_question_is_not_drawn_by_this_ones_times(name: str, value: Any, words: str):
    """Tests that a second plan is drawn on the first one's scale only if it was made for the same times."""
    one = toy_plan()
    other = replace(one, problem=replace(one.problem, **{name: value}))
    order = {"plan": render_plan(one), "other": render_plan(other)}
    made = json.loads(inspect({"what": "picture", **order})["text"])
    assert words in made["aloneBecause"]
    assert len(made["plans"]) == 1
    with pytest.raises(ValueError, match=words):
        inspect({"what": "view", **order})
    assert len(json.loads(inspect({"what": "picture", **order, "other": order["plan"]})["text"])["plans"]) == 2


def test_differences_over_http(running: Running):
    """Tests that the difference of two plans of two profiles is a document, and needs two plans."""
    toy = make_toy_problem()
    layers = tuple(replace(layer, parameter_bytes=layer.parameter_bytes + 1) for layer in toy.profile.layers)
    one = post(running, seed=0)
    two = post(running, seed=0, question=replace(toy, profile=replace(toy.profile, layers=layers)))
    here = one["links"]["self"]
    status, headers, text = request(running, "GET", f"{here}/difference?to={two['id']}")
    assert status == 200, text
    document = json.loads(text)
    assert not document["profile"]["is_same"]
    assert document["cluster"]["is_same"]
    assert "immutable" in headers["cache-control"]
    assert request(running, "GET", f"{here}/difference")[0] == 422
    assert request(running, "GET", f"{here}/difference?to={'0' * 32}")[0] == 404


def test_planning_again_is_one_post(running: Running):
    """Tests that a plan's question is asked again from that plan, with other limits, and is never worse."""
    one = post(running, seed=3)
    again = {"start_from": one["id"], "limits": {"time_limit_s": 2.0}, "num_microbatches": one_more(one, running)}
    sent = {"Prefer": "wait=60", "Cache-Control": "no-cache"}
    status, _, text = request(running, "POST", "/v1/plans", again, sent)
    job = json.loads(text)
    assert status == 200, text
    check_job(job)
    assert (job["state"], job["start_from"]) == ("succeeded", one["id"])
    same = {"start_from": one["id"], "limits": {"time_limit_s": 2.0}}
    better = json.loads(request(running, "POST", "/v1/plans", same, sent)[2])
    assert better["incumbent_ns"] <= one["incumbent_ns"]
    for path, body, expected in (
        ("plans", {"start_from": "0" * 32}, (404, "/start_from", "names no plan that you may see; give one's id")),
        ("plans", {"start_from": ""}, (404, "/start_from", "names no plan that you may see; give one's id")),
        ("plans", {"start_from": 5}, (422, "/start_from", "start_from is not a string; put it in double quotes")),
        ("plans", {"start_from": one["id"], "limits": {"max_rounds": 1}},
         (422, "", "start_from and limits.max_rounds are both given; keep one of them")),
        ("what-if", {"base": "0" * 32, "change": {}}, (404, "/base", "names no plan that you may see; give one's id")),
        ("what-if/ranges", {"base": "x", "changes": []},
         (404, "/base", "names no plan that you may see; give one's id")),
    ):  # fmt: skip
        status, _, text = request(running, "POST", f"/v1/{path}", body)
        (told,) = json.loads(text)["errors"]
        assert (status, told["pointer"], told["detail"]) == expected


def one_more(job: dict[str, Any], running: Running) -> int:
    """One microbatch more than the plan has."""
    plan = json.loads(request(running, "GET", job["links"]["plan"])[2])
    return int(plan["problem"]["num_microbatches"]) + 1


def test_a_tenants_projects_are_its_own(tmp_path: Path):
    """Tests that neither projects nor searches show another tenant's plans."""
    with serving(tmp_path, needs_keys=True, num_workers=0) as running:
        mine, theirs = ({"Authorization": f"Bearer {running.key(name)}"} for name in ("a", "b"))
        body = {"workload": workload_document(make_toy_problem()), "project": "secret", "tags": ["t"]}
        job = json.loads(request(running, "POST", "/v1/plans", body, mine)[2])
        assert json.loads(request(running, "GET", "/v1/projects", headers=theirs)[2]) == {"projects": []}
        for query in ("", "?project=secret", "?tag=t"):
            assert json.loads(request(running, "GET", f"/v1/plans{query}", headers=theirs)[2])["plans"] == []
        assert request(running, "GET", f"/v1/plans?after={job['id']}", headers=theirs)[0] == 422
        assert request(running, "POST", f"/v1/plans/{job['id']}:file", {}, theirs)[0] == 404
