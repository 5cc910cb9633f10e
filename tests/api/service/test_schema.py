"""Schemathesis: what the OpenAPI document promises holds for requests that nobody thought of, in sequences too."""

import os
from collections.abc import Iterator
from typing import Any

import hypothesis
import hypothesis.stateful
import pytest
import schemathesis
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from schemathesis.config import SchemathesisConfig

from api.client import Client, ServerError
from api.doctor import make_toy_problem
from api.service.openapi import make_document
from api.service.settings import Traffic
from planner.progress import Limits
from tests.api.service.servers import Running, serving

EXAMPLES = int(os.environ.get("PIPEPLAN_SCHEMA_EXAMPLES", "8"))
"""Requests per operation; the long run takes more."""

FEW = hypothesis.settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)

ACCEPTED = ["2xx", "3xx", "401", "403", "404", "409", "422", "429"]
"""A body that has the right shape may still ask for something impossible: names that refer to nothing, no plan."""

schema = schemathesis.openapi.from_dict(
    make_document(),
    config=SchemathesisConfig.from_dict({"checks": {"positive_data_acceptance": {"expected-statuses": ACCEPTED}}}),
)


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service that does not mind many requests."""
    with serving(tmp_path_factory.mktemp("schema"), traffic=Traffic(requests_per_s=1e6, burst=10**6)) as started:
        yield started


@schema.parametrize()
@FEW
def test_every_operation(case: Any, roomy: Running):
    """Tests that every answer to a generated request, valid or not, is as the document says, and none is a 5xx."""
    if case.operation.path in ("/readyz",):
        return  # 503 until the toy plan is solved, as it should be
    case.call_and_validate(base_url=roomy.url, headers={"Prefer": "wait=0"}, timeout=120)


def test_sequences(roomy: Running):
    """Tests that the same holds for sequences: what is submitted is looked at, stopped, pinned, fetched and deleted."""
    machine = schema.as_state_machine()

    class Sequences(machine):  # type: ignore[valid-type, misc]
        def get_call_kwargs(self, case: Any) -> dict[str, Any]:
            return {"base_url": roomy.url, "timeout": 120}

    steps = hypothesis.settings(FEW, stateful_step_count=8, max_examples=max(3, EXAMPLES // 2))
    hypothesis.stateful.run_state_machine_as_test(Sequences, settings=steps)


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from(("submit", "stop", "delete", "list", "look"))), max_size=12
    )
)
@hypothesis.settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_two_tenants_never_meet(tenants: dict[str, Client], steps: list[tuple[str, str]]):
    """Tests that whatever two tenants do, in whatever order, neither sees, stops or deletes anything of the other."""
    own: dict[str, set[str]] = {"a": set(), "b": set()}
    for number, (tenant, step) in enumerate(steps):
        client, other = tenants[tenant], "b" if tenant == "a" else "a"
        if step == "submit":
            limits = Limits(time_limit_s=1.0, max_rounds=0, seed=number)
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
    traffic = Traffic(requests_per_s=1e6, burst=10**6, hourly_jobs=10**6)
    with serving(tmp_path_factory.mktemp("tenants"), needs_keys=True, traffic=traffic) as started:
        yield {tenant: started.client(started.key(tenant)) for tenant in "ab"}
