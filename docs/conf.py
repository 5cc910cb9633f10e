"""The site that `make docs` builds into out/site: no request to anywhere, mathematics as MathML."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

project = "pipeplan"
author = "the pipeplan contributors"
extensions = ["myst_parser", "site_extension"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = ["benchmarks/*.local.md"]
myst_enable_extensions = ["dollarmath", "deflist", "colon_fence", "attrs_block", "attrs_inline"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "pipeplan"
html_static_path = ["_static"]
html_css_files = ["site.css"]
highlight_language = "none"
smartquotes = False
html_math_renderer = "mathml"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_use_index = False
nitpicky = False
