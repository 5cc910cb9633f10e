"""The interface as a client sees it, on a real server."""

import http.client
import json
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jsonschema
import pytest

from api.client import Client, ServerError, workload_document
from api.doctor import make_toy_problem
from api.jobs.job import Outcome, ProgressUpdate
from api.jobs.request import Ceilings
from api.service.handlers.route_notes import example_submission
from api.service.openapi import make_document
from api.service.serving import require_safe
from api.settings import ClientLimits, Settings
from planner.batch_problem import BatchProblem, problem_for
from planner.document import parse_plan, render_plan
from planner.documents.schema import document_schema
from planner.planning import make_plan
from planner.problem import Options, Problem
from planner.progress import Limits
from planner.verify import verify
from tests.api.jobs.workers.test_pool import large_problem
from tests.api.service.servers import Running, serving
from tests.planner.judge.test_microbatches import listed
from tests.solver_models.complete.test_complete_model import open_problem

NEWS = ProgressUpdate(phase="search", incumbent_ns=10**6, lower_bound_ns=1, gap=0.5, source="x", plan="{}")
QUICK = Limits(time_limit_s=30.0, max_rounds=1)


def plain_problem() -> Problem:
    """The toy without replicas."""
    return replace(make_toy_problem(), options=Options(max_replicas=1))


def request(
    running: Running, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    """One raw request: status, headers in lower case, body."""
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=120)
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    kind = {} if data is None else {"Content-Type": "application/json"}
    try:
        connection.request(method, path, body=data, headers=kind | (headers or {}))
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    finally:
        connection.close()


def validate_as(name: str, document: Any) -> None:
    """Raise unless the document is as the interface says of this name."""
    components = {"components": make_document()["components"]}
    jsonschema.validate(document, {**components, "$ref": f"#/components/schemas/{name}"})


def check_job(document: Any) -> None:
    """The document is as the interface says."""
    validate_as("Job", document)


def test_submit_and_wait(running: Running):
    """Tests that a submission with Prefer: wait is answered with a verified plan, its gap, and its address."""
    body = {"workload": workload_document(make_toy_problem()), "limits": {"time_limit_s": 20, "max_rounds": 2}}
    status, headers, text = request(running, "POST", "/v1/plans", body, {"Prefer": "respond-async, wait=60"})
    job = json.loads(text)
    assert status == 200, job
    check_job(job)
    assert (job["state"], job["verdict"], headers["x-cache"]) == ("succeeded", {"passed": True}, "MISS")
    assert headers["location"] == job["links"]["self"]
    assert 0 <= job["gap"] < 1
    plan = parse_plan(request(running, "GET", job["links"]["plan"])[2])
    assert verify(make_toy_problem(), plan).passed


@pytest.mark.parametrize("method", ["cp-sat", "ilp"])
def test_a_solver_may_be_chosen(running: Running, method: str):
    """Tests that a solver on the complete model is asked as on the command line, and its claim told as a claim."""
    limits = {"time_limit_s": 60, "method": method} | ({"solver": "HiGHS"} if method == "ilp" else {})
    body = {"workload": workload_document(open_problem()), "limits": limits}
    status, _, text = request(running, "POST", "/v1/plans", body, {"Prefer": "wait=60"})
    job = json.loads(text)
    assert status == 200, job
    check_job(job)
    assert (job["incumbent_ns"], job["solver_bound_ns"], job["stopped_by"]) == (74, 74, "solver")
    assert job["lower_bound_ns"] < 74
    assert (job["solution_status"], job["proved_by"]) == ("feasible", None)
    jsonschema.validate(json.loads(request(running, "GET", job["links"]["plan"])[2]), document_schema("plan"))


def test_every_limit_is_in_the_interface():
    """Tests that the document of the interface has every limit that a request may state, with its default."""
    stated = make_document()["components"]["schemas"]["Limits"]["properties"]
    assert set(stated) == {field.name for field in fields(Limits)}
    for field in fields(Limits):
        default = stated[field.name].get("default", field.default)
        assert default == field.default


