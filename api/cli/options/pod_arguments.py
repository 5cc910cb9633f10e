"""Options of jobs on Kubernetes."""

from typing import Annotated

from api.cli.options.declare import option
from planner import option_values

Image = Annotated[str, option("--image IMAGE", "Container image with torch and pipeplan.")]
Patches = Annotated[
    list[str] | None,
    option("--patch FILE", "YAML or JSON that is merged over what is written (docs/how-to/launch.md); repeatable."),
]
Namespace = Annotated[str, option("--namespace NAME", "Where the job is created.")]
Controller = Annotated[option_values.Controller, option("--controller", "What runs the job in the cluster.")]
Queue = Annotated[
    str | None, option("--kueue QUEUE", "Kueue's LocalQueue; it chooses nodes, whole NVLink domains alike.")
]
QueueLevels = Annotated[
    list[str] | None,
    option(
        "--kueue-level LABEL",
        "A level of its Topology, outermost first; the last: NVLink domains [default: nvidia.com/gpu.clique].",
    ),
]
MaxRestarts = Annotated[int, option("--max-restarts N", "How often a host may fail.", min=0)]
