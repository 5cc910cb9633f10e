"""The graph of links: from README and from the site's index, a reader finds every task within two clicks."""

import re
from functools import cache

import pytest

from tests.test_documents import PAGES, text_of
from tests.test_house_rules import ROOT, assert_none

TASKS = {
    "profile my model": "docs/how-to/profile-my-model.md",
    "plan for Megatron": "docs/how-to/plan-for-megatron.md",
    "plan for torchtitan": "docs/how-to/plan-for-torchtitan.md",
    "read a plan": "docs/how-to/read-a-plan.md",
    "run it": "docs/how-to/run-it.md",
    "launch on Slurm or Kubernetes": "docs/how-to/launch.md",
    "serve a team": "docs/how-to/serve-a-team.md",
    "audit what I have": "docs/how-to/audit.md",
    "find the slow rank": "docs/how-to/find-the-slow-rank.md",
    "write a workload by hand": "docs/how-to/write-a-workload.md",
    "know what a gap proves": "docs/concepts/gap.md",
}
"""What people come for, and the page of each."""

LINK = re.compile(r"\]\((?!https?:)([^)#\s]+\.md)")
TREE = re.compile(r"^```\{toctree\}\n(.*?)^```", re.DOTALL | re.MULTILINE)


@cache
def links_of(page: str) -> frozenset[str]:
    """The pages that a page links to, by their paths in the repository; entries of a table of contents count."""
    lines = [line for tree in TREE.findall(text_of(page)) for line in tree.splitlines()]
    targets = [*LINK.findall(text_of(page)), *(f"{line}.md" for line in lines if line and line[0] != ":")]
    paths = ((ROOT / page).parent.joinpath(target).resolve() for target in targets)
    return frozenset(path.relative_to(ROOT).as_posix() for path in paths if path.is_relative_to(ROOT))


def within(start: str, *, clicks: int) -> set[str]:
    """The pages that so many clicks reach."""
    reached = {start}
    for _ in range(clicks):
        reached |= {target for page in reached & set(PAGES) for target in links_of(page)}
    return reached


@pytest.mark.parametrize("start", ["README.md", "docs/index.md"])
def test_tasks_are_two_clicks_away(start: str):
    """Tests that the page of every task is within two clicks of README and of the site's first page."""
    assert_none([task for task, page in TASKS.items() if page not in within(start, clicks=2)], f"Far from {start}:")


@pytest.mark.parametrize("task", ["know what a gap proves", "write a workload by hand"])
def test_what_newcomers_miss_is_one_click_away(task: str):
    """Tests that README itself links to what a gap proves, and to `pipeplan new`."""
    assert TASKS[task] in within("README.md", clicks=1)


def test_every_page_is_found():
    """Tests that three clicks from README reach every page of the site."""
    of_site = {page for page in PAGES if page.startswith("docs/")}
    assert_none(sorted(of_site - within("README.md", clicks=3)), "No way leads to:")


def test_the_gap_page_says_what_it_does_not_prove():
    """Tests that the page says that a gap tells nothing of errors of measurement."""
    assert "Nothing about errors of measurement" in text_of(TASKS["know what a gap proves"])


@pytest.mark.parametrize("page", sorted(TASKS.values()))
def test_tasks_are_titles(page: str):
    """Tests that the title says the task in at most five words, and that a command comes within a screen."""
    lines = text_of(page).splitlines()
    assert len(lines[0].removeprefix("# ").split()) <= 5
    assert any(line.startswith("```") for line in lines[:30])


def test_paths_are_those_of_pages():
    """Tests that links are found, with anchors cut off, and those to elsewhere are not."""
    assert [*LINK.findall("[a](b.md#c) [d](https://e/f.md) [g](../h/i.md) `j.md`")] == ["b.md", "../h/i.md"]
    assert "docs/tutorial.md" in links_of("docs/index.md")
