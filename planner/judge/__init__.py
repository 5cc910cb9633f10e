"""The judge: the contract read a second time, by a program that shares nothing with the one that makes plans.

It takes profile, cluster, options and plan as plain data, adds up costs, bytes and traffic itself, finds its own
routes, and checks the timeline that the core claims equation by equation. A page per rule of the contract, in its
order:

    batch             how many samples a microbatch has, where the plan says it (section 1)
    microbatches      which size each has, and who runs it whole (section 2)
    samples           which samples a stage replica works on
    costs             what an action takes (section 1)
    recomputation     which layers recompute, and by which kind (section 1)
    sizes             what a stage holds, bytes of state, stash and gradients (section 1)
    routes            the way of a transfer through the cluster, and its time (section 1)
    stage_replicas    who runs which actions of a stage, split placement included (section 2)
    traffic           what flows between stage replicas (section 2)
    synchronisation   the ring all-reduce of a replicated stage (section 2)
    active_stages     which weights are gathered when (section 2)
    device_orders     the schedule as arrays
    times             when everything happens (section 3)
    memory            what every device holds (section 4)
    reading           the pages above, applied to one plan

and on top of them the rules of a valid plan, one function each: `shape`, `reference`, `balanced`, `partition`,
`groups`, `gathered`,
`split_placement`, `options`, `lists`, `loops`, `orders`, `agreement` (of the judge with the core), `evidence`.
"""
