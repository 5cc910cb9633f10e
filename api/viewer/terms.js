// What names of methods mean, in a few words each.

const METHODS = [
  ["fully sharded", "fully sharded data parallel: all devices run all layers, and each stores an equal part of the model"],
  ["data parallel", "a copy of the whole model on every device, each with its share of the batch"],
  ["GPipe", "all forward passes first, then all backward passes"],
  ["interleaved 1F1B", "1F1B with several stages on every device"],
  ["interleaved ZB", "several stages on every device, weight gradients delayed into idle time"],
  ["capped 1F1B", "1F1B, with fewer microbatches at once where memory is short"],
  ["capped greedy", "whatever is ready runs, with fewer microbatches at once where memory is short"],
  ["capped loop", "several stages on every device, with fewer microbatches at once where memory is short"],
  ["capped V", "two stages on every device, the second ones in reverse order, with fewer microbatches at once where memory is short"],
  ["1F1B", "one forward, one backward in turn: the usual schedule of a pipeline"],
  ["breadth-first", "all microbatches pass a stage before the next stage begins"],
  ["ZB-H1", "zero bubble: weight gradients are delayed into idle time, in the memory of 1F1B"],
  ["ZB-H2", "zero bubble in twice the memory of 1F1B"],
  ["ZB-V", "zero bubble with two stages on every device, the second ones in reverse order"],
  ["ZB automatic", "zero bubble, its order chosen by the heuristic of its authors"],
  ["V-Half", "two stages on every device, in about half the memory of 1F1B"],
  ["V-Min", "two stages on every device, in about a third of the memory of 1F1B"],
  ["SPP", "synchronous pipeline planner: layers divided by a dynamic programme, microbatches in list order"],
  ["OOO", "out-of-order backward: weight gradients run later than input gradients"],
  ["LayerPipe", "weight gradients on other devices than the forward pass"],
];

// Null for a name that is not known.
export function meaningOf(method) { return METHODS.find(([start]) => method.startsWith(start))?.[1] ?? null; }

// Parts of the search by the names that evidence gives them.
const SEARCH = {
  "baselines": "known methods", "bound": "proof of a limit", "balanced seeds": "evenly divided layers", "dynamic programme": "best division of layers",
  "sequential planner": "one decision after the other", "stages near the bound": "divisions near the limit", "joint search": "search over everything at once",
  "exact search": "complete search", "looped layouts": "several stages per device",
};

// One name, or several with commas between them.
export function searchPart(names) { return String(names).split(", ").map((name) => SEARCH[name] ?? name).join(", "); }
