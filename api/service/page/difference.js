// What is different in the plan that stands beside: one sentence, then figures, devices and stages.

import { call } from "./service.js";
import { inBytes, inMs, inPercent, isNumber, plural, shorten } from "../viewer/describe.js";
import { element } from "../viewer/dom.js";
import { makeTable, wideTable } from "../viewer/tables.js";

const FIGURES = [
  ["makespan_ns", "one step (makespan)", inMs], ["span_ns", "longest time in use (span)", inMs], ["lower_bound_ns", "no plan takes less than", inMs], ["gap", "gap to that", inPercent, inPoints],
  ["bubble", "idle", inPercent, inPoints], ["peak_bytes", "most memory on a device", inBytes], ["num_stages", "stages", String], ["num_microbatches", "microbatches", String],
];

// A is the plan of the page, B the one beside it; `order`: names of the machine's devices.
export async function differenceOf(id, against, { signal, order }) {
  const found = await call("GET", `v1/plans/${id}/difference?to=${against}`, undefined, { signal });
  const parts = [element("p", { className: "answer", text: describeDifference(found) }), wideTable("Figures of both plans", figureTable(found.figures))];
  if (found.devices.length) parts.push(...titled("Devices that differ", deviceTable(found.devices)));
  if (found.stages.length) parts.push(...titled("Stages that differ", stageTable(found.stages, order)));
  return parts;
}

function titled(text, table) { return [element("h3", { text }), wideTable(text, table)]; }

function describeDifference({ figures, layers, stages, devices, profile, cluster }) {
  const speed = speedText(figures);
  const other = [profile.is_same ? "" : "another profile", cluster.is_same ? "" : "another machine"].filter(Boolean).join(" and ");
  if (!layers.length && !stages.length && !devices.length) return `${speed}; the plans are the same${other ? `, made for ${other}` : ""}.`;
  const elsewhere = layers.length ? `${plural(layers.length, "layer")} elsewhere` : "";
  const parts = [stages.length ? plural(stages.length, "stage") : "", devices.length ? plural(devices.length, "device") : ""].filter(Boolean).join(" and ");
  const differ = parts && `${parts} ${stages.length + devices.length === 1 ? "differs" : "differ"}`;
  return `${speed}; ${[elsewhere, differ].filter(Boolean).join(", ")}${other ? `; B was made for ${other}` : ""}.`;
}

// With other numbers of microbatches, by the microbatch.
function speedText({ makespan_ns: makespan, num_microbatches: count }) {
  const isSameCount = count.before === count.after, each = isSameCount ? "" : " per microbatch";
  const ratio = (makespan.before / count.before) / (makespan.after / count.after), slower = 1 / ratio;
  if (Math.abs(ratio - 1) < 0.0005) return isSameCount ? "B takes as long as A" : "B is as fast as A per microbatch";
  if (ratio > 1) return `B is ${ratio < 1.995 ? inPercent(ratio - 1) : `${ratio.toFixed(1)} ×`} faster than A${each}`;
  return slower < 1.995 ? `B is ${inPercent(slower - 1)} slower than A${each}` : `B takes ${slower.toFixed(1)} × as long as A${each}`;
}

// The difference of two percentages.
function inPoints(fraction) { return `${(100 * fraction).toFixed(1)} points`; }

function moved(value, write) {
  if (!isNumber(value)) return "–";
  return value === 0 || /^0[.0]* (%|points)$/.test(write(Math.abs(value))) ? "same" : value < 0 ? `−${write(-value)}` : `+${write(value)}`;
}

function shown(value, write) { return isNumber(value) ? write(value) : "–"; }

function figureTable(figures) {
  const columns = [{ name: "figure" }, { name: "A", number: true }, { name: "B", number: true }, { name: "B − A", number: true }];
  return makeTable(columns, FIGURES.map(([name, phrase, write, writeMoved = write]) => ({ cells: [phrase, shown(figures[name].before, write), shown(figures[name].after, write), moved(figures[name].moved, writeMoved)] })));
}

function deviceTable(devices) {
  const columns = [{ name: "device" }, { name: "memory A", number: true }, { name: "memory B", number: true }, { name: "work A", number: true }, { name: "work B", number: true }, { name: "order" }];
  return makeTable(columns, devices.map(({ device, peak_bytes: peak, work_ns: work, order }) => ({
    cells: [device, shown(peak.before, inBytes), shown(peak.after, inBytes), shown(work.before, inMs), shown(work.after, inMs), order ? `differs from action ${order.first_difference + 1} on: ${order.before ?? "none"} → ${order.after ?? "none"}` : "same"],
  })));
}

function stageTable(stages, order) {
  const columns = [{ name: "stage", number: true }, { name: "layers A" }, { name: "layers B" }, { name: "devices A" }, { name: "devices B" }];
  return makeTable(columns, stages.map(({ stage, before, after }) => ({ cells: [String(stage), layersOf(before), layersOf(after), devicesOf(before, order), devicesOf(after, order)] })));
}

function layersOf(stage) {
  if (!stage) return "–";
  const { layers } = stage;
  return layers.length < 3 ? layers.map((name) => shorten(name, 32)).join(", ") : `${shorten(layers[0], 24)} … ${shorten(layers[layers.length - 1], 24)} (${layers.length})`;
}

function devicesOf(stage, order) {
  if (!stage) return "–";
  const groups = [...stage.replicas].sort(([a], [b]) => order.indexOf(a) - order.indexOf(b));
  return shorten(groups.map((group) => group.join(" + ")).join(", "), 80);
}
