// What the page shows stands in its address, so that a reload keeps it and a link shares it.

const NAMES = ["plan", "incumbent", "baseline", "against", "memory", "devices", "links", "batch", "microbatches", "axis"];

export function readAddress() {
  const query = new URLSearchParams(location.search);
  return Object.fromEntries(NAMES.map((name) => [name, query.get(name)]));
}

// `changes`: names and values; null takes a name away. A new plan is a new entry of the history, and keeps nothing else.
export function writeAddress(changes) {
  const before = readAddress();
  const isNew = "plan" in changes && (changes.plan ?? null) !== before.plan;
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries({ ...(isNew ? {} : before), ...changes })) {
    if (value !== null && value !== undefined && value !== "") query.set(name, String(value));
  }
  const next = query.size ? `?${query}` : location.pathname;
  history[isNew ? "pushState" : "replaceState"](null, "", next);
}

export function addressOf(id) { return `?plan=${id}`; }
