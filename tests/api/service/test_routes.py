"""Every route of the service, by the modules that answer: tests of api/service/routes.py."""

import json

import pytest

from api.client import workload_document
from api.doctor import make_toy_problem
from tests.api.service.servers import Running
from tests.api.service.test_http import request


@pytest.mark.parametrize("limits", [{"method": "best"}, {"solver": "HiGHS"}, {"method": "cp-sat", "solver": "CBC"}])
def test_no_other_method_is_taken(running: Running, limits: dict[str, str]):
    """Tests that a method that there is not, or a solver without the method that asks it, is refused at its place."""
    body = {"workload": workload_document(make_toy_problem()), "limits": limits}
    status, _, text = request(running, "POST", "/v1/plans", body)
    assert status == 422
    assert json.loads(text)["errors"][0]["pointer"].startswith("/limits")
