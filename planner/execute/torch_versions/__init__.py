"""What differs between the versions of torch that the executor runs on; a module per difference."""
