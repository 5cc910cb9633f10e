"""`pipeplan schema` and `pipeplan new`: what documents look like, and one to begin with."""

import json
import os
from typing import TYPE_CHECKING, Annotated, Literal

from api.cli.options import arguments as arg
from api.cli.options.declare import argument, option
from api.cli.options.folded_help import Commands
from api.cli.output import make_console, write_document
from planner import option_values

if TYPE_CHECKING:
    from profiles.workload import Workload

commands = Commands()

_Template = Literal["workload", "cluster"]


@commands.command(
    "schema", epilog="Examples:\n\npipeplan schema workload -o workload.schema.json\n\npipeplan schema plan | less"
)
def schema_command(
    *,
    kind: Annotated[option_values.DocumentKind, argument("DOCUMENT", "workload, profile, cluster or plan.")],
    output: arg.Output = None,
) -> None:
    """Print the JSON Schema of a document.

    Editors that know it check a document while it is written: it may name the schema's file in a field "$schema".
    """
    from api.inputs import require_writable
    from planner.documents.schema import render_schema

    require_writable(output)
    write_document(render_schema(kind), output)


@commands.command(
    "new",
    epilog="Example:\n\npipeplan new workload --layers 6 --devices 4 -o workload.json --schema workload.schema.json\n\n"
    "pipeplan plan workload.json",
)
def new_command(
    *,
    kind: Annotated[_Template, argument("DOCUMENT", "workload or cluster.")],
    layers: Annotated[int, option("--layers N", "Layers of the model.", min=1, max=10_000)] = 4,
    devices: Annotated[int, option("--devices N", "Devices of the host.", min=1, max=1024)] = 2,
    num_microbatches: Annotated[int, option("-m --num-microbatches N", "Microbatches per iteration.", min=1)] = 8,
    output: arg.Output = None,
    schema: Annotated[
        str | None, option("--schema FILE", "Write the schema as well, and name it in the document.")
    ] = None,
) -> None:
    """Write a small workload or cluster to fill in.

    It can be planned as it stands, and says what its numbers mean.

    With --schema the schema is written beside it, and named in it, so that editors explain every field.
    """
    from api.inputs import reading, require_writable
    from api.template_guide import render_guide
    from planner.documents.schema import render_schema
    from profiles.template import make_template

    require_writable(output, schema)
    with reading():
        workload = make_template(num_layers=layers, num_devices=devices, num_microbatches=num_microbatches)
    write_document(_render(kind, workload, schema=_seen_from(output, schema)), output)
    if schema is not None:
        write_document(render_schema(kind), schema)
    if kind == "workload":
        console = make_console(is_report=False)
        console.print("Nothing in it is measured. Replace these, in every layer, device and link, and the names:\n")
        console.print(render_guide(workload))
        console.print(
            '\nWhere microbatches differ, list their sizes: "microbatches": [310, 42] in place of num_microbatches.',
            markup=False,
        )


def _seen_from(output: str | None, schema: str | None) -> str | None:
    """The schema's file as a document names it that stands in its own folder."""
    if schema is None or output in (None, "-"):
        return schema
    return os.path.relpath(schema, os.path.dirname(output) or ".")


def _render(kind: _Template, workload: "Workload", *, schema: str | None) -> str:
    """The text of the document, which names its schema if there is one."""
    from profiles.workload import dump_cluster, dump_workload

    assert workload.cluster is not None
    text = dump_workload(workload) if kind == "workload" else dump_cluster(workload.cluster)
    return text if schema is None else text.replace("{\n", f'{{\n"$schema": {json.dumps(schema)},\n', 1)