def test_a_global_batch_is_cut(running: Running):
    """Tests that a batch is cut as on the command line, and the plan checked and asked about like any other."""
    toy, limits, client = make_toy_problem(), Limits(time_limit_s=30.0, max_rounds=1), running.client()
    question = BatchProblem(
        profile=replace(toy.profile, microbatch_size=2, scaling="linear"),
        cluster=toy.cluster,
        global_batch_size=8,
        microbatch_sizes=(1, 2),
    )
    job = client.plan(question, limits=limits)
    plan = client.fetch_plan(job["id"])
    assert render_plan(plan) == render_plan(make_plan(question, limits=limits))
    for asked in (problem_for(question, plan), None):
        assert client.verify(plan, asked, certificate=True)["passed"]
    changed = client.what_if(job["id"], devices=1, limits=limits)
    assert client.job(changed["id"], wait_s=60)["state"] == "succeeded"
    assert client.fetch_plan(changed["id"]).problem.global_batch_size is None


def test_microbatches_may_differ(running: Running):
    """Tests that listed microbatches are planned as on the command line, checked and drawn, and other sizes asked anew;
    that what assumes equal ones is refused with a remedy."""
    problem, limits, client = listed(5, 1, 3, 2, max_stages_per_device=1), Limits(max_rounds=0), running.client()
    job = client.plan(problem, limits=limits)
    plan = client.fetch_plan(job["id"])
    assert render_plan(plan) == render_plan(make_plan(problem, limits=limits))
    for asked in (problem, None):
        assert client.verify(plan, asked, certificate=True)["passed"]
    others = client.plan(replace(problem, microbatches=(5, 1, 3, 4)), limits=limits)
    assert others["incumbent_ns"] > job["incumbent_ns"]
    for what in ("picture", "view", "trace", "report", "history"):
        status, _, text = request(running, "GET", f"/v1/plans/{job['id']}/{what}")
        assert status == 200, text
        assert what != "report" or json.loads(text)["explanation"] is None
    body = {"base": job["id"], "changes": [{"devices": 1}]}
    status, _, text = request(running, "POST", "/v1/what-if/ranges", body)
    assert status == 200
    assert "assumes equal ones" in json.loads(text)["ranges"][0]["reason"]
    for refused in (
        lambda: client.what_if(job["id"], devices=1),
        lambda: client.play(plan, what="explanation"),
        lambda: client.fetch(job["id"], "export/torch"),
    ):
        with pytest.raises(ServerError, match="assumes equal ones") as refusal:
            refused()
        assert refusal.value.status == 422


def test_a_submission_says_how_it_is_cut(running: Running):
    """Tests that a request cuts a workload otherwise than that says, and is refused where it contradicts itself."""
    toy = make_toy_problem()
    workload = workload_document(replace(toy, profile=replace(toy.profile, microbatch_size=2, scaling="linear")))

    def post(**fields: object) -> tuple[int, dict[str, Any]]:
        body = {"workload": workload, "limits": {"max_rounds": 0}, **fields}
        status, _, text = request(running, "POST", "/v1/plans", body, {"Prefer": "wait=60"})
        return status, json.loads(text)

    status, job = post(global_batch_size=8, microbatch_sizes=[1])
    assert (status, job["state"]) == (200, "succeeded"), job
    plan = parse_plan(request(running, "GET", job["links"]["plan"])[2])
    assert (plan.problem.microbatch_size, plan.problem.num_microbatches) == (1, 8)
    assert post(num_microbatches=2, global_batch_size=8)[0] == 422
    assert post(microbatch_sizes=[1])[0] == 422
    assert post(global_batch_size=7)[0] == 422


def test_byte_identical_to_the_planner(running: Running):
    """Tests that the plan fetched over HTTP is, with a deterministic limit, byte for byte what is made here."""
    limits = Limits(time_limit_s=30.0, seed=7, max_rounds=2)
    client = running.client()
    job = client.plan(make_toy_problem(), limits=limits)
    assert client.fetch(job["id"], "plan").decode() == render_plan(make_plan(make_toy_problem(), limits=limits))


def test_events_tell_the_story(running: Running):
    """Tests that events come in order with rising ids, and that Last-Event-ID resumes after the one named."""
    client = running.client()
    job = client.submit(large_problem(), limits=Limits(time_limit_s=4.0, threads=1))
    events = list(client.follow(job["id"]))
    kinds = [event["kind"] for event in events]
    assert kinds[:2] == ["queued", "started"]
    assert kinds[-1] == "done"
    assert {"incumbent", "bound"} <= set(kinds)
    ids = [event["id"] for event in events]
    assert ids == sorted(set(ids))
    assert [event["id"] for event in client.follow(job["id"], after=ids[-2])] == ids[-1:]
    assert events[-1]["data"]["state"] == "succeeded"
    restored = list(client.follow(job["id"], after=ids[-1] + 7))
    assert [event["kind"] for event in restored][-1] == "done"


