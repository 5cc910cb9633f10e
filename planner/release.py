"""Which release of this project runs. Plans, the service, wheels and images all state it."""

RELEASE = "0.3.0"
"""Read by pyproject.toml as well, so that the source alone knows it on a machine where nothing is installed."""
