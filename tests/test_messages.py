"""Messages say what to do: a cause and a remedy, in short sentences."""

from functools import cache
from pathlib import Path

import pytest

from tests.messages import Message, messages
from tests.test_house_rules import PACKAGES, assert_none


@cache
def found_messages() -> tuple[Message, ...]:
    """Those of the product, looked for once."""
    return tuple(messages())


def test_messages_say_what_to_do():
    """Tests that every refusal is a short cause and a remedy; `python -m tests.messages` lists those that are not."""
    found = found_messages()
    assert len(found) > 900
    assert_none(
        [f"{each.place} {fault}: {each.text}" for each in found for fault in each.faults()], "Say cause and remedy:"
    )


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("-m {count} is out of range; give 1 or more", []),
        ("{path}: is cut off; {REMEDY}", []),
        ("{path}: {error}", []),
        ("{path}: cannot be read ({error})", ["no remedy"]),
        ("the plan has no stages", ["no remedy"]),
        ("the plan that is asked for has no stages; plan again", ["say it plainly: asked for"]),
        ("a " * 26 + "b; plan again", ["27 words in a sentence"]),
    ],
)
def test_faults_of_messages_are_found(text: str, faults: list[str]):
    """Tests that a missing remedy, a long sentence and a roundabout word are found, and nothing else is."""
    assert list(Message(place="here", kind="ValueError", text=text).faults()) == faults


def test_the_script_finds_messages_of_all_packages():
    """Tests that messages are found in each package of the product."""
    assert {Path(each.place).parts[0] for each in found_messages()} == set(PACKAGES)
