"""Trainings to start from: `torchrun ... -m planner.execute plan.json --model examples.small_gpt:make_training`."""
