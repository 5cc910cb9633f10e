// What stands around the timeline in a file of its own: title, sentence, figures, and what the plan looks like.

import { layerBands } from "./bands.js";
import { baselineBars } from "./baselines.js";
import { inMs, inPercent, isNumber, plural, shorten, usedDevices } from "./describe.js";
import { byId, card, element } from "./dom.js";
import { footnoteOf, headlineOf } from "./headline.js";
import { machinePicture } from "./machine.js";
import { memoryRows } from "./memory.js";
import { searchPart } from "./terms.js";
import { stageTable, wideTable } from "./tables.js";

export function fillPage(content) {
  document.title = `${content.profile} on ${content.cluster}`;
  byId("title").textContent = document.title;
  byId("subtitle").textContent = subtitleOf(content);
  byId("subtitle").title = content.provenance;
  byId("figures").replaceChildren(...figuresOf(content).map(([name, values]) => figureBox(name, values, content)));
  byId("headline").textContent = content.plans.length > 1 ? "" : headlineOf(content);
  byId("footnote").textContent = content.plans.length > 1 ? "" : footnoteOf(content);
  const tables = content.plans.map((plan) => card(`stages${plan.letter}`, plan.letter ? `Stages of plan ${plan.letter}` : "Stages", [wideTable("Table of stages", stageTable(plan))]));
  const parts = [card("layers", "Layers", layerBands(content)), card("memory-over-time", "Memory over time", [memoryRows(content)]), card("machine", "The machine", machinePicture(content))];
  if (content.plans[0].baselines.length) parts.push(card("baselines", "Known methods on the same machine", baselineBars(content)));
  byId("tables").replaceChildren(...parts, ...tables);
}

function subtitleOf(content) {
  const plan = content.plans[0];
  const size = content.microbatchSize > 1 ? ` of ${content.microbatchSize} samples` : "";
  const microbatches = plural(content.numMicrobatches, "microbatch", "microbatches");
  const { source, plannerVersion, stoppedBy } = plan.figures;
  const history = source ? `, found by ${searchPart(source)}${stoppedBy ? ` (stopped by ${stoppedBy})` : ""}` : "";
  const version = plannerVersion ? `, pipeplan ${plannerVersion}` : "";
  return `${microbatches}${size} through ${plural(plan.stages.length, "stage")} on ${plural(usedDevices(plan).length, "device")}${history}${version}`;
}

// [name, one value per plan or one for all]; a value is {text, note?, mood?}.
function figuresOf(content) {
  const figures = content.plans.map((plan) => plan.figures);
  const bound = content.lowerBoundNs;
  const objective = content.objective === "span" ? "spanNs" : "makespanNs";
  const rows = [
    ["makespan", figures.map((f) => ({ text: inMs(f.makespanNs) }))],
    ["span", figures.map((f) => ({ text: inMs(f.spanNs) }))],
    ["bubble", figures.map((f) => ({ text: inPercent(f.bubble) }))],
  ];
  if (isNumber(bound)) {
    rows.push(["lower bound", [{ text: inMs(bound), note: figures[0].boundName ?? "" }]]);
    rows.push(["gap to the bound", figures.map((f) => ({ text: inPercent((f[objective] - bound) / f[objective]) }))]);
  }
  if (figures.some((f) => f.provedBy)) rows.push(["proved optimal by", figures.map((f) => ({ text: f.provedBy ?? "–" }))]);
  if (figures.some((f) => isNumber(f.solverBoundNs))) rows.push(["bound claimed by a solver", figures.map((f) => ({ text: inMs(f.solverBoundNs) }))]);
  rows.push(["peak memory", content.plans.map((plan) => peakFigure(plan))]);
  if (figures.some((f) => "passed" in f)) rows.push(["verifier", figures.map((f) => verdictFigure(f))]);
  return rows;
}

function peakFigure(plan) {
  const share = Math.max(...plan.devices.map((device) => device.peakBytes / Math.max(1, device.limitBytes)));
  return { text: inPercent(share, 0), note: "of the limit", mood: share > 1 ? "bad" : "" };
}

function verdictFigure({ passed, numViolations }) {
  if (passed === true) return { text: "passed", mood: "good" };
  return passed === false ? { text: plural(numViolations, "violation"), mood: "bad" } : { text: "not run" };
}

function figureBox(name, values, content) {
  const tagged = values.length > 1;
  const cells = values.map((value, index) => {
    const cell = element("dd", { className: [tagged ? "pair" : "", value.mood ?? ""].join(" ").trim() || null });
    if (tagged) cell.append(element("span", { text: content.plans[index].letter, className: "tag" }), " ");
    cell.append(value.text);
    if (value.note && !tagged) cell.append(" ", element("small", { text: shorten(value.note, 40), title: value.note }));
    return cell;
  });
  return element("div", {}, [element("dt", { text: name }), ...cells]);
}
