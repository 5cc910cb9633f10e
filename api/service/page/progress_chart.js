// Incumbent and bound over time, with axes, units and the numbers under the pointer.

import { inMs, inPercent, niceSteps, withCommas } from "../viewer/describe.js";
import { element, svgElement } from "../viewer/dom.js";
import { searchPart } from "../viewer/terms.js";

const WIDE = 640, NARROW = 360, HEIGHT = 250, EDGE = { left: 66, right: 14, top: 14, bottom: 34 };

// How many units a chart has from left to right: fewer where its place is narrow, so that its letters stay legible.
export function chartWidth(root) { return root.clientWidth && root.clientWidth < 480 ? NARROW : WIDE; }

// `story`: [{at_s, incumbent_ns | lower_bound_ns, source, seq}]; `shown`: the seq of the plan that is drawn.
export function progressChart(story, { endS, shown, width, onPick }) {
  const found = story.filter((event) => event.kind === "incumbent"), bounds = story.filter((event) => event.kind === "bound");
  if (!found.length) return element("p", { className: "hint", text: "No plan has been found yet." });
  const scale = makeScale([...found.map((e) => e.incumbent_ns), ...bounds.map((e) => e.lower_bound_ns)], { endS, width });
  const dots = found.map((event) => incumbentDot(event, { scale, shown, onPick }));
  const parts = [...axes(scale), gapArea(found, bounds, scale), stepLine(bounds, "lower_bound_ns", { scale, name: "bound" }), stepLine(found, "incumbent_ns", { scale, name: "incumbent" }), ...dots];
  const hair = svgElement("line", { y1: EDGE.top, y2: HEIGHT - EDGE.bottom, class: "hair", visibility: "hidden" });
  const label = `Best plan and lower bound over ${seconds(scale.endS)}: from ${inMs(found[0].incumbent_ns)} to ${inMs(found[found.length - 1].incumbent_ns)}`;
  const chart = svgElement("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, class: "chart", role: "img", "aria-label": label }, [...parts, hair]);
  const told = element("p", { className: "hint told", text: stateAt(scale.endS, found, bounds) });
  chart.addEventListener("pointermove", (event) => {
    const at = scale.when((event.offsetX / chart.clientWidth) * width);
    for (const end of ["x1", "x2"]) hair.setAttribute(end, scale.x(at));
    hair.setAttribute("visibility", "visible");
    told.textContent = stateAt(at, found, bounds);
  });
  chart.addEventListener("pointerleave", () => {
    hair.setAttribute("visibility", "hidden");
    told.textContent = stateAt(scale.endS, found, bounds);
  });
  return element("div", {}, [chart, told]);
}

export function seconds(value) { return value < 0.1 ? "under 0.1 s" : value < 10 ? `${value.toFixed(1)} s` : value < 120 ? `${Math.round(value)} s` : `${(value / 60).toFixed(1)} min`; }

function stateAt(at, found, bounds) {
  const last = (events) => events.filter((event) => event.at_s <= at + 1e-6).pop();
  const plan = last(found), bound = last(bounds);
  if (!plan) return `after ${seconds(at)}: no plan yet`;
  const gap = bound ? `, at least ${inMs(bound.lower_bound_ns)} for any plan (gap ${inPercent((plan.incumbent_ns - bound.lower_bound_ns) / plan.incumbent_ns)})` : ", no bound yet";
  return `after ${seconds(at)}: ${inMs(plan.incumbent_ns)}, by ${searchPart(plan.source)}${gap}`;
}

function makeScale(values, { endS, width }) {
  const low = Math.min(...values), high = Math.max(...values), room = Math.max((high - low) * 0.08, high * 0.002);
  const [from, to] = [Math.max(0, low - room), high + room], end = Math.max(endS, 0.5);
  return {
    from, to, width, endS: end,
    x: (at) => EDGE.left + ((width - EDGE.left - EDGE.right) * Math.min(at, end)) / end,
    y: (ns) => EDGE.top + ((HEIGHT - EDGE.top - EDGE.bottom) * (to - ns)) / (to - from),
    when: (x) => Math.min(end, Math.max(0, ((x - EDGE.left) / (width - EDGE.left - EDGE.right)) * end)),
  };
}

// Lines across a chart, with milliseconds at the left.
export function valueRows(scale, edge) {
  const { steps, digits } = niceSteps(scale.from / 1e6, scale.to / 1e6, 5);
  return steps.flatMap((value) => [
    svgElement("line", { x1: edge.left, x2: scale.width - edge.right, y1: scale.y(value * 1e6), y2: scale.y(value * 1e6), class: "grid" }),
    svgElement("text", { x: edge.left - 8, y: scale.y(value * 1e6) + 4, class: "end" }, [withCommas(value, digits)]),
  ]);
}

function axes(scale) {
  const times = niceSteps(0, scale.endS, scale.width < WIDE ? 4 : 7);
  const columns = times.steps.map((at) => svgElement("text", { x: scale.x(at), y: HEIGHT - EDGE.bottom + 18, class: "middle" }, [at.toFixed(times.digits)]));
  return [...valueRows(scale, EDGE), ...columns, svgElement("text", { x: scale.width - EDGE.right, y: HEIGHT - 2, class: "end" }, ["seconds of search"]), svgElement("text", { x: 2, y: HEIGHT - 2 }, ["milliseconds"])];
}

function pathOf(events, name, scale) {
  let path = "";
  for (const event of events) path += path ? `H${scale.x(event.at_s).toFixed(1)}V${scale.y(event[name]).toFixed(1)}` : `M${scale.x(event.at_s).toFixed(1)},${scale.y(event[name]).toFixed(1)}`;
  return path;
}

function stepLine(events, field, { scale, name }) {
  const d = events.length ? `${pathOf(events, field, scale)}H${scale.x(scale.endS)}` : "M0,0";
  return svgElement("path", { d, class: `line ${name}` });
}

// What is open between the two, shaded from the first bound on.
function gapArea(found, bounds, scale) {
  if (!bounds.length) return svgElement("g");
  const from = Math.max(bounds[0].at_s, found[0].at_s), start = found.filter((event) => event.at_s <= from).pop();
  const later = [{ ...start, at_s: from }, ...found.filter((event) => event.at_s > from)];
  let back = `L${scale.x(scale.endS)},${scale.y(bounds[bounds.length - 1].lower_bound_ns)}`;
  for (let i = bounds.length - 1; i >= 0; i--) back += `H${scale.x(Math.max(from, bounds[i].at_s)).toFixed(1)}${i ? `V${scale.y(bounds[i - 1].lower_bound_ns).toFixed(1)}` : ""}`;
  return svgElement("path", { d: `${pathOf(later, "incumbent_ns", scale)}H${scale.x(scale.endS)}${back}Z`, class: "gap" });
}

function incumbentDot(event, { scale, shown, onPick }) {
  const isShown = event.seq === shown;
  const dot = svgElement("circle", { cx: scale.x(event.at_s), cy: scale.y(event.incumbent_ns), r: isShown ? 7 : 4.5, class: `dot${isShown ? " shown" : ""}${event.has_plan ? " kept" : ""}` });
  dot.append(svgElement("title", {}, [`${inMs(event.incumbent_ns)} by ${searchPart(event.source)} after ${seconds(event.at_s)}`]));
  if (event.has_plan) dot.addEventListener("click", () => onPick(event.seq));
  return dot;
}
