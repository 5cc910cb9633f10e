"""The page at /: plain HTML, JavaScript and CSS, served as they are."""
