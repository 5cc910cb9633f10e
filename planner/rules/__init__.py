"""The rules of a valid plan: one rule, one function, one sentence; a room per subject."""
