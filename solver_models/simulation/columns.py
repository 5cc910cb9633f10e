"""Names for the columns and rows of the tables that kernels share.

Plain integers, since a compiled function takes them as constants. What only one module uses is named there.
"""

ACTIVATIONS, GRADIENTS = 0, 1
"""Directions of a transfer: after F, and after I or B. Also indices into `missing` [N, 2, M], where they arrive."""

RECOMPUTATION = 4
"""Row of a table of work, after the four kinds of action."""

SIZES = ("state", "shardable", "stash", "weight_stash", "checkpoint", "workspace")
STATE_ROW, SHARDABLE_ROW, STASH_ROW, WEIGHT_STASH_ROW, CHECKPOINT_ROW, WORKSPACE_ROW = range(len(SIZES))
"""Rows of `Layers.sizes`, by the names that profiles have for them, and `planner.layout.layer_passes.Resident`."""

ONCE = ("optimizer",)
(OPTIMIZER_ROW,) = range(len(ONCE))
"""Rows of `Layers.once`, likewise."""

STEP = 4
"""Column of a stage's times, after the four kinds of action: the optimizer's step."""

STATED, CUT = 0, 1
"""Rows of gradient units: as stated for the width, and those to be cut into equal parts."""

RECOMPUTING, SHARDING = 1, 2
"""Bits of a stage's mode: it recomputes its activations; its replicas, if there are several, shard the optimizer's
state."""

STATE, HELD, STASH, WEIGHT_STASH, WORKSPACE, WEIGHT_WORKSPACE, WHOLE_BACKWARD, HAS_WEIGHT = range(8)
GRADIENT, NUM_TRAINED, CUT_GRADIENT, WEIGHTS, CUT_WEIGHTS, SHARDABLE, SHARERS = range(8, 15)
"""Columns of a stage's sizes; a replica has the first eight of them, as rows. The last: how many replicas share a step
of the optimizer; 1 where each takes it whole."""

SOURCE, TARGET, FORWARD_SIZE, BACKWARD_SIZE, HAS_GRADIENT, RANK = range(6)
"""Columns of edges between layers (producer, consumer) and of traffic between stages (sender, receiver)."""

SENDER, RECEIVER, DIRECTION, TICKS, ROUTE, SHARED = range(6)
"""Columns of transfers between stage replicas, and rows of sorted ones; the route is -1 inside a device. Only these say
by 1 that another one uses one of their links."""

FORWARD_PART, GRADIENT_PART, REST_PART, WEIGHT_PART, DRAIN_PART = range(5)
"""Columns of a stage replica's shares: F, the least backward work before the gradient leaves, and the least after it;
in the outlook of a simulation also W, and what follows the last I."""

HEAD, WORK, TAIL_AFTER = range(3)
"""Columns of the jobs of one machine."""

RETURNING, REST = 0, 1
"""Rows of the parts of a backward pass: before the gradient leaves, and the rest."""

REPLICA_NUMBER, REPLICA_STAGE, REPLICA_HAS_WEIGHT, REPLICA_HELD, REPLICA_WORKSPACE, REPLICA_WEIGHT_WORKSPACE = range(6)
REPLICA_STASH, REPLICA_WHOLE_BACKWARD = 6, 7
"""Columns of a table of stage replicas by device."""

FIRST, SECOND, STATE_ONCE, STASH_ONCE, WEIGHT_STASH_ONCE = range(5)
"""Columns of pairs of layers: who they are, and what a stage with both holds once of state, stash and weight stash."""
