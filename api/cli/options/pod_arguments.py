"""Options of jobs on Kubernetes."""

from typing import Annotated, Literal

import typer

Image = Annotated[str, typer.Option("--image", metavar="IMAGE", help="Container image with torch and pipeplan.")]
Patches = Annotated[
    list[str] | None,
    typer.Option(
        "--patch",
        metavar="FILE",
        help="YAML or JSON that is merged over what is written (docs/how-to/launch.md); repeatable.",
        show_default=False,
    ),
]
Namespace = Annotated[str, typer.Option("--namespace", metavar="NAME", help="Where the job is created.")]
Controller = Annotated[
    Literal["jobset", "trainjob", "volcano"], typer.Option("--controller", help="What runs the job in the cluster.")
]
Queue = Annotated[
    str | None,
    typer.Option("--kueue", metavar="QUEUE", help="Kueue's LocalQueue; it chooses nodes, whole NVLink domains alike."),
]
QueueLevels = Annotated[
    list[str] | None,
    typer.Option(
        "--kueue-level",
        metavar="LABEL",
        help="A level of its Topology, outermost first; the last: NVLink domains [default: nvidia.com/gpu.clique].",
        show_default=False,
    ),
]
MaxRestarts = Annotated[int, typer.Option("--max-restarts", metavar="N", help="How often a host may fail.", min=0)]
