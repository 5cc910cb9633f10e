"""The pictures of docs/how-to/use-the-page.md, made in a real browser: the looks of a plan, and the story.

PIPEPLAN_LONG=1 PIPEPLAN_PICTURES=docs/images pytest tests/api/service/test_pictures.py
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome

from tests.api.service.browsers import open_browser
from tests.api.service.page_story import SIZES, WINDOW, Story, live_through, plan_demos, take_pictures
from tests.api.service.servers import Running
from tests.long_runs import long_only

DOCS = Path(__file__).parents[3] / "docs"

GIVEN = os.environ.get("PIPEPLAN_PICTURES")
"""Where to put them; without it they are made for the test alone, after a shorter search."""

LEAST_BYTES = 8_000
"""A picture of something: an empty page has a tenth of that."""


@pytest.fixture
def browser() -> Iterator[Chrome]:
    with open_browser() as opened:
        yield opened


def size_of(picture: Path) -> tuple[int, int]:
    """Width and height of a lossy WebP file."""
    data = picture.read_bytes()
    assert (data[:4], data[8:12]) == (b"RIFF", b"WEBP")
    start = data.index(b"\x9d\x01\x2a") + 3
    return int.from_bytes(data[start : start + 2], "little"), int.from_bytes(data[start + 2 : start + 4], "little")


def shown_in_docs(prefix: str) -> set[str]:
    """The names of pictures that the page of the docs shows."""
    page = (DOCS / "how-to" / "use-the-page.md").read_text(encoding="utf-8")
    return set(re.findall(rf"images/({prefix}-[a-z0-9-]+\.webp)", page))


@long_only
def test_every_look_of_a_plan(browser: Chrome, running: Running, tmp_path: Path):
    """Tests that the pictures of a plan in the docs are all made, each as large as its window and not empty."""
    folder = Path(GIVEN or tmp_path)
    ids = plan_demos(running.url, seconds=20.0 if GIVEN else 4.0)
    take_pictures(browser, running.url, ids=ids, folder=folder)
    assert {f"page-{look}.webp" for look in SIZES} == shown_in_docs("page")
    for look, size in SIZES.items():
        picture = folder / f"page-{look}.webp"
        assert size_of(picture) == size
        assert picture.stat().st_size > LEAST_BYTES


@long_only
def test_the_first_ten_minutes(browser: Chrome, running: Running, tmp_path: Path):
    """Tests that a stranger gets from the empty page to a plan, its rivals, what-ifs and a trace, with every picture
    of the docs, and that each step is answered in words."""
    story = Story(browser, Path(GIVEN or tmp_path))
    live_through(story, running.url)
    assert all(said for _, said in story.rows)
    names = shown_in_docs("story")
    assert len(names) == 6
    for name in names:
        assert size_of(story.pictures / name) == (WINDOW["width"], WINDOW["height"])
        assert (story.pictures / name).stat().st_size > LEAST_BYTES
