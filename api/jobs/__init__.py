"""Jobs: what is asked of the planner and has not been answered yet, the one that asks and whichever process answers."""
