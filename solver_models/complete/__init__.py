"""One integer programme with everything open: partition, mapping, replicas, recomputation, order and memory."""
