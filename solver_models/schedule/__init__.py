"""The CP-SAT order model: partition and mapping are fixed, the order of actions on every device is open."""