def test_events_come_in_time_not_in_showers(tmp_path: Path):
    """Tests that a stream speaks once a second, and of the end at once, however much happens; old news is skipped."""
    with serving(tmp_path, num_workers=0) as running:
        client, store = running.client(), running.service.store
        job_id = client.submit(make_toy_problem(), limits=QUICK)["id"]
        held = store.claim("w", lease_s=60.0)
        assert held is not None

        def work() -> None:
            for number in range(60):
                store.report(held, replace(NEWS, incumbent_ns=10**6 - number))
                time.sleep(0.05)
            store.finish(held, Outcome(state="failed"))

        worker, begin = threading.Thread(target=work), time.monotonic()
        worker.start()
        num_told = sum(event["kind"] == "incumbent" for event in client.follow(job_id))
        worker.join()
    assert 2 <= num_told <= 2 + (time.monotonic() - begin)


def test_stop_returns_the_best_plan(running: Running):
    """Tests that stop ends a long search soon, twice is as once, and that its plan passes the verifier here."""
    client = running.client()
    job = client.submit(large_problem(), limits=Limits(time_limit_s=500.0, seed=1, patience_s=500.0, threads=1))
    for event in client.follow(job["id"]):
        if event["kind"] == "incumbent":
            break
    client.stop(job["id"])
    client.stop(job["id"])
    done = client.job(job["id"], wait_s=60)
    assert (done["state"], done["stopped_by"]) == ("succeeded", "user")
    assert verify(large_problem(), client.fetch_plan(job["id"])).passed
    assert client.stop(job["id"])["state"] == "succeeded"


@pytest.fixture(scope="module")
def done(running: Running) -> Any:
    """A finished plan without replicas, which torch can run."""
    return running.client().plan(plain_problem(), limits=QUICK)


@pytest.mark.parametrize(
    ("what", "media", "start"),
    [
        ("plan", "application/json", b'{"format": "pipeline-plan/1"'),
        ("trace", "application/json", b"{"),
        ("view", "text/html", b"<!"),
        ("report", "application/json", b"{"),
        ("export/trace", "application/json", b"{"),
        ("export/torch", "text/csv", b""),
    ],
)
def test_artefacts_are_immutable(running: Running, done: Any, what: str, media: str, start: bytes):
    """Tests that every artefact has its media type, may be kept for good, and is not sent twice to one who has it."""
    path = f"{done['links']['self']}/{what}"
    status, headers, text = request(running, "GET", path)
    assert status == 200, text
    assert headers["content-type"].startswith(media)
    assert text.startswith(start)
    assert "immutable" in headers["cache-control"]
    again, _, nothing = request(running, "GET", path, headers={"If-None-Match": headers["etag"]})
    assert (again, nothing) == (304, b"")


def test_status_has_a_tag(running: Running, done: Any):
    """Tests that a client that knows the state is told so."""
    status, headers, _ = request(running, "GET", done["links"]["self"])
    assert status == 200
    assert request(running, "GET", done["links"]["self"], headers={"If-None-Match": headers["etag"]})[0] == 304


def test_the_cache_answers(running: Running, done: Any):
    """Tests that the same deterministic request hits the cache, another seed does not, and no-cache asks anew."""
    body = {"workload": workload_document(plain_problem()), "limits": {"time_limit_s": 30, "max_rounds": 1}}
    status, headers, text = request(running, "POST", "/v1/plans", body)
    assert (status, headers["x-cache"], json.loads(text)["id"]) == (200, "HIT", done["id"])
    other = {**body, "limits": {**body["limits"], "seed": 12}}
    assert request(running, "POST", "/v1/plans", other)[1]["x-cache"] == "MISS"
    fresh = request(running, "POST", "/v1/plans", body, {"Cache-Control": "no-cache"})
    assert (fresh[0], fresh[1]["x-cache"]) == (202, "MISS")


