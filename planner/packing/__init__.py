"""Sequences of different length: which are packed together, and which pipeline runs which packs."""
