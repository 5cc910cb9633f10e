"""Jobs: what is asked of the planner and has not been answered yet, whoever asks and whichever process answers."""
