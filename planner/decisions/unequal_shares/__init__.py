"""Replicas that take unequal shares of a microbatch's samples."""
