"""Tests of profiles/configurations/flag_meanings.py."""

from profiles.configurations.flag_meanings import meaning_of
from tests.profiles.configurations.test_megatron_run import FLAGS, as_script, run_of, typed


def test_every_flag_has_a_meaning() -> None:
    """Tests that flags are read, known not to matter, not counted, or named as unknown; and what is taken is listed."""
    script = as_script({**FLAGS, "lr": "1e-4", "moe-new-thing": "3", "fp8-param-gather": ""})
    run = run_of(f"{script} --overlap-everything stray")
    assert run.notes.unknown == ["--moe-new-thing 3", "--overlap-everything stray"]
    assert any("--fp8-param-gather" in each for each in run.notes.not_counted)
    assert typed().notes.assumed == [
        "devices = 1 (one pipeline)",
        "micro_batch_size = 1",
        "global_batch_size = 16 (16 microbatches per rank)",
        "seq_length = 8192",
        "bf16",
    ]
    assert meaning_of("lr_decay_style") == meaning_of("save_interval") == "irrelevant"
    assert meaning_of("cuda_graph_impl") == meaning_of("grpo_iterations") == "not counted"
