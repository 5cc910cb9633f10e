#!/usr/bin/env bash
# HiGHS' "pretty" solution file rounds integers.
#
# One would expect every style of a solution file to state the same values. Style 0 (raw) prints 1234567; style 1
# (pretty) prints about six significant digits, so that an integer variable of 1234567 reads 1.23457e+06. Who reads the
# pretty file back has a point that breaks its rows.
#
# Versions: highspy 1.14.0, Python 3.11. Seen: raw 1234567, pretty 1.23457e+06.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'highspy==1.14.0' 'numpy==2.3.5'
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import re
import sys
from pathlib import Path

import highspy

solver = highspy.Highs()
solver.setOptionValue("output_flag", False)
units = solver.addVariable(lb=0, ub=1234567, type=highspy.HighsVarType.kInteger, name="units")
solver.maximize(units)
texts = {}
for style in (0, 1):
    solver.writeSolution(f"style{style}.sol", style)
    lines = Path(f"style{style}.sol").read_text().splitlines()
    texts[style] = " ".join(line.strip() for line in lines if "units" in line)
    print(f"style {style}:", texts[style])
is_exact = {style: re.search(r"\b1234567\b", text) is not None for style, text in texts.items()}
if not is_exact[0] or is_exact[1]:
    sys.exit("the styles state the same value now")
PYTHON
