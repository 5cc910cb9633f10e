"""The stash of a microbatch travels to host memory and back."""
