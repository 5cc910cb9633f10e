"""The pictures of schedules in the pages: drawn from simulated schedules, and every one that a page shows is there."""

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from tests.test_house_rules import ROOT

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(name="gallery", scope="module")
def schedule_gallery() -> Iterator[ModuleType]:
    """The module beside Sphinx's configuration."""
    spec = importlib.util.spec_from_file_location("schedule_gallery", ROOT / "docs" / "schedule_gallery.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["schedule_gallery"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["schedule_gallery"]


def test_every_picture_of_a_page_is_drawn(gallery: ModuleType, tmp_path: Path):
    """Tests that pages show what the gallery draws, and that 1F1B has a box for every F and B, and a caption."""
    gallery.write_gallery(tmp_path)
    pages = (*(ROOT / "docs" / "concepts").glob("*.md"), *(ROOT / "docs").glob("*.md"))
    shown = {
        name for page in pages for name in re.findall(r"generated/([\w-]+\.svg)", page.read_text(encoding="utf-8"))
    }
    assert shown == {path.name for path in tmp_path.iterdir()}
    root = ElementTree.fromstring((tmp_path / "schedule-1f1b.svg").read_text(encoding="utf-8"))
    boxes = [box for box in root.iter(f"{SVG}rect") if box.find(f"{SVG}title") is not None]
    assert len(boxes) == gallery.NUM_DEVICES * gallery.NUM_MICROBATCHES * 2
    captions = [text.text for text in root.iter(f"{SVG}text")]
    assert "1F1B: 33 steps, bubble 27.3%, holds 4 microbatches" in captions


def test_ours_is_the_shortest_in_its_memory(gallery: ModuleType):
    """Tests that no other schedule in the joint search's memory is shorter, as docs/concepts/schedules.md says."""
    pictures = {picture.name: picture.timeline for picture in gallery.make_pictures()}
    ours, room = pictures.pop(gallery.OURS), gallery.OURS_CAPACITY * gallery.STASH_BYTES
    assert max(ours.peak_bytes.values()) <= room
    others = [each for each in pictures.values() if max(each.peak_bytes.values()) <= room]
    assert len(others) == 4
    assert all(ours.makespan_ns <= each.makespan_ns for each in others)


def test_the_tutorials_plan_is_the_shortest(gallery: ModuleType):
    """Tests that the tutorial's picture has every action of three schedules, and that the plan ends first."""
    timelines = gallery.tutorial_timelines()
    gpipe, one_f_one_b, plan = (each.makespan_ns for each in timelines.values())
    assert gpipe > one_f_one_b > plan
    boxes = list(ElementTree.fromstring(gallery.draw_tutorial(timelines)).iter(f"{SVG}title"))
    assert len(boxes) == sum(len(row) for each in timelines.values() for row in each.actions.values())
