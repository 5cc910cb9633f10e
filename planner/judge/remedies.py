"""What to do about each broken rule, one sentence by the rule's name."""

import json
from collections.abc import Mapping
from pathlib import Path

REMEDIES: Mapping[str, str] = json.loads(Path(__file__).with_name("remedies.json").read_text(encoding="utf-8"))
"""Per rule of `planner.verify.RULES`."""
