// The plan in one sentence that a person would say aloud.

import { inBytes, inMs, inPercent, isNumber, usedDevices } from "./describe.js";
import { meaningOf } from "./terms.js";

const RIVAL = "1F1B";

// `plan` may be one of an unfinished search, which states no baselines yet.
export function headlineOf(content, { isUnfinished = false } = {}) {
  const plan = content.plans[0];
  const own = objectiveOf(content, plan.figures);
  const parts = [speedText(content, plan, own), distanceText(content, plan, own), roomText(plan)].filter(Boolean);
  const sentence = parts.join(", ").replace(/(\d) (%|ms|[KMGTP]?i?B)(?!\w)/g, "$1\u00a0$2"); // a number keeps its unit
  return isUnfinished ? `So far: ${sentence || inMs(own)}.` : `${sentence.charAt(0).toUpperCase()}${sentence.slice(1)}.`;
}

// What the sentence leaves out: names of methods, and who proved or claims what.
export function footnoteOf(content) {
  const plan = content.plans[0], own = objectiveOf(content, plan.figures), rival = rivalOf(content, plan);
  return [rival?.note, proofText(content, plan, own), claimText(content, plan, own)].filter(Boolean).join(" ");
}

export function objectiveOf(content, figures) { return content.objective === "span" ? figures.spanNs : figures.makespanNs; }

// What it is measured against: the best 1F1B that fits, else the best baseline that fits.
function rivalOf(content, plan) {
  const known = plan.baselines.filter((row) => row.fits && isNumber(objectiveOf(content, row)));
  const best = (rows) => rows.reduce((a, b) => (objectiveOf(content, b) < objectiveOf(content, a) ? b : a));
  const isUsual = (row) => row.family === RIVAL && row.name.startsWith(RIVAL);
  const usual = known.filter(isUsual);
  if (usual.length) return { name: "the usual schedule", note: `The usual schedule is ${RIVAL} (one forward, one backward in turn), divided as is best for it.`, ns: objectiveOf(content, best(usual)) };
  if (!known.length) return null;
  const row = best(known), method = methodOf(row.name), label = row.label ?? method, isCopy = method === "data parallel";
  const why = plan.baselines.some((each) => isUsual(each) && each.fits === false) ? ` ${RIVAL}, the usual schedule of a pipeline, does not fit in memory.` : "";
  const meaning = meaningOf(method);
  return { name: isCopy ? "a copy of the model on every device" : "the best known method", note: `The comparison is with ${label}${meaning && !isCopy ? ` (${meaning})` : ""}, the fastest known method that fits.${why}`, ns: objectiveOf(content, row) };
}

export function methodOf(name) { return name.split(" (")[0]; }

function speedText(content, plan, own) {
  const rival = rivalOf(content, plan);
  if (!rival) return inMs(own);
  const ratio = rival.ns / own;
  if (ratio < 1.005) return `as fast as ${rival.name}`;
  if (ratio < 1.2) return `${inPercent(ratio - 1)} faster than ${rival.name}`;
  return `${ratio.toFixed(ratio < 10 ? 2 : 1).replace(/0$/, "")} times as fast as ${rival.name}`;
}

function distanceText(content, plan, own) {
  const best = "proved to be the fastest there is", gap = gapOf(content, own);
  if (plan.figures.solutionStatus === "optimal") return best;
  if (gap === null) return "";
  return gap <= 0 ? best : `${gap < 0.0005 ? gapText(gap) : `at most ${gapText(gap)}`} from the fastest possible`;
}

function gapOf(content, own) { return isNumber(content.lowerBoundNs) ? (own - content.lowerBoundNs) / own : null; }

function proofText(content, plan, own) {
  const { solutionStatus, provedBy } = plan.figures, gap = gapOf(content, own);
  return solutionStatus === "optimal" && provedBy === "complete search" && gap > 0 ? `A complete search proved it; the certificate in the file leaves ${gapText(gap)} open.` : "";
}

function gapText(gap) { return gap < 0.0005 ? "less than 0.1 %" : inPercent(gap); }

// What a solver says beyond the bound that is proved.
function claimText(content, plan, own) {
  const { solverBoundNs } = plan.figures;
  if (plan.figures.solutionStatus === "optimal" || !isNumber(solverBoundNs) || solverBoundNs <= content.lowerBoundNs) return "";
  return solverBoundNs >= own ? "A solver claims, without a proof that can be checked, that nothing is faster." : `A solver claims ${inPercent((own - solverBoundNs) / own)}, without a proof that can be checked.`;
}

function roomText(plan) {
  const spare = Math.min(...usedDevices(plan).map((device) => device.limitBytes - device.peakBytes));
  if (!Number.isFinite(spare)) return "";
  return spare < 0 ? `and does not fit in memory: ${inBytes(-spare)} too much` : `fits in memory with ${spare ? inBytes(spare) : "nothing"} to spare`;
}
