"""Commands on pages: blocks of `console` are checked here, blocks of `console needs: a GPU` cannot run here.

`pipeplan` lines go through the command line's own parser, with all their options and values. Modules and targets of
make exist, and their options stand in their source. Other programs are named in RUN_ELSEWHERE, or need a reason.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.exceptions import TyperException

from api.cli import app
from tests.prose import ROOT
from tests.test_documents import NEW_PAGES, text_of
from tests.test_house_rules import assert_none

FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
RUN_ELSEWHERE = {("docs/how-to/serve-a-team.md", "curl"): "tests/test_readme.py runs it"}
LAUNCHER_OPTIONS = {"--nproc-per-node", "--nnodes", "--standalone"}
"""Options of torchrun that pages use."""


def console_blocks(text: str) -> Iterator[tuple[str, list[str]]]:
    """What a block needs that is not here, or nothing, and its commands; raises ValueError for other blocks."""
    for block in FENCE.finditer(text):
        info, body = block["info"].strip(), re.sub(r"(\\|\|)\n\s*", lambda end: end[1].strip("\\"), block["body"])
        shown = [line.removeprefix(block["indent"]) for line in body.splitlines()]
        lines = [line.removeprefix("$ ") for line in shown if line.startswith("$ ")]
        language, _, rest = info.partition(" ")
        reason = rest.removeprefix("needs:").strip() if rest.startswith("needs:") else ""
        if bool(lines) != (language == "console") or (rest and not reason):
            raise ValueError(f"```{info}: commands stand in `console` blocks, or in `console needs: something`")
        if lines:
            yield reason, lines


def fault(line: str, page: str) -> str | None:
    """What is wrong with a command, or None."""
    words = shlex.split(line, comments=True)
    while re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    program, *arguments = words
    if program == "pipeplan":
        return fault_of_pipeplan(arguments)
    if program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        return None if arguments[0] in targets else f"no target {arguments[0]}"
    if program in ("torchrun", "python", "python3") and "-m" in arguments:
        return fault_of_module(arguments)
    return None if (page, program) in RUN_ELSEWHERE else f"say why {program} is not run: `console needs: something`"


def fault_of_pipeplan(arguments: list[str]) -> str | None:
    """What the command line's parser says."""
    command: Any = typer.main.get_command(app)
    try:
        while hasattr(command, "commands"):
            context = command.make_context("pipeplan", [], resilient_parsing=True)
            context.resilient_parsing = False
            _, command, arguments = command.resolve_command(context, arguments)
        command.make_context("pipeplan", list(arguments))
    except TyperException as error:
        return str(error)
    return None


def fault_of_module(arguments: list[str]) -> str | None:
    """Whether a module exists whose source has the options, itself or in its folder."""
    place = arguments.index("-m")
    module, given = arguments[place + 1], until_program(arguments[place + 2 :])
    if module == "torch.distributed.run":
        return fault_of_module(given)
    unknown = {word.partition("=")[0] for word in arguments[:place] if word.startswith("--")} - LAUNCHER_OPTIONS
    path = ROOT / Path(*module.split("."))
    files = [path / "__main__.py", path / "program.py", path.with_suffix(".py")]
    source = "".join(file.read_text(encoding="utf-8") for file in files if file.exists())
    if not source:
        return f"no module {module}"
    unknown |= {word for word in given if word.startswith("--") and f'"{word.partition("=")[0]}"' not in source}
    return f"{module} has no {', '.join(sorted(unknown))}" if unknown else None


def until_program(words: list[str]) -> list[str]:
    """Without the program that a launcher is to run."""
    return words[: words.index("--")] if "--" in words else words


@pytest.mark.parametrize("page", NEW_PAGES)
def test_commands_are_ones_that_exist(page: str):
    """Tests that each command of a page is taken by its program's parser, or says why it cannot be run here."""
    faults = [
        f"{line}: {found}"
        for reason, lines in console_blocks(text_of(page))
        for line in lines
        if (not reason or line.startswith("pipeplan ")) and (found := fault(line, page))
    ]
    assert_none(faults, f"Commands of {page}:")


INLINE = re.compile(r"`(pipeplan [^`]+)`")
GONE = {("docs/reference/upgrade.md", "pipeplan compare --for-stages")}
"""Commands that a page names because they are no more."""


def named_command(line: str) -> str | None:
    """What is wrong with a command in a sentence, which leaves out arguments and may name a group; or None."""
    command: Any = typer.main.get_command(app)
    words = shlex.split(line)[1:]
    while words and hasattr(command, "commands"):
        if words[0] not in command.commands:
            return f"{line}: no command {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    known = {"--help", "-h"} | {
        name for parameter in command.params for name in [*parameter.opts, *parameter.secondary_opts]
    }
    unknown = {word.partition("=")[0] for word in words if word.startswith("-")} - known
    return f"{line}: no {', '.join(sorted(unknown))}" if unknown else None


@pytest.mark.parametrize("page", NEW_PAGES)
def test_commands_in_sentences_exist(page: str):
    """Tests that every command that a sentence names is one, with options that it has."""
    lines = {" ".join(line.split()) for line in INLINE.findall(text_of(page))}
    faults = [found for line in lines if (page, line) not in GONE and (found := named_command(line))]
    assert_none(faults, f"Named on {page}:")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("pipeplan plan workload.json --no-such", "No such option"),
        ("pipeplan plan", "Missing parameter: workload"),
        ("pipeplan plan w.json --threads many", "should be a valid integer"),
        ("pipeplan plam w.json", "No such command"),
        ("pipeplan launch torchrum p.json -- x.py", "No such command"),
        ("torchrun --nproc-per-node 2 -m planner.execute p.json --modul m:f", "has no --modul"),
        ("torchrun --procs 2 -m planner.execute p.json", "has no --procs"),
        ("python -m benchmarks.no_such", "no module"),
        ("make everything", "no target"),
        ("kubectl get pods", "say why kubectl is not run"),
    ],
)
def test_wrong_commands_are_found(line: str, said: str):
    """Tests that a command which its program would refuse is found."""
    assert said in (fault(line, "README.md") or "")


@pytest.mark.parametrize("info", ["", "bash", "console needs:", "console gpu"])
def test_other_blocks_have_no_commands(info: str):
    """Tests that commands outside console blocks, and blocks left out without a reason, are refused."""
    with pytest.raises(ValueError, match="commands stand in"):
        list(console_blocks(f"```{info}\n$ ls\n```\n"))
