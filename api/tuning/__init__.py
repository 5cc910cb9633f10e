"""`pipeplan tune`: plans of a model, run for a short while; the clock decides."""
