"""Layers, links and widths timed on real devices: the only room of profiles that imports torch."""
