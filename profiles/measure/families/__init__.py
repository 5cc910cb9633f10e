"""Well-known models in plain torch.nn, one layer of the profile after the other."""
