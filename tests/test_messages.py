"""Messages say what to do: a cause and a remedy, in short sentences."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from planner.judge.remedies import REMEDIES
from planner.launch.manifest_fields import require_known_fields
from planner.verify import RULES
from profiles.load import load_workload
from tests.messages import MAX_WORDS, VERBS, Message, messages, sentences_of_verdicts
from tests.test_house_rules import PACKAGES, assert_none


def make_gpt(settings: str) -> object:
    """A model by its settings; only this imports torch."""
    from profiles.measure.families.catalog import make_family

    return make_family("gpt", settings)


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


def test_verdicts_say_a_cause():
    """Tests that what a rule of the verifier says is one sentence of at most 25 words."""
    found = list(sentences_of_verdicts())
    assert len(found) > 80
    faults = [
        f"{each.place}: {each.text}"
        for each in found
        if len(each.text.split()) > MAX_WORDS or re.search(r"[.;] \w", each.text.split("{", 1)[0])
    ]
    assert_none(faults, "Say the cause in one short sentence:")


def test_every_rule_has_a_remedy():
    """Tests that each rule of the verifier has a sentence of at most 25 words that says what to do."""
    assert set(REMEDIES) == set(RULES)
    verbs = set(VERBS.split())
    faults = [
        f"{rule}: {text}"
        for rule, text in REMEDIES.items()
        if text.split()[0].lower() not in verbs or len(text.split()) > MAX_WORDS or not text.endswith(".")
    ]
    assert_none(faults, "Begin with a verb, end with a full stop:")


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (
            lambda: load_workload("demo:vgg16-ethernt"),
            "demo:vgg16-ethernt: no such demo; did you mean demo:vgg16-ethernet?",
        ),
        (lambda: make_gpt("layer=4"), "gpt: 'layer=4' is not a setting; did you mean 'layers'?"),
        (
            lambda: require_known_fields({"restartPolcy": "Never"}, "PodSpec", where="p"),
            "p: a pod has no field 'restartPolcy' (its value is 'Never'); did you mean restartPolicy?",
        ),
    ],
)
def test_a_likely_word_is_the_whole_remedy(ask: Callable[[], object], said: str):
    """Tests that a misspelt name is answered with the one that was meant, and with nothing else."""
    with pytest.raises(ValueError, match=rf"^{re.escape(said)}$"):
        ask()


def test_the_script_finds_messages_of_all_packages():
    """Tests that messages are found in each package of the product."""
    assert {Path(each.place).parts[0] for each in found_messages()} == set(PACKAGES)
