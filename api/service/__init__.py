"""The service: HTTP in front of the jobs."""
