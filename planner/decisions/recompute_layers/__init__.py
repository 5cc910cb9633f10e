"""Which layers of a stage recompute, and by which kind."""
