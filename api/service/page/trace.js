// A production job by its trace: as it ran, beside its replay or its remedy.

import { inMs, inPercent } from "../viewer/describe.js";
import { element } from "../viewer/dom.js";
import { unpackContent } from "../viewer/model.js";
import { makeTable, wideTable } from "../viewer/tables.js";

// The first that there is stands beside the step when it is dropped.
const BESIDE = { cut: "layers divided again, microbatches rebalanced", dealt: "the same layers, microbatches rebalanced", replay: "the same step, played by the rules of plans" };

export function isTrace(file) { return file.name.endsWith(".parquet"); }

// The content of a picture of two of the trace's timelines; every call makes it anew.
export function traceContent({ content }, beside) {
  return unpackContent(structuredClone({ ...content, plans: [content.plans.run, content.plans[beside]] }));
}

export function traceHeadline({ advice }) {
  const best = bestRemedy(advice);
  const gain = best ? 1 - best.makespan_ns / advice.measured_ns : 0;
  const now = `${inMs(advice.measured_ns)} a step as it ran`;
  return gain > 0.001 ? `${now}; the best change found would take ${inPercent(gain)} less.` : `${now}; no change was found that makes it faster.`;
}

// Which change that is.
export function traceFootnote({ advice }) {
  const best = bestRemedy(advice);
  return best && best.makespan_ns < advice.measured_ns ? `The change: ${best.what}.` : "";
}

function bestRemedy(advice) {
  return advice.remedies.reduce((a, b) => (a && a.makespan_ns <= b.makespan_ns ? a : b), null);
}

// What is slow, and what would help, in two tables.
export function traceTables({ advice }) {
  const against = (ns) => `${ns <= advice.measured_ns ? "−" : "+"}${inPercent(Math.abs(1 - ns / advice.measured_ns))}`;
  const remedies = advice.remedies.map((remedy) => ({ cells: [remedy.what, inMs(remedy.makespan_ns), against(remedy.makespan_ns), inMs(remedy.lower_bound_ns)] }));
  const slow = advice.slow.map((each) => ({ cells: [each.what, `${each.factor.toFixed(2)} ×`, inMs(each.effect_ns)] }));
  const facts = element("p", { text: `Played by the rules of plans, it takes ${inMs(advice.replayed_ns)}. Stage ${advice.busiest_stage} is the slowest: its busiest device computes for ${inPercent(advice.busy)} of the step.` });
  const remedyColumns = [{ name: "change", className: "name" }, { name: "would take", number: true }, { name: "against now", number: true }, { name: "none takes less", number: true }];
  const slowColumns = [{ name: "what is slow", className: "name" }, { name: "against its peers", number: true }, { name: "costs a step", number: true }];
  const tables = [wideTable("Changes", makeTable(remedyColumns, remedies))];
  if (slow.length) tables.push(wideTable("What is slow", makeTable(slowColumns, slow)));
  return [facts, ...tables];
}

export function besideChoices({ content }) { return Object.entries(BESIDE).filter(([name]) => content.plans[name]); }
