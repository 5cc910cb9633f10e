// What found what: the parts of the search, their turns, their seconds, and what they gained.

import { seconds } from "./progress_chart.js";
import { inMs, plural } from "../viewer/describe.js";
import { element } from "../viewer/dom.js";
import { makeTable, wideTable } from "../viewer/tables.js";
import { searchPart } from "../viewer/terms.js";

export function ledger(story, improvers) {
  const rows = improvers?.length ? improvers.map(([name, steps, spent, improvements, gain, raised, boundGain, closed]) => ({ name, steps, spent, improvements, gain, raised, boundGain, closed })) : fromStory(story);
  if (!rows.length) return element("p", { className: "hint", text: "Nothing has been found yet." });
  const most = Math.max(1, ...rows.map((row) => row.gain));
  const useful = rows.filter((row) => row.improvements > 0).sort((a, b) => b.gain - a.gain);
  const proofs = rows.filter((row) => row.raised || row.closed), idle = rows.filter((row) => !row.improvements && !proofs.includes(row));
  const columns = [{ name: "part of the search", className: "name" }, { name: "share", className: "track-cell" }, { name: "gained", number: true }, { name: "plans", number: true }, { name: "time", number: true }];
  const table = wideTable("Table of finds", makeTable(columns, useful.map((row) => ({ cells: cellsOf(row, most) }))));
  const phrase = idle.map((row) => `${searchPart(row.name)}${spentText(row)}`).join(", ");
  const lines = [...proofs.map((row) => `${searchPart(row.name)}: ${proofText(row)}${spentText(row)}.`), ...(phrase ? [`Found nothing: ${phrase}.`] : [])];
  return lines.length ? element("div", {}, [table, ...lines.map((text) => element("p", { className: "hint", text }))]) : table;
}

function spentText({ spent }) { return spent === null || spent === undefined ? "" : ` (${seconds(spent)})`; }

// What it did for the bound: the first one of a run has nothing to be above.
function proofText({ raised, boundGain, closed }) {
  const bound = boundGain ? `raised the bound by ${inMs(boundGain)}` : raised ? "the first bound" : "";
  return [bound, closed ? `closed ${plural(closed, "case")}` : ""].filter(Boolean).join(", ");
}

function cellsOf(row, most) {
  const fill = element("span", { className: "fill" });
  fill.style.width = `${(100 * row.gain) / most}%`;
  const track = element("span", { className: "track", attributes: { "aria-hidden": "true" } }, [fill]);
  return [{ text: searchPart(row.name), title: row.name }, { node: track }, row.gain ? inMs(row.gain) : "first plan", String(row.improvements), row.spent === null || row.spent === undefined ? "–" : seconds(row.spent)];
}

// While the search is on, from what it has told: who found which improvement.
function fromStory(story) {
  const rows = new Map();
  let before = null;
  for (const { incumbent_ns: ns, source } of story.filter((event) => event.kind === "incumbent")) {
    const row = rows.get(source) ?? { name: source, improvements: 0, gain: 0, spent: null };
    row.improvements += 1;
    row.gain += before === null ? 0 : Math.max(0, before - ns);
    rows.set(source, row);
    before = ns;
  }
  return [...rows.values()];
}
