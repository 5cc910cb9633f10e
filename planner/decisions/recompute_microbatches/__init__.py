"""Which microbatches of a stage recompute."""