def test_the_cache_does_not_lose_a_project(running: Running, done: Any):
    """Tests that a question that was answered before is found under the project that it is asked for now."""
    body = {"workload": workload_document(plain_problem()), "limits": {"time_limit_s": 30, "max_rounds": 1}}
    filed = {**body, "project": "moon", "tags": ["lunar"]}
    first = json.loads(request(running, "POST", "/v1/plans", filed, {"Prefer": "wait=60"})[2])
    assert first["id"] != done["id"]
    listed = json.loads(request(running, "GET", "/v1/plans?project=moon&tag=lunar")[2])["plans"]
    assert [job["id"] for job in listed] == [first["id"]]
    assert json.loads(request(running, "POST", "/v1/plans", filed)[2])["id"] == first["id"]


def test_one_key_at_once_is_one_job(running: Running):
    """Tests that requests with one key, and nothing answered before, are one job even if they come at the same time."""
    body = {**example_submission(), "limits": {"time_limit_s": 5, "max_rounds": 1, "seed": 4711}}

    def post(_: int) -> Any:
        return json.loads(request(running, "POST", "/v1/plans", body, {"Idempotency-Key": "busy-key"})[2])["id"]

    with ThreadPoolExecutor(6) as threads:
        assert len(set(threads.map(post, range(6)))) == 1


def test_pin(running: Running, done: Any):
    """Tests that a plan can be pinned and let go."""
    here = done["links"]["self"]
    assert json.loads(request(running, "POST", f"{here}:pin")[2])["pinned"] is True
    assert json.loads(request(running, "POST", f"{here}:unpin")[2])["pinned"] is False


def test_checks_have_a_limit(tmp_path: Path, running: Running, done: Any):
    """Tests that a check that takes too long is given up, and that spans do not get in the way of anything."""
    plan = json.loads(running.client().fetch(done["id"], "plan"))
    with serving(tmp_path, inspection_s=0.001, traces=True) as hasty:
        status, _, text = request(hasty, "POST", "/v1/verifications", {"plan": plan})
        assert (status, json.loads(text)["code"]) == (422, "too_slow")
        assert request(hasty, "GET", "/livez")[0] == 200


def test_what_if(running: Running, done: Any):
    """Tests that a what-if says how far the objective moves, and that twice the memory never makes it worse."""
    client = running.client()
    job = client.what_if(done["id"], memory_bytes=2**30, limits=QUICK)
    after = client.job(job["id"], wait_s=60)
    story: Any = after
    assert after["state"] == "succeeded"
    assert story["what_if"]["base"] == done["id"]
    assert story["what_if"]["moved_ns"] <= 0
    for change in ({"devices": -9}, {"lost": ["gpu9"]}):
        with pytest.raises(ServerError) as refusal:
            client.what_if(done["id"], **change)
        assert refusal.value.status == 422


def test_ranges_hold_what_is_found(running: Running, done: Any):
    """Tests that the range of a change is there at once, and that a plan made for it lies within."""
    client = running.client()
    changes: tuple[dict[str, Any], ...] = (
        {},
        {"memory_bytes": -(2**20)},
        {"num_microbatches": 7},
        {"link_speed": 0.01},
    )
    body = {"base": done["id"], "changes": [*changes, {"devices": -9}]}
    status, _, text = request(running, "POST", "/v1/what-if/ranges", body)
    ranges = json.loads(text)["ranges"]
    assert status == 200
    check_ranges(client, done["id"], zip(changes, ranges, strict=False))
    assert ranges[0]["at_most_ns"] <= done["incumbent_ns"]
    assert (ranges[-1]["at_least_ns"], ranges[-1]["at_most_ns"]) == (None, None)
    assert "removes all" in ranges[-1]["reason"]
    for wrong, expected in (
        ({**body, "base": "0" * 32}, 404),
        ({**body, "changes": [{}] * 33}, 422),
        ({"base": ""}, 422),
    ):
        assert request(running, "POST", "/v1/what-if/ranges", wrong)[0] == expected


def check_ranges(client: Client, base: str, ranges: Iterable[tuple[dict[str, Any], Any]]) -> None:
    """What a solver finds and proves for each change lies where its range says."""
    for change, found in ranges:
        after: Any = client.job(client.what_if(base, **change, limits=QUICK)["id"], wait_s=60)
        assert found["at_least_ns"] <= after["incumbent_ns"]
        assert found["at_least_ns"] <= found["at_most_ns"]
        assert after["lower_bound_ns"] <= found["at_most_ns"]
        assert found["witness"]


