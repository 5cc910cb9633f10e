"""Paced layers for more processes than a machine has cores: they sleep, as a host does while its accelerator works."""

from benchmarks.real_models import make_sleepers
from planner.execute.training import Training

NUM_LAYERS, NUM_MICROBATCHES = 8, 8


def make_training() -> Training:
    """Eight uneven layers of 6 to 14 ms forward for a microbatch, twice as much backward; a share takes its share."""
    return make_sleepers(NUM_LAYERS, num_microbatches=NUM_MICROBATCHES, is_scaled=True)
