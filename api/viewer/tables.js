// Tables: columns with names, rows with cells of text or nodes.

import { inMs, shorten } from "./describe.js";
import { element } from "./dom.js";
import { KINDS, WEIGHT_GRAD } from "./model.js";

export function makeTable(columns, rows) {
  const head = columns.map(({ name, number, className = null }) => element("th", { text: name, className: number ? "number" : className, attributes: { scope: "col" } }));
  const body = rows.map(({ cells, className = null }) => element("tr", { className }, cells.map((cell, index) => {
    const made = element("td", { className: columns[index].className ?? (columns[index].number ? "number" : null), title: cell.title ?? null });
    made.append(cell.node ?? cell.text ?? cell);
    return made;
  })));
  return element("table", {}, [element("thead", {}, [element("tr", {}, head)]), element("tbody", {}, body)]);
}

// Wider than its place, it is scrolled, with the keyboard, too.
export function wideTable(label, table) {
  return element("div", { className: "wide-table", attributes: { tabindex: "0", role: "region", "aria-label": label } }, [table]);
}

export function stageTable(plan) {
  const kinds = KINDS.map((_, kind) => kind).filter((kind) => plan.usedKinds[kind]);
  const columns = [
    { name: "stage", number: true }, { name: "layers" }, { name: "devices" },
    ...kinds.map((kind) => ({ name: KINDS[kind], number: true })),
  ];
  return makeTable(columns, plan.stages.map((stage, number) => ({
    cells: [String(number), layersCell(stage), devicesCell(plan, stage), ...kinds.map((kind) => durationCell(stage, kind))],
  })));
}

function durationCell(stage, kind) {
  return kind === WEIGHT_GRAD && !stage.hasWeightGrad ? "–" : inMs(stage.durationsNs[kind]);
}

function layersCell({ layers, recompute }) {
  const ends = layers.length < 3 ? layers : [layers[0], "…", layers[layers.length - 1]];
  const count = layers.length < 3 ? "" : ` (${layers.length})`;
  const text = `${ends.map((name) => shorten(name, 32)).join(layers.length < 3 ? ", " : " ")}${count}${recompute ? `, ${recompute}` : ""}`;
  return { text, title: shorten(layers.join(", "), 2000) };
}

function devicesCell(plan, stage) {
  const groups = [...stage.replicas].sort(([a], [b]) => a - b); // in the machine's order
  const names = groups.map((group) => group.map((row) => plan.devices[row].name).join(" + "));
  const text = names.length > 3 ? `${names.length} replicas: ${shorten(names[0], 20)} … ${shorten(names[names.length - 1], 20)}` : names.map((name) => shorten(name, 40)).join(", ");
  return { text, title: shorten(names.join(", "), 2000) };
}
