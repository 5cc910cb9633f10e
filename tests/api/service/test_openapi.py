"""Schemathesis: what the OpenAPI document promises holds for requests that nobody thought of, in sequences too."""

import copy
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.stateful
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from hypothesis.errors import FlakyStrategyDefinition

from api.client import Client, ServerError, workload_document
from api.doctor import make_toy_problem
from api.service.handlers.route_notes import example_submission
from api.service.openapi import make_document
from api.settings import ClientLimits
from planner.progress import Limits
from tests.api.jobs.workers.test_pool import large_problem
from tests.api.service.servers import Running, serving, wait_ready
from tests.long_runs import IS_LONG, examples, shortened

EXAMPLES = int(os.environ.get("PIPEPLAN_SCHEMA_EXAMPLES", "3"))
"""Requests per operation; the long run takes more."""

FEW = hypothesis.settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)

ACCEPTED = ["2xx", "3xx", "401", "403", "404", "409", "422", "429"]
"""A body that has the right shape may still ask for something impossible: names that refer to nothing, no plan."""

CONFIGURATION = {
    "checks": {"positive_data_acceptance": {"expected-statuses": ACCEPTED}},
    "phases": {"coverage": {"enabled": IS_LONG}},
}


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service that is ready and does not mind many requests."""
    with serving(tmp_path_factory.mktemp("schema"), traffic=ClientLimits(requests_per_s=1e6, burst=10**6)) as started:
        wait_ready(started)
        yield started


STATED = json.loads((Path(__file__).parents[3] / "docs" / "openapi.json").read_text(encoding="utf-8"))
"""The document, which test_http.py holds against the one that the service makes."""

OPERATIONS = [f"{method.upper()} {path}" for path, methods in STATED["paths"].items() for method in methods]
"""Each is a test with a name of its own. Those that `schema.parametrize()` makes share one, and pytest-xdist runs one
test of a name; it also generates what is sent while tests are collected, in every process."""


@pytest.fixture(scope="module")
def schema() -> Any:
    """What schemathesis reads in the document; its import, reading and generating take seconds, which not every process
    spends.
    """
    import schemathesis
    from schemathesis.config import SchemathesisConfig

    document = copy.deepcopy(make_document())  # schemathesis writes links of its own into it
    return schemathesis.openapi.from_dict(document, config=SchemathesisConfig.from_dict(CONFIGURATION))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation(operation: str, schema: Any, roomy: Running):
    """Tests that every answer to a generated request, valid or not, is as the document says, and none is a 5xx."""
    from schemathesis.generation.feedback import FeedbackSources
    from schemathesis.pytest._test_builder import build_operation_test

    method, path = operation.split(" ")

    def call(case: Any) -> None:
        case.call_and_validate(base_url=roomy.url, headers={"Prefer": "wait=0"}, timeout=120)

    build_operation_test(
        config=schema.config,
        operation=schema[path][method],
        test_func=call,
        given_kwargs={},
        feedback=FeedbackSources(),
        explicit_settings=FEW,
    )()


def test_sequences(schema: Any, roomy: Running):
    """Tests that the same holds for sequences: what is submitted is looked at, stopped, pinned, fetched and deleted."""
    jobs = schema if IS_LONG else schema.include(path_regex="^/v1/plans")  # what chains is there, not in 50 others
    machine, seen, sequences = jobs.as_state_machine(), set[str](), []
    failures: list[Exception] = []
    patient = roomy.client()

    class Sequences(machine):  # type: ignore[valid-type, misc]
        def setup(self) -> None:
            sequences.append(self)
            self.num_submitted = 0

        def get_call_kwargs(self, case: Any) -> dict[str, Any]:
            return {"base_url": roomy.url, "timeout": 120}

        def before_call(self, case: Any) -> None:
            """No generator finds a workload that can be planned, and without a plan there is nothing to go on with."""
            if case.operation.label == "POST /v1/plans" and case.meta.generation.mode.is_positive:
                case.body = SUBMISSIONS[self.num_submitted % len(SUBMISSIONS)]
                self.num_submitted += 1
            if case.operation.label == "GET /v1/plans/{plan_id}/plan" and self.num_submitted % 2:
                with suppress(ServerError):
                    patient.job(str(case.path_parameters["plan_id"]), wait_s=5)

        def after_call(self, response: Any, case: Any) -> None:
            super().after_call(response, case)
            seen.add(f"{case.operation.label} {response.status_code // 100}xx")

        def validate_response(self, *args: Any, **kwargs: Any) -> None:
            try:
                super().validate_response(*args, **kwargs)
            except Exception as failure:
                failures.append(failure)
                raise

    few = hypothesis.settings(FEW, stateful_step_count=12, max_examples=shortened(4, whole=6), derandomize=False)
    for number in range(MOST_RUNS):
        with suppress(FlakyStrategyDefinition):  # Hypothesis cannot know that a job ends by itself
            hypothesis.stateful.run_state_machine_as_test(hypothesis.seed(number)(Sequences), settings=few)
        if len(sequences) >= 3 * EXAMPLES and seen >= CHAINED:
            break
    assert not failures
    assert seen >= CHAINED


MOST_RUNS = 60
"""Runs of a few sequences each: the fewer share their beginnings, the less the ends of jobs come between."""

SUBMISSIONS = [
    example_submission(),
    {
        "workload": workload_document(large_problem()),
        "limits": {"time_limit_s": 1.5, "patience_s": 600.0, "threads": 1},
    },
    {**example_submission(), "limits": {"max_rounds": 1, "seed": 1}, "priority": 3, "pinned": True},
]
"""Bodies that can be planned, at once and in a while."""

CHAINED = {
    "POST /v1/plans 2xx",
    "GET /v1/plans/{plan_id} 2xx",
    "POST /v1/plans/{plan_id}:stop 2xx",
    "POST /v1/plans/{plan_id}:pin 2xx",
    "GET /v1/plans/{plan_id}/plan 2xx",
    "DELETE /v1/plans/{plan_id} 2xx",
}
"""What the sequences must have done at least once."""


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from(("submit", "stop", "delete", "list", "look"))), max_size=12
    )
)
@hypothesis.settings(max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_two_tenants_never_meet(tenants: dict[str, Client], steps: list[tuple[str, str]]):
    """Tests that whatever two tenants do, in whatever order, neither sees, stops or deletes anything of the other."""
    own: dict[str, set[str]] = {"a": set(), "b": set()}
    for number, (tenant, step) in enumerate(steps):
        client, other = tenants[tenant], "b" if tenant == "a" else "a"
        if step == "submit":
            limits = Limits(time_limit_s=60, max_rounds=0, seed=number)
            own[tenant].add(client.submit(make_toy_problem(), limits=limits)["id"])
        elif step == "list":
            assert not {job["id"] for job in client.jobs(limit=100)} & own[other]
        else:
            act = {"stop": client.stop, "delete": client.delete, "look": client.job}[step]
            for job_id in own[other]:
                with pytest.raises(ServerError) as refusal:
                    act(job_id)
                assert refusal.value.status == 404
    for tenant, client in tenants.items():
        for job_id in own[tenant]:
            client.delete(job_id)


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Client]]:
    """Two tenants of one service."""
    traffic = ClientLimits(requests_per_s=1e6, burst=10**6, hourly_jobs=10**6)
    with serving(tmp_path_factory.mktemp("tenants"), needs_keys=True, traffic=traffic) as started:
        yield {tenant: started.client(started.key(tenant)) for tenant in "ab"}
