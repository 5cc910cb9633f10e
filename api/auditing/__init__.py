"""What is said of a configuration that somebody has."""
