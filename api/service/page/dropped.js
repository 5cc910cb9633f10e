// What a dropped file is: a plan, as this page saves it or as the command line writes it, or something to plan.

const PLAN = "pipeline-plan/";

// {plan, workload} of a plan document, or of one beside the workload that it answers; null for anything else.
export function planOf(text) {
  const tree = treeOf(text);
  if (isPlan(tree)) return { plan: tree, workload: null };
  return isPlan(tree?.plan) ? { plan: tree.plan, workload: tree.workload ?? null } : null;
}

function isPlan(tree) { return typeof tree?.format === "string" && tree.format.startsWith(PLAN); }

// Why one of the other files that this page saves cannot be read back; null for any other file.
export function refusalOf({ name }, text) {
  if (/\.html?$/i.test(name) || /^\s*<!doctype html/i.test(text)) return `${name} is a picture to look at, in any browser; drop the plan.json that was saved beside it.`;
  const tree = treeOf(text);
  if (Array.isArray(tree) || Array.isArray(tree?.traceEvents)) return `${name} is a timeline for trace viewers such as Perfetto; drop the plan.json that was saved beside it.`;
  return null;
}

// The file's hash as the service keeps it; null where the browser has none (only pages of https and of this machine have).
export async function hashOf(text) {
  if (!globalThis.crypto?.subtle) return null;
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
  return [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

// Whether the rules hold, in words.
export function verdictText({ passed, violations = [] }) {
  if (passed) return "It passes every rule of the independent check.";
  return `It breaks ${violations.length === 1 ? "a rule" : `${violations.length} rules`}. ${violations[0]?.message ?? ""}`;
}

function treeOf(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
