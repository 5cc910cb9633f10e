"""`pipeplan launch` and `pipeplan job`: tests of api/cli/launch_commands.py."""

from pathlib import Path

from api.cli import main


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys, monkeypatch):
    """Tests that files and commands are printed, and that neither folder nor process comes of it."""
    monkeypatch.chdir(tmp_path)
    example = Path(__file__).parents[3] / "examples" / "two-ranks.json"
    pods = ["kubernetes", "--image", "i"]
    for words in (["torchrun"], ["slurm", "--gpus"], pods, [*pods, "--kueue", "q"], ["sky"], ["ray", "--gpus"]):
        assert main(["launch", *words, str(example), "--dry-run", "--", "train.py"]) == 0
        assert "planner.execute.enter" in capsys.readouterr().out
    assert main(["launch", *pods, "--kueue-level", "x", str(example), "--dry-run", "--", "train.py"]) == 2
    assert "add --kueue QUEUE" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert main(["job", "status", str(tmp_path)]) == 2
    assert "no job was launched from this folder" in capsys.readouterr().err
    assert main(["launch", "torchrun", str(example), "--host", "x=y", "--", "train.py"]) == 2
    assert "--host x: is no host of the plan; give one of this-host" in capsys.readouterr().err
    patch = tmp_path / "patch.yaml"
    patch.write_text("kind: Pod\nspec: {volume: []}\n")
    words = ["launch", "kubernetes", "--image", "i", "--patch", str(patch), str(example), "--dry-run", "--", "train.py"]
    assert main(words) == 2
    assert (
        f"{patch}.spec: a pod has no field 'volume' (its value is []); did you mean volumes?" in capsys.readouterr().err
    )
