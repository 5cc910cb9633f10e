// The plan in one sentence that a person would say aloud.

import { inBytes, inMs, inPercent, isNumber } from "./describe.js";

const RIVAL = "1F1B";

// `plan` may be one of an unfinished search, which states no baselines yet.
export function headlineOf(content, { isUnderWay = false } = {}) {
  const plan = content.plans[0];
  const own = objectiveOf(content, plan.figures);
  const parts = [speedInWords(content, plan, own), distanceInWords(content, plan, own), roomInWords(plan)].filter(Boolean);
  const sentence = parts.join(", ");
  return isUnderWay ? `So far: ${sentence || inMs(own)}.` : `${sentence.charAt(0).toUpperCase()}${sentence.slice(1)}.`;
}

export function objectiveOf(content, figures) { return content.objective === "span" ? figures.spanNs : figures.makespanNs; }

// What it is measured against: the best 1F1B that fits, else the best baseline that fits.
function rivalOf(content, plan) {
  const known = plan.baselines.filter((row) => row.fits && isNumber(objectiveOf(content, row)));
  const best = (rows) => rows.reduce((a, b) => (objectiveOf(content, b) < objectiveOf(content, a) ? b : a));
  const isUsual = (row) => row.family === RIVAL && row.name.startsWith(RIVAL);
  const usual = known.filter(isUsual);
  if (usual.length) return { name: RIVAL, ns: objectiveOf(content, best(usual)) };
  if (!known.length) return null;
  const why = plan.baselines.some((row) => isUsual(row) && row.fits === false) ? ` (no ${RIVAL} fits)` : "";
  return { name: `${methodOf(best(known).name)}${why}`, ns: objectiveOf(content, best(known)) };
}

export function methodOf(name) { return name.split(" (")[0]; }

function speedInWords(content, plan, own) {
  const rival = rivalOf(content, plan);
  if (!rival) return inMs(own);
  const ratio = rival.ns / own;
  if (ratio < 1.005) return `as fast as ${rival.name}`;
  if (ratio < 1.2) return `${inPercent(ratio - 1)} faster than ${rival.name}`;
  return `${ratio.toFixed(ratio < 10 ? 2 : 1).replace(/0$/, "")} × faster than ${rival.name}`;
}

function distanceInWords(content, plan, own) {
  const best = "proved to be the fastest there is", { solutionStatus, provedBy } = plan.figures;
  const gap = isNumber(content.lowerBoundNs) ? (own - content.lowerBoundNs) / own : null;
  if (solutionStatus === "optimal" && provedBy === "complete search" && gap > 0) return `${best} (by a complete search; its certificate leaves ${gapInWords(gap)})`;
  if (solutionStatus === "optimal") return best;
  if (gap === null) return "";
  return gap <= 0 ? best : `${gap < 0.0005 ? gapInWords(gap) : `at most ${gapInWords(gap)}`} from perfect${claimInWords(content, plan, own)}`;
}

function gapInWords(gap) { return gap < 0.0005 ? "less than 0.1 %" : inPercent(gap, gap < 0.0995 ? 1 : 0); }

// What a solver says beyond the bound that is proved.
function claimInWords(content, plan, own) {
  const { solverBoundNs } = plan.figures;
  if (!isNumber(solverBoundNs) || solverBoundNs <= content.lowerBoundNs) return "";
  return solverBoundNs >= own ? " (a solver claims that nothing is faster)" : ` (${inPercent((own - solverBoundNs) / own)}, claims a solver)`;
}

function roomInWords(plan) {
  const spare = Math.min(...plan.devices.map((device) => device.limitBytes - device.peakBytes));
  if (!Number.isFinite(spare)) return "";
  return spare < 0 ? `and does not fit: ${inBytes(-spare)} too much` : `fits with ${spare ? inBytes(spare) : "nothing"} to spare`;
}
