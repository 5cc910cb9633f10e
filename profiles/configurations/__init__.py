"""Configurations of other people's training programs, as they write them."""
