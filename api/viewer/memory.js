// Memory of every device over time, against its limit: one small picture per device, all on one scale of time.

import { inBytes, inMs, stageList, usedDevices } from "./describe.js";
import { button, element, svgElement } from "./dom.js";
import { alikeRows } from "./timeline/folding.js";
import { bytesAt } from "./model.js";

const MOST_ROWS = 128, WIDTH = 600, HEIGHT = 34;

export function memoryRows(content) {
  const plan = content.plans[0];
  const used = usedDevices(plan);
  const tightest = [...used].sort((a, b) => a.limitBytes - a.peakBytes - (b.limitBytes - b.peakBytes)).slice(0, MOST_ROWS);
  const groups = alikeRows([plan]).map((group) => group.map((row) => plan.devices[row]).filter((device) => tightest.includes(device))).filter((group) => group.length);
  const list = element("ul", { className: "memory-rows" }, groups.map((group) => groupRow(group, plan.figures.makespanNs)));
  list.querySelector("svg")?.setAttribute("tabindex", "0");
  list.addEventListener("keydown", moveBetween);
  return list;
}

// Of devices that are alike the first, with a button that shows each.
function groupRow([first, ...others], endNs) {
  const made = memoryRow(first, endNs);
  if (!others.length) return made;
  const label = `${first.name} and ${others.length} alike: show each`;
  const unfold = button(`${first.name} ×${others.length + 1} ▸`, { className: "unfold", title: label, attributes: { "aria-label": label }, onClick: () => {
    const rows = [first, ...others].map((device) => memoryRow(device, endNs));
    made.replaceWith(...rows);
    rows[0].querySelector("svg").setAttribute("tabindex", "0");
    rows[0].querySelector("svg").focus();
  } });
  made.querySelector(".name").replaceChildren(unfold);
  return made;
}

// One row can be reached by Tab, the others from it by arrow keys.
function moveBetween(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key], row = event.target.closest?.("li");
  const next = step > 0 ? row?.nextElementSibling : row?.previousElementSibling;
  if (!step || !next) return;
  event.preventDefault();
  event.target.setAttribute("tabindex", "-1");
  next.querySelector("svg").setAttribute("tabindex", "0");
  next.querySelector("svg").focus();
}

function memoryRow(device, endNs) {
  const spare = device.limitBytes - device.peakBytes;
  const phrase = spare < 0 ? `${inBytes(-spare)} too much` : `${inBytes(spare)} spare`;
  const figure = element("span", { className: spare < 0 ? "bad number" : "number", text: peakOfLimit(device) });
  const name = element("span", { className: "name", text: device.name, title: stageList(device.stages) });
  return element("li", {}, [name, memoryCurve(device, endNs), figure, element("small", { className: spare < 0.02 * device.limitBytes ? "tight" : "", text: phrase })]);
}

// The unit once where both have the same.
function peakOfLimit({ peakBytes, limitBytes }) {
  const [peak, unit] = inBytes(peakBytes).split(" "), [limit, limitUnit] = inBytes(limitBytes).split(" ");
  return `${peak}${unit === limitUnit ? "" : ` ${unit}`} of ${limit} ${limitUnit}`;
}

function memoryCurve(device, endNs) {
  const most = Math.max(device.limitBytes, device.peakBytes, 1);
  const xOfTime = (time) => (WIDTH * Math.min(time, endNs)) / endNs, yOfBytes = (bytes) => HEIGHT - 1 - ((HEIGHT - 3) * bytes) / most;
  const limit = svgElement("line", { x1: 0, x2: WIDTH, y1: yOfBytes(device.limitBytes), y2: yOfBytes(device.limitBytes), class: "limit" });
  const area = svgElement("path", { d: areaPath(device.held, { xOfTime, yOfBytes, endNs }), class: device.peakBytes > device.limitBytes ? "area over" : "area" });
  const hair = svgElement("line", { y1: 0, y2: HEIGHT, class: "hair", visibility: "hidden" });
  const box = svgElement("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", tabindex: "-1", role: "slider", "aria-label": `Memory of ${device.name} at`,
    "aria-valuemin": "0", "aria-valuemax": "100", "aria-valuenow": "0", "aria-valuetext": `peak ${peakOfLimit(device)}`,
  }, [area, limit, hair]);
  const showAt = (part) => showMemoryAt(box, { part: Math.min(1, Math.max(0, part)), device, endNs, hair });
  const hide = () => {
    hair.setAttribute("visibility", "hidden");
    box.parentElement.querySelector(".number").textContent = peakOfLimit(device);
  };
  box.addEventListener("pointermove", (event) => showAt(event.offsetX / box.clientWidth));
  box.addEventListener("pointerleave", hide);
  box.addEventListener("blur", hide);
  box.addEventListener("keydown", (event) => {
    const now = Number(box.getAttribute("aria-valuenow")) / 100, steps = { ArrowRight: 0.01, ArrowLeft: -0.01, PageUp: 0.1, PageDown: -0.1 };
    const part = { Home: 0, End: 1 }[event.key] ?? (event.key in steps ? now + steps[event.key] : null);
    if (part === null) return;
    event.preventDefault();
    showAt(part);
  });
  return box;
}

function showMemoryAt(box, { part, device, endNs, hair }) {
  for (const end of ["x1", "x2"]) hair.setAttribute(end, WIDTH * part);
  hair.setAttribute("visibility", "visible");
  const phrase = `${inBytes(bytesAt(device, part * endNs))} at ${inMs(part * endNs)}`;
  box.setAttribute("aria-valuenow", (100 * part).toFixed(0));
  box.setAttribute("aria-valuetext", phrase);
  box.parentElement.querySelector(".number").textContent = phrase;
}

// At most two steps per unit of width: the most that was held in it, then what was left.
function areaPath(held, { xOfTime, yOfBytes, endNs }) {
  const steps = [];
  for (let i = 0; i < held.count && held.time[i] <= endNs; i++) {
    const x = xOfTime(held.time[i]), last = steps[steps.length - 1], before = steps[steps.length - 2];
    if (before && x - before[0] < 1) {
      before[1] = Math.max(before[1], last[1]);
      last[1] = held.bytes[i];
    } else steps.push([x, held.bytes[i]]);
  }
  let path = `M0,${HEIGHT}`, level = HEIGHT;
  for (const [x, bytes] of steps) path += `L${x.toFixed(1)},${level.toFixed(1)}L${x.toFixed(1)},${(level = yOfBytes(bytes)).toFixed(1)}`;
  return `${path}L${WIDTH},${level.toFixed(1)}L${WIDTH},${HEIGHT}Z`;
}
