"""Rules of fields: what the class refuses and what its schema publishes are one."""

import json
import re
import sys
import unicodedata

import pytest
from pydantic import TypeAdapter

from profiles.field_rules import Name, NameOrEmpty, require_name

PATTERN = re.compile(TypeAdapter(Name).json_schema()["pattern"])


def is_name(text: str) -> bool:
    try:
        require_name("layer", text)
    except ValueError:
        return False
    return True


def test_schema_and_program_agree_on_every_character():
    """Tests that each character of Unicode is allowed in a name by both or by neither, at each place in it."""
    for number in (*range(0xD800), *range(0xE000, sys.maxunicode + 1, 7)):
        letter = chr(number)
        assert bool(PATTERN.search(f"a{letter}b")) == is_name(f"a{letter}b"), hex(number)


def test_what_is_refused_is_not_printable():
    """Tests that a name has every character that is printed, and of others no control, no blank and no direction."""
    for number in (*range(0xD800), *range(0xE000, 0x10000)):
        letter = chr(number)
        if letter.isprintable():
            assert is_name(letter), hex(number)
        elif unicodedata.category(letter) not in ("Cn", "Cs"):
            assert not is_name(letter), hex(number)


@pytest.mark.parametrize("text", ["ab\n", "\u202eab", "a\u00a0b", "a\u200bb", "\ud83d", "\ue000", "\ufffe", ""])
def test_names_that_nobody_can_read_are_refused(text: str):
    """Tests that bodies of the service and documents are held to it alike, and that an emoji is a character."""
    assert not is_name(text)
    assert (PATTERN.fullmatch(text) is None) == (text not in ("", "\ud83d")), "lengths and halves of pairs: elsewhere"
    assert is_name("stufe 1: β🚀")
    assert PATTERN.fullmatch(json.loads('"\\ud83d\\ude80"'))
    assert TypeAdapter(NameOrEmpty).json_schema()["pattern"] == PATTERN.pattern
