// Ranges of what-ifs that are certain, each asked for once.

import { call } from "./service.js";
import { isNumber } from "../viewer/describe.js";

const known = new Map();

const keyOf = (base, change) => `${base.id} ${base.plan_sha256 ?? base.incumbent_ns} ${JSON.stringify(change)}`;

export function noChange() { return { devices: 0, memory_bytes: 0, link_speed: 1, num_microbatches: null, global_batch_size: null, microbatch_size: null }; }

export function isNoChange(change) { return JSON.stringify(change) === JSON.stringify(noChange()); }

// Whether a job's change is this one; `asked` may leave out what is as it is.
export function isSameChange(change, asked) {
  return !asked.lost?.length && Object.entries(change).every(([name, value]) => value === (asked[name] ?? null));
}

export function knownRange(base, change) { return known.get(keyOf(base, change)); }

// One range per change, in their order; `base` is a job that has a plan.
export async function findRanges(base, changes) {
  const missing = changes.filter((change) => !knownRange(base, change));
  if (missing.length) {
    const { ranges } = await call("POST", "v1/what-if/ranges", JSON.stringify({ base: base.id, changes: missing }));
    missing.forEach((change, place) => known.set(keyOf(base, change), ranges[place]));
  }
  return changes.map((change) => ({ change, ...knownRange(base, change) }));
}

// What a solver has found out about a change since: the range becomes no wider.
export function sharpen(base, change, { least, most }) {
  const range = knownRange(base, change);
  if (isNumber(least)) range.at_least_ns = Math.max(range.at_least_ns, least);
  if (isNumber(most) && !(range.at_most_ns <= most)) Object.assign(range, { at_most_ns: most, witness: "a plan made for it" });
  if (range.at_least_ns > range.at_most_ns) range.at_least_ns = range.at_most_ns;
  return { change, ...range };
}
