"""The commands for agents."""
