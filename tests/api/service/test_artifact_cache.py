"""What is made of finished plans: tests of api/service/artifact_cache.py."""

import threading
from pathlib import Path

from api.doctor import make_toy_problem
from api.settings import ClientLimits
from tests.api.service.handlers.test_picture_handlers import QUICK
from tests.api.service.servers import Running, serving
from tests.api.service.test_http import request


def at_once(running: Running, paths: list[str]) -> list[tuple[int, bytes]]:
    """Status and body of requests that come at the same time."""
    answers: list[tuple[int, bytes]] = []

    def get(path: str) -> None:
        status, _, body = request(running, "GET", path)
        answers.append((status, body))

    threads = [threading.Thread(target=get, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_a_view_is_made_once_however_many_ask(tmp_path: Path):
    """Tests that thirty views of a plan at once are one drawing, none is sent away, and the next service has it."""
    with serving(tmp_path, traffic=ClientLimits(inspections=3), num_helpers=2) as running:
        view = running.client().plan(make_toy_problem(), limits=QUICK)["links"]["view"]
        before = running.service.gallery.num_made
        answers = at_once(running, [view] * 30)
        assert {status for status, _ in answers} == {200}
        assert len({body for _, body in answers}) == 1
        assert running.service.gallery.num_made == before + 1
    with serving(tmp_path, num_workers=0) as running:
        assert request(running, "GET", view)[2] == answers[0][1]
        assert running.service.gallery.num_made == 0