def test_ranges_of_other_cuts(running: Running):
    """Tests that the same batch in other microbatches, and another batch, have ranges in which a plan lies, and that a
    cut that does not come out even has a reason instead."""
    client, toy = running.client(), plain_problem()
    problem = replace(toy, profile=replace(toy.profile, microbatch_size=8), num_microbatches=4)
    base = client.plan(problem, limits=QUICK)["id"]
    changes: list[dict[str, Any]] = [{"microbatch_size": 2}, {"global_batch_size": 64, "microbatch_size": 16}]
    body = {"base": base, "changes": [*changes, {"microbatch_size": 3}]}
    *ranges, uneven = json.loads(request(running, "POST", "/v1/what-if/ranges", body)[2])["ranges"]
    check_ranges(client, base, zip(changes, ranges, strict=True))
    assert uneven["at_least_ns"] is None
    assert "not a whole number" in uneven["reason"]


def test_picture_and_history(running: Running, done: Any):
    """Tests that what the page draws is the plan, with a baseline beside it, and that the story has its times."""
    path = f"/v1/plans/{done['id']}"
    status, headers, text = request(running, "GET", f"{path}/picture")
    content = json.loads(text)
    (drawn,) = content["plans"]
    assert status == 200
    assert drawn["figures"]["makespanNs"] == done["incumbent_ns"]
    assert content["lowerBoundNs"] == done["lower_bound_ns"]
    assert len(drawn["linkUse"]) == len(content["machine"]["links"])
    assert request(running, "GET", f"{path}/picture", headers={"If-None-Match": headers["etag"]})[0] == 304
    row = next(row for row in drawn["baselines"] if row["family"] == "1F1B" and row["makespanNs"])
    _, _, text = request(running, "GET", f"{path}/picture?baseline={quote(row['name'])}")
    assert json.loads(text)["plans"][1]["figures"]["makespanNs"] == row["makespanNs"]
    for query, expected in (("baseline=none", 422), ("incumbent=999", 404), ("incumbent=x", 422), ("against=x", 404)):
        assert request(running, "GET", f"{path}/picture?{query}")[0] == expected
    events = json.loads(request(running, "GET", f"{path}/history")[2])["events"]
    assert [event["kind"] for event in events[:2]] == ["queued", "started"]
    assert events[-1]["kind"] == "done"
    assert [event["at_s"] for event in events] == sorted(event["at_s"] for event in events)
    for event in events:
        if event["has_plan"]:
            _, _, text = request(running, "GET", f"{path}/picture?incumbent={event['seq']}")
            assert json.loads(text)["plans"][0]["figures"]["makespanNs"] == event["incumbent_ns"]


def test_what_if_a_device_is_lost(running: Running, done: Any):
    """Tests that a what-if without a device is planned on what is left, and costs time."""
    client = running.client()
    (name, *_) = client.fetch_plan(done["id"]).devices
    job = client.what_if(done["id"], lost=[name], limits=QUICK)
    after: Any = client.job(job["id"], wait_s=60)
    assert after["state"] == "succeeded"
    assert after["what_if"]["moved_ns"] > 0
    assert name not in client.fetch_plan(job["id"]).devices


def test_verifications_and_playbacks(running: Running, done: Any):
    """Tests that any plan can be verified and played, and that a broken one gets a verdict that says what is wrong."""
    client, problem = running.client(), plain_problem()
    plan = client.fetch_plan(done["id"])
    assert client.verify(plan)["passed"]
    assert client.verify(plan, problem, certificate=True)["passed"]
    words = {device: word[::-1] for device, word in plan.schedule.items()}
    broken = client.verify(replace(plan, schedule=words), problem)
    assert not broken["passed"]
    assert broken["violations"]
    assert plan.evidence is not None
    assert json.loads(client.play(plan, what="simulation"))["makespan_ns"] == plan.evidence.makespan_ns
    assert client.play(plan, what="view", other=plan).startswith("<!")


