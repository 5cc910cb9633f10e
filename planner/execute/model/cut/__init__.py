"""An unchanged model cut into layers that a plan can place: recorded, merged, cut and checked against the whole."""
