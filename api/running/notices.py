"""Telling a service what became of one of its plans: it drifted, or a device was lost."""

import os
import sys
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

PLAN = "PIPEPLAN_NOTIFY"
"""Environment variable: the address of the plan at its service, of which `watch` and launched jobs tell."""


def notify_service(event: Literal["drifted", "device_lost"], detail: Mapping[str, Any], *, url: str | None) -> None:
    """Tell the service of the plan at `url`, or at the environment's; without either nothing is done.

    `url`: `http://HOST/v1/plans/ID`, or the address of the plan's page, `http://HOST/?plan=ID`. What goes wrong is told
    on standard error: nobody's job ends for it. The key is PIPEPLAN_KEY.
    """
    wanted = url or os.environ.get(PLAN)
    if not wanted:
        return
    from api.client import Client, ServerError
    from api.remote import KEY

    try:
        parts = urlsplit(wanted)
        before, _, job_id = parts.path.rpartition("/v1/plans/")
        job_id = job_id if before or parts.path.startswith("/v1/plans/") else parse_qs(parts.query)["plan"][0]
        root = f"{parts.scheme}://{parts.netloc}{before}"
        count = Client(root, key=os.environ.get(KEY), timeout_s=5.0, num_tries=1).notify(job_id, event, detail=detail)
        sys.stderr.write(f"{root} tells {count} webhooks: {event.replace('_', ' ')}\n")
    except (ServerError, ValueError, LookupError) as error:
        sys.stderr.write(f"the service was not notified ({event.replace('_', ' ')}): {str(error)[:300]}\n")
