// What others would have done: a bar per method beside ours, grouped by family; what does not fit is folded away.

import { inMs, isNumber } from "./describe.js";
import { element, factList } from "./dom.js";
import { methodOf, objectiveOf } from "./headline.js";
import { meaningOf } from "./terms.js";

const LONGEST = 3; // times our own: longer bars are cut, so that the others can be compared

// `onOpen(name)`: opens the timeline of a baseline beside ours; without it the bars are no buttons.
export function baselineBars(content, { onOpen = null, opened = null } = {}) {
  const plan = content.plans[0];
  const own = { name: "this plan", ns: objectiveOf(content, plan.figures), isOwn: true };
  const rows = mergedRows(plan.baselines.map((row) => ({ ...row, ns: objectiveOf(content, row) })));
  const fitting = rows.filter((row) => row.fits && isNumber(row.ns)), others = rows.filter((row) => !fitting.includes(row));
  const most = Math.min(LONGEST * own.ns, Math.max(own.ns, ...fitting.map((row) => row.ns)));
  const context = { own, most, bound: content.lowerBoundNs, onOpen, opened };
  const list = element("ul", { className: "bars" }, [barRow(own, context)]);
  for (const family of groupByFamily(fitting)) list.append(familyRow(family, context));
  return [...(others.length ? [list, foldedRows(others, { ...context, most: Math.min(LONGEST * own.ns, Math.max(most, ...others.map((row) => row.ns ?? 0))) })] : [list]), meanings(rows)];
}

// The names of methods that stand above, in plain words.
function meanings(rows) {
  const known = [...new Map(rows.map((row) => [methodOf(row.name), labelOf(row)]))].map(([name, label]) => [label, meaningOf(name)]).filter(([, meaning]) => meaning);
  return element("details", { className: "folded" }, [element("summary", { text: "What these names mean" }), factList(known)]);
}

// The plain name of a method, without its cut.
function labelOf(row) { return row.label ?? methodOf(row.name); }

// Cuts of one method that come to the same are one row.
function mergedRows(rows) {
  const found = new Map();
  for (const row of rows) {
    const key = `${methodOf(row.name)} ${row.ns} ${row.fits} ${row.note}`;
    if (!found.has(key)) found.set(key, { ...row, names: [row.name] });
    else found.get(key).names.push(row.name);
  }
  return [...found.values()];
}

function groupByFamily(rows) {
  const families = new Map();
  for (const row of [...rows].sort((a, b) => a.ns - b.ns)) {
    if (!families.has(row.family)) families.set(row.family, []);
    families.get(row.family).push(row);
  }
  return [...families].map(([name, members]) => ({ name, members }));
}

// The best of a family, and the rest behind a fold.
function familyRow({ name, members }, context) {
  const best = barRow({ ...members[0], family: name }, context);
  if (members.length === 1) return best;
  const rest = members.slice(1);
  const isOpen = rest.some((row) => row.names.includes(context.opened));
  const fold = element("details", {}, [element("summary", { text: `${rest.length} more of this family: ${name}` }), element("ul", { className: "bars" }, rest.map((row) => barRow(row, context)))]);
  fold.open = isOpen;
  best.append(fold);
  return best;
}

function foldedRows(others, context) {
  const tooLarge = others.filter((row) => isNumber(row.ns)).sort((a, b) => a.ns - b.ns), absent = others.filter((row) => !isNumber(row.ns));
  const phrase = [tooLarge.length ? `${tooLarge.length} that do not fit into memory` : "", absent.length ? `${absent.length} that do not apply` : ""].filter(Boolean).join(", ");
  const rows = [...tooLarge, ...absent].map((row) => barRow(row, context));
  const fold = element("details", { className: "folded" }, [element("summary", { text: phrase }), element("ul", { className: "bars" }, rows)]);
  fold.open = others.some((row) => row.names.includes(context.opened));
  return fold;
}

function barRow(row, { own, most, bound, onOpen, opened }) {
  const isShown = row.names?.includes(opened);
  const cells = [
    element("span", { className: "bar-name", text: row.isOwn ? row.name : labelOf(row), title: row.isOwn ? null : [row.names.join(", "), meaningOf(methodOf(row.name))].filter(Boolean).join(": ") }),
    barTrack(row, { most, bound }),
    element("span", { className: "number", text: inMs(row.ns) }),
    element("span", { className: "number faint", text: row.isOwn || !isNumber(row.ns) ? "" : ratioText(row.ns / own.ns) }),
  ];
  const canOpen = onOpen && !row.isOwn && isNumber(row.ns);
  const attributes = { type: "button", "aria-pressed": String(Boolean(isShown)), "aria-label": `${row.isOwn ? row.name : labelOf(row)}, ${inMs(row.ns)}: show its timeline beside ours` };
  const line = canOpen ? element("button", { className: "bar-line", attributes, title: "Show its timeline beside ours" }, cells) : element("span", { className: "bar-line" }, cells);
  if (canOpen) line.addEventListener("click", () => onOpen(isShown ? null : row.name));
  const made = element("li", { className: row.isOwn ? "own" : row.fits ? "" : "unfit" }, [line]);
  if (!row.isOwn && row.note) made.append(element("small", { text: row.note }));
  return made;
}

function ratioText(ratio) {
  if (Math.abs(ratio - 1) < 0.0005) return "the same";
  return ratio < 1.1 ? `+${(100 * (ratio - 1)).toFixed(1)} %` : `${ratio.toFixed(2)} ×`;
}

function barTrack(row, { most, bound }) {
  const track = element("span", { className: "track", attributes: { "aria-hidden": "true" } });
  const fill = element("span", { className: row.ns > most ? "fill cut" : "fill" });
  fill.style.width = isNumber(row.ns) ? `${Math.min(100, (100 * row.ns) / most)}%` : "0";
  track.append(fill);
  if (isNumber(bound)) {
    const mark = element("span", { className: "mark" });
    mark.style.left = `${Math.min(100, (100 * bound) / most)}%`;
    track.append(mark);
  }
  return track;
}