def test_audits(running: Running):
    """Tests that a configuration is audited as on the command line, its plan verified, and refused by its flag."""
    client = running.client()
    config = {"model_type": "llama", "num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8,
              "intermediate_size": 1024, "vocab_size": 32000}  # fmt: skip
    script = "torchrun pretrain_gpt.py --bf16 --pipeline-model-parallel-size 2 --global-batch-size 8"
    found = client.audit("megatron", config=config, file="a.sh", text=script, time_limit_s=0.5, files=True)
    assert (found["verdict"], found["configuration"]["pipeline"], found["unknown"]) == ("runs", 2, [])
    plan = parse_plan(found["files"]["plan.json"].encode(), source="plan")
    assert client.verify(plan)["passed"]
    validate_as("Audit", found)
    for body, told in (
        ({"model": "/etc/hostname"}, "model: not known"),
        ({"file": "a.sh"}, "give its text beside it"),
        ({"model": "llama3-8b", "pp": 0}, "give 1 or more"),
        ({"model": "llama3-8b", "devices": 2, "network_gb_per_s": 12.5}, "GPUs are in one node; leave it out"),
        ({"model": "llama3-8b", "file": "a.sh", "text": "x.py --use-megatron-fsdp"}, "--use-megatron-fsdp: weights"),
    ):
        status, headers, text = request(running, "POST", "/v1/audits", {"program": "megatron", **body})
        assert (status, headers["content-type"]) == (422, "application/problem+json"), text
        assert told in json.loads(text)["errors"][0]["detail"]


def test_problems_name_the_place_not_the_value(running: Running):
    """Tests that a refusal points to the mistake, has a code, and does not repeat what was sent."""
    body: Any = json.loads(json.dumps(example_submission()))
    body["workload"]["profile"]["layers"][1]["costs"][0]["forward_ns"] = "MARKER-12345"
    status, headers, text = request(running, "POST", "/v1/plans", body)
    problem = json.loads(text)
    assert (status, headers["content-type"]) == (422, "application/problem+json")
    assert problem["errors"][0]["pointer"] == "/workload/profile/layers/1/costs/0/forward_ns"
    assert b"MARKER" not in text
    validate_as("Problem", problem)


@pytest.mark.parametrize(
    "fields",
    [{"tags": ["a b"]}, {"global_batch_size": 8, "microbatch_sizes": [2, 2]}, {"num_microbatches": -1}],
)
def test_problems_point_into_the_body(running: Running, fields: dict[str, Any]):
    """Tests that a refusal that a class of ours words points to nothing that the body does not have."""
    text = request(running, "POST", "/v1/plans", {**example_submission(), **fields})[2]
    assert [each["pointer"].split("/")[1:2] for each in json.loads(text)["errors"]] in (
        [[]],
        [[next(reversed(fields))]],
    )


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"num_microbatches": 10**6}, "actions"),
        ({"num_microbatches": 50_000, "options": {"max_stages_per_device": 1000}}, "actions"),
        ({"limits": {"time_limit_s": 10**5}}, "time_limit_s"),
        ({"limits": {"gap": 2}}, "fraction"),
        ({"priority": 99}, "priority"),
        ({"surprise": 1}, "field"),
    ],
)
def test_too_much_is_refused(running: Running, changes: dict[str, Any], word: str):
    """Tests that a request beyond a limit is refused before it is solved, with the limit's name."""
    status, _, text = request(running, "POST", "/v1/plans", {**example_submission(), **changes})
    assert status == 422
    assert word in text.decode()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", 400),
        (b'{"workload": ', 400),
        (b'{"workload": "\xff"}', 400),
        (b'{"workload": {"a": "\\u0000"}}', 422),
        (b'{"workload": {"not JSON": "UTF-8"}}', 422),
    ],
)
def test_unreadable_is_not_impossible(running: Running, body: bytes, expected: int):
    """Tests that 400 is for what is no JSON at all, and 422 for what it says, whatever words that consists of."""
    assert request(running, "POST", "/v1/plans", body)[0] == expected


def test_demos_pipe_into_post(running: Running):
    """Tests that a demo's body is accepted as it is."""
    names = running.client().demos()
    assert "resnet50-two-hosts" in names
    body = request(running, "GET", "/v1/demo-profiles/vgg16-ethernet")[2]
    status, _, text = request(running, "POST", "/v1/plans", body)
    assert status in (200, 202), text
    running.client().delete(json.loads(text)["id"])


