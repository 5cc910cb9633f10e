"""W, or half of I, of a stage on another device."""
