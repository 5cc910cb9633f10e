"""`pipeplan tune`: tests of api/tuning/command.py."""

import pytest

from tests.api.worlds import Shell


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("examples.train:make_training", "--runs", "0"), "'--runs': Input should be greater than or equal to 1"),
        (("examples.train:make_training", "--steps", "1"), "'--steps': Input should be greater than or equal to 2"),
        (("examples.train:make_training", "--within", "0"), "'--within': Input should be greater than or equal to"),
        (("examples.train:make_training", "--time-limit", "-1"), "--time-limit -1"),
        (("examples.train:make_training", "-w", "workload.json", "-m", "2"), "-m 2: --workload workload.json states"),
        (("examples.train:make_training", "-m", "2", "--devices", "1"), "--devices 1"),
        (("gpt:layers=2,width=48", "-m", "2"), "not run; give module:factory"),
        (("examples.train:make_training", "-o", "nowhere/plan.json"), "the folder nowhere does not exist"),
    ],
)
def test_mistakes_have_one_message(shell: Shell, arguments: tuple[str, ...], message: str):
    """Tests that what means nothing is refused before anything is measured, with what to do."""
    outcome = shell.run("tune", *arguments)
    assert outcome.code == 2
    assert message in outcome.err