@pytest.mark.parametrize(
    "ceilings", [Ceilings(max_time_limit_s=2.0), Ceilings(max_devices=1, max_layers=1, max_actions=1)]
)
def test_small_limits_stop_nothing_else(tmp_path: Path, ceilings: Ceilings):
    """Tests that a service with small limits starts, and that only a time that is stated can be too long."""
    toy = workload_document(make_toy_problem())
    with serving(tmp_path, num_workers=0, ceilings=ceilings) as running:
        demo = json.loads(request(running, "GET", "/v1/demo-profiles/vgg16-ethernet")[2])
        assert demo["limits"]["time_limit_s"] == min(10.0, ceilings.max_time_limit_s)
        if ceilings.max_devices == 1:
            assert request(running, "POST", "/v1/plans", demo)[0] == 422
            return
        for body in (demo, toy, {"workload": toy}, {"workload": toy, "limits": {"seed": 1}}):
            assert request(running, "POST", "/v1/plans", body)[0] == 202
        stored = running.service.store.request_text(running.client().jobs()[0]["id"])
        assert json.loads(stored)["limits"]["time_limit_s"] == 2.0
        assert request(running, "POST", "/v1/plans", {"workload": toy, "limits": {"time_limit_s": 2.5}})[0] == 422


def test_every_limit_is_published(running: Running):
    """Tests that capabilities name the limits, and that metrics count requests by route, not by path."""
    limits = running.client().capabilities()["limits"]
    assert {"max_body_bytes", "max_actions", "max_time_limit_s", "unfinished_jobs", "hourly_jobs"} <= set(limits)
    text = request(running, "GET", "/metrics")[2].decode()
    assert 'pipeplan_requests_total{method="GET",route="/v1/capabilities",status="200"}' in text
    assert all(f'pipeplan_jobs{{state="{state}"}}' in text for state in ("queued", "running", "failed", "cancelled"))


def test_the_document_is_committed():
    """Tests that docs/openapi.json is the interface: `pipeplan serve --openapi` prints it."""
    committed = (Path(__file__).parents[3] / "docs" / "openapi.json").read_text(encoding="utf-8")
    assert json.loads(committed) == make_document()


def test_the_examples_are_valid_and_run(running: Running):
    """Tests that every example of a body is what the document asks for, and is answered with what it promises."""
    document, num_examples = make_document(), 0
    for path, item in document["paths"].items():
        content = item.get("post", {}).get("requestBody", {}).get("content", {}).get("application/json", {})
        for example in content.get("examples", {}).values():
            schema = {**content["schema"], "components": document["components"]}
            jsonschema.validate(example["value"], schema)
            status, _, text = request(running, "POST", path, example["value"], {"Prefer": "wait=60"})
            assert status == 200, text
            num_examples += 1
    assert num_examples


def test_keys_are_needed_on_open_binds(tmp_path: Path):
    """Tests that a bind that others reach is refused without keys, and with keys as long as there are none."""
    with pytest.raises(ValueError, match="needs keys"):
        require_safe(Settings(data=tmp_path, needs_keys=False), "0.0.0.0")
    with pytest.raises(ValueError, match="there are no API keys"):
        require_safe(Settings(data=tmp_path), "0.0.0.0")
    require_safe(Settings(data=tmp_path, needs_keys=False), "127.0.0.1")


def test_too_many_requests(tmp_path: Path):
    """Tests that a client beyond its rate is sent away for a moment, with the time to wait."""
    with serving(tmp_path, traffic=ClientLimits(requests_per_s=1.0, burst=3)) as running:
        answers = [request(running, "GET", "/v1/plans") for _ in range(5)]
    assert [status for status, _, _ in answers] == [200, 200, 200, 429, 429]
    assert answers[-1][1]["retry-after"] == "1"


def test_a_restart_loses_nothing(tmp_path: Path):
    """Tests that a service told to end while it solves ends in time, and that the next one has the plan and goes on."""
    with serving(tmp_path) as running:
        client = running.client()
        job = client.submit(large_problem(), limits=Limits(time_limit_s=500.0, patience_s=500.0, threads=1))
        for event in client.follow(job["id"]):
            if event["kind"] == "incumbent":
                break
        begin = time.monotonic()
    assert time.monotonic() - begin < 40
    with serving(tmp_path) as running:
        client = running.client()
        again = client.job(job["id"])
        assert again["state"] in ("queued", "running")
        assert again["incumbent_ns"]
        client.stop(job["id"])
        done = client.job(job["id"], wait_s=60)
        assert done["state"] == "succeeded"
        assert (done["incumbent_ns"] or 0) <= (again["incumbent_ns"] or 0)
        assert verify(large_problem(), client.fetch_plan(job["id"])).passed
