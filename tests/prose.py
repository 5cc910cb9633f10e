"""How many words pages have, and how long their sentences and paragraphs are: `python -m tests.prose` prints a table.

Words of a page are counted as `wc -w` counts them, code and tables included. Sentences and paragraphs are those of the
prose: headings and code blocks are left out, a link counts by its text, and code or mathematics within a sentence is
one word. A colon ends no sentence. A sentence of a table's cell counts only if it is long. The head of a skill is not
prose but its `description:`.
"""

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAX_SENTENCE_WORDS = 25
_LIST_ITEM = re.compile(r"^\s*(?:[*+-]|\d+\.)\s+")
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')*_]*\s+(?=[A-Z0-9`\"'(\[*_$])")
_HEAD = re.compile(r"---\n(?:.*\n)*?description: (.*)\n(?:.*\n)*?---\n")
_TERMS = re.compile(r"`[^`]+`|\$[^$]+\$")
_LINKS = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prose:
    """What a page is made of, in words."""

    num_words: int
    sentences: tuple[int, ...]
    """Words of every sentence."""
    paragraphs: tuple[int, ...]
    long_sentences: tuple[str, ...] = field(default=())

    @property
    def short_share(self) -> float:
        """The part of the sentences that have at most 25 words."""
        return 1 - len(self.long_sentences) / max(1, len(self.sentences))


def measure(text: str) -> Prose:
    """Count one page."""
    paragraphs, cells = [], []
    head = _HEAD.match(text)
    prose = text if head is None else f"{head[1]}\n\n{text[head.end() :]}"
    for is_cell, block in _blocks(prose.splitlines()):
        (cells if is_cell else paragraphs).append(block)
    sentences = [sentence for block in paragraphs for sentence in _sentences(block)]
    sentences += [one for cell in cells for one in _sentences(cell) if _length(one) > MAX_SENTENCE_WORDS]
    return Prose(
        num_words=len(text.split()),
        sentences=tuple(map(_length, sentences)),
        paragraphs=tuple(map(_length, paragraphs)),
        long_sentences=tuple(one for one in sentences if _length(one) > MAX_SENTENCE_WORDS),
    )


def _blocks(lines: Iterable[str]) -> Iterator[tuple[bool, str]]:
    """Paragraphs, items of lists and cells of tables; the first part says whether it is a cell."""
    fence, block = "", list[str]()
    for line in [*lines, ""]:
        mark = re.match(r"\s*(```+|\$\$)", line)
        if fence or mark:
            fence = "" if fence and line.strip().startswith(fence) else fence or (mark[1] if mark else "")
            ends, start = True, ""
        elif line.lstrip().startswith("|"):
            yield from ((True, cell) for cell in line.strip().strip("|").split("|"))
            ends, start = True, ""
        else:
            is_separate = not line.strip() or line.startswith(("#", ":::", "<!--"))
            ends = is_separate or _LIST_ITEM.match(line) is not None
            start = "" if is_separate else _LIST_ITEM.sub("", line).lstrip("> ")
        if ends and block:
            yield False, " ".join(block)
        block = ([] if ends else block) + ([start] if start else [])


def _sentences(block: str) -> list[str]:
    plain = _LINKS.sub(r"\1", _TERMS.sub("CODE", block))
    return [part for part in _SENTENCE_END.split(plain) if _length(part)]


def _length(text: str) -> int:
    plain = _LINKS.sub(r"\1", _TERMS.sub("CODE", text))
    return sum(any(letter.isalnum() for letter in word) for word in plain.split())


def pages() -> list[str]:
    """Every page of the repository but CHANGELOG, by its path; pages that are made from code are not in git."""
    listed = ("git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md")
    found = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    return sorted(page for page in found if page != "CHANGELOG.md" and (ROOT / page).exists())


def main() -> None:
    """Print a row per page; for pages that are named, their long sentences as well."""
    counted = {page: measure((ROOT / page).read_text(encoding="utf-8")) for page in sys.argv[1:] or pages()}
    for page, prose in counted.items():
        longest = max(prose.paragraphs, default=0)
        rows = [f"{prose.num_words:7,} words {prose.short_share:6.1%} short, paragraphs to {longest:4}: {page}"]
        rows += [f"        {sentence}" for sentence in prose.long_sentences if sys.argv[1:]]
        sys.stdout.write("\n".join(rows) + "\n")
    sys.stdout.write(f"{sum(prose.num_words for prose in counted.values()):7,} words in all\n")


if __name__ == "__main__":
    main()
