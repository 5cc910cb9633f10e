"""Webhooks over HTTP: tests of api/service/handlers/webhook_handlers.py."""

import json

from tests.api.service.servers import Running
from tests.api.service.test_http import request


def test_webhooks_are_off_by_default(running: Running):
    """Tests that without allowed hosts nobody can make the service speak to an address."""
    status, _, text = request(running, "POST", "/v1/webhooks", {"url": "http://127.0.0.1/"})
    assert (status, json.loads(text)["code"]) == (409, "webhooks_off")
