"""Branch-and-check: which partitions and mappings may still hold the best plan, and what their best orders take."""
