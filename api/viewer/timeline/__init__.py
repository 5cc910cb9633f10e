"""The timeline of a picture: its view, its canvas, and what answers pointer and keys."""
