"""The search parameters as a table."""

import json

from planner.planning.named_params import ParamDescription, describe_params

HEAD = "| parameter | default | from, to | what it does |\n| --- | --- | --- | --- |"


def render_params_table() -> str:
    """A table of Markdown with a row per parameter; ends with a newline."""
    return "\n".join([HEAD, *map(_row, describe_params())]) + "\n"


def _row(param: ParamDescription) -> str:
    default = json.dumps(param.default) if isinstance(param.default, list) else f"{param.default:,.6g}"
    if isinstance(param.default, int):
        default = f"{param.default:,}"
    return f"| `{param.name}` | {default} | {param.allowed} | {param.meaning} |"
