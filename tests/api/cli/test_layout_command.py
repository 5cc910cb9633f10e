"""`pipeplan layout`."""

import json
from pathlib import Path

import pytest

from api.cli import main
from benchmarks.recipe_models import KIMI_K2


def test_the_layout_alone_is_the_output(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Tests that the layout goes to standard output, what is left at most to standard error, all of it into JSON."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(KIMI_K2))
    assert main(["layout", str(config), "--pp", "4", "--vpp", "1"]) == 0
    out, said = capsys.readouterr()
    assert out == "Et*16|t*16|t*16|t*13L\n"
    assert said.startswith("4 ranks x 1; no layout takes 0.")
    assert main(["layout", "llama3-8b", "--pp", "3", "--target", "deepspeed", "--gpu", "h100", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["value"], found["pipeline"]) == ([0, 13, 24, 34], 3)
    assert found["certificate"]["kind"] in ("cuts", "counting")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["nope"], "neither a known model nor a file"),
        (["llama3-8b", "--gpu", "v100"], "its rates are not known; give one of a100_sxm"),
        (["llama3-8b", "--pp", "40"], "use fewer ranks"),
    ],
)
def test_what_is_refused(given: list[str], told: str, capsys: pytest.CaptureFixture[str]):
    """Tests that a refusal is one line, with exit code 2."""
    assert main(["layout", *given]) == 2
    assert told in capsys.readouterr().err
