// The picture itself: everything that changes only when the view does.

import { digitsOf, inBytes, inMs, inPercent, isNumber, niceSteps, stageList } from "../describe.js";
import { BARS, FORWARD, INPUT_GRAD, KINDS, firstAbove } from "../model.js";
import { AXIS_HEIGHT, barPlace, fullSpan, isPair, maxScroll, plotLeft, plotRight, scaleOf, xOf } from "./view.js";

const DENSE_PITCH = 2.2, NARROW = 14;
export const SHADES = [0, -0.2, 0.22, -0.36];
export const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", sans-serif';

export function readTheme() {
  const style = getComputedStyle(document.documentElement);
  const get = (name) => style.getPropertyValue(`--${name}`).trim();
  const theme = {};
  for (const name of ["card", "text", "muted", "faint", "line", "grid", "track", "hatch", "accent", "bad", "held", ...BARS, "optimizer", "pin", "focus"]) {
    theme[name] = get(name);
  }
  const kinds = ["forward", "input-grad", "weight-grad", "backward"];
  theme.kinds = kinds.map((name) => SHADES.map((shade) => shaded(get(name), shade)));
  theme.pixels = theme.kinds.map((shades) => shades.map(pixelOf));
  theme.hatches = {};
  theme.onKinds = kinds.map((name) => get(`on-${name}`));
  return theme;
}

// A #rrggbb colour, darker (shade < 0) or lighter (shade > 0).
function shaded(colour, shade) {
  const target = shade < 0 ? 0 : 255;
  const parts = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return `#${parts.map((part) => Math.round(part + (target - part) * Math.abs(shade)).toString(16).padStart(2, "0")).join("")}`;
}

// A #rrggbb colour as the number that an opaque pixel is.
function pixelOf(colour) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

export function makeHatch(context, theme, pixelRatio) {
  const size = Math.round(6 * pixelRatio);
  const tile = document.createElement("canvas");
  tile.width = tile.height = size;
  const pen = tile.getContext("2d");
  pen.fillStyle = theme.track;
  pen.fillRect(0, 0, size, size);
  pen.strokeStyle = theme.hatch;
  pen.lineWidth = pixelRatio;
  pen.beginPath();
  for (const offset of [-size, 0, size]) {
    pen.moveTo(offset - 1, size + 1);
    pen.lineTo(offset + size + 1, -1);
  }
  pen.stroke();
  const hatch = context.createPattern(tile, "repeat");
  hatch.setTransform(new DOMMatrix().scale(1 / pixelRatio));
  return hatch;
}

export function paintPicture(context, view, theme) {
  context.setTransform(view.pixelRatio, 0, 0, view.pixelRatio, 0, 0);
  context.fillStyle = theme.card;
  context.fillRect(0, 0, view.width, view.height);
  const hatch = (theme.hatches[view.pixelRatio] ??= makeHatch(context, theme, view.pixelRatio));
  const ticks = makeTicks(view);
  const shownRows = view.rows.filter((row) => row.bottom >= view.scroll + AXIS_HEIGHT && row.top <= view.scroll + view.height);
  const strips = makeStrips(view, { theme, rows: shownRows });
  context.save();
  clipTo(context, { left: 0, top: AXIS_HEIGHT, right: view.width, bottom: view.height });
  context.translate(0, -view.scroll);
  paintGrid(context, view, { theme, ticks });
  for (const row of shownRows) paintRow(context, view, { theme, hatch, row, strips });
  for (const panel of view.panels) paintPanel(context, view, { theme, panel });
  context.restore();
  paintAxis(context, view, { theme, ticks });
  paintMarkers(context, view, theme);
  if (maxScroll(view) > 0) paintScrollbar(context, view, theme);
}

export function clipTo(context, { left, top, right, bottom }) {
  context.beginPath();
  context.rect(left, top, right - left, bottom - top);
  context.clip();
}

// A length in device pixels is whole, so that edges are sharp.
export function snap(view, value) { return Math.round(value * view.pixelRatio) / view.pixelRatio; }

function makeTicks(view) {
  const { steps, step } = niceSteps(view.from, view.to, Math.max(2, (plotRight(view) - plotLeft(view)) / 110));
  const digits = Math.min(6, digitsOf(step / 1e6));
  return steps.map((time) => ({ x: xOf(view, time), text: (time / 1e6).toFixed(digits) }));
}

function paintGrid(context, view, { theme, ticks }) {
  context.fillStyle = theme.grid;
  for (const { top, bottom } of view.panels) {
    for (const { x } of ticks) context.fillRect(snap(view, x), top, 1 / view.pixelRatio, bottom - top);
  }
}

function paintAxis(context, view, { theme, ticks }) {
  context.font = `11px ${FONT}`;
  context.textBaseline = "alphabetic";
  context.textAlign = "center";
  context.fillStyle = theme.muted;
  for (const { x, text } of ticks) {
    if (x < plotLeft(view) - 1 || x > plotRight(view) + 1) continue;
    context.fillText(text, x, AXIS_HEIGHT - 8);
    context.fillRect(snap(view, x), AXIS_HEIGHT - 5, 1 / view.pixelRatio, 4);
  }
  context.textAlign = "right";
  context.fillText("ms", plotLeft(view) - 14, AXIS_HEIGHT - 8);
  context.fillText("busy", view.width - 6, AXIS_HEIGHT - 8);
  const visible = (time) => plotLeft(view) + (plotRight(view) - plotLeft(view)) * (time / fullSpan(view).to);
  if (view.to - view.from >= fullSpan(view).to * 0.999) return;
  context.fillStyle = theme.line;
  context.fillRect(plotLeft(view), view.height - 5, plotRight(view) - plotLeft(view), 3);
  context.fillStyle = theme.faint;
  context.fillRect(visible(view.from), view.height - 5, Math.max(4, visible(view.to) - visible(view.from)), 3);
}

function paintScrollbar(context, view, theme) {
  const room = view.height - AXIS_HEIGHT - 2;
  const length = Math.max(24, (room * room) / (view.contentHeight - AXIS_HEIGHT));
  context.fillStyle = theme.faint;
  context.fillRect(view.width - 4, AXIS_HEIGHT + ((room - length) * view.scroll) / maxScroll(view), 3, length);
}

function paintRow(context, view, { theme, hatch, row, strips }) {
  paintLabel(context, view, { theme, row });
  context.save();
  clipTo(context, { left: plotLeft(view), top: row.top, right: plotRight(view), bottom: row.bottom });
  const left = Math.max(plotLeft(view), xOf(view, 0));
  const right = Math.min(plotRight(view), xOf(view, row.plan.figures.makespanNs));
  context.fillStyle = hatch;
  context.fillRect(left, row.action.top, Math.max(0, right - left), row.action.height);
  paintOptimizer(context, view, { theme, row });
  const { shown, isDense } = strips.places.get(row);
  drawStrip(context, view, { row, strips });
  if (!isDense) paintActions(context, view, { theme, row, shown });
  if (row.transfers) paintTransfers(context, view, { theme, row });
  paintBars(context, view, { theme, row });
  if (row.memory) paintMemory(context, view, { theme, row });
  context.restore();
}

// The actions in sight, and the mean distance from one to the next in pixels.
function visibleActions(view, action) {
  const first = firstAbove(action.end, view.from), last = firstAbove(action.start, view.to);
  if (last <= first) return { first, last: first, pitch: Infinity };
  const span = Math.min(view.to, action.end[last - 1]) - Math.max(view.from, action.start[first]);
  return { first, last, pitch: (span * scaleOf(view)) / (last - first) };
}

function paintOptimizer(context, view, { theme, row }) {
  const { optimizerNs } = row.device;
  if (!optimizerNs) return;
  const start = row.plan.figures.makespanNs - row.plan.optimizerNs;
  context.fillStyle = theme.optimizer;
  context.fillRect(xOf(view, start), row.action.top, optimizerNs * scaleOf(view), row.action.height);
}

function shadeOf(device, stage) { return device.stages.indexOf(stage) % SHADES.length; }

// Narrow actions as pixels, put together once and drawn row by row: thousands of rectangles would be too slow.
function makeStrips(view, { theme, rows }) {
  const width = Math.max(1, Math.round((plotRight(view) - plotLeft(view)) * view.pixelRatio));
  const places = new Map();
  let total = 0;
  for (const row of rows) {
    const shown = visibleActions(view, row.device.action), isDense = shown.pitch < DENSE_PITCH;
    const height = isDense ? Math.max(1, Math.round(row.action.height * view.pixelRatio)) : 1;
    places.set(row, { shown, isDense, top: total, height });
    total += height;
  }
  const image = new ImageData(width, Math.max(1, total)), pixels = new Uint32Array(image.data.buffer);
  for (const [row, { shown, isDense, top, height }] of places) {
    const strip = pixels.subarray(top * width, (top + height) * width);
    if (isDense) fillDensity(strip, view, { theme, row, shown, width, height });
    else fillStrip(strip, view, { theme, row, shown });
  }
  const canvas = (theme.strips ??= document.createElement("canvas"));
  canvas.width = width;
  canvas.height = image.height;
  canvas.getContext("2d").putImageData(image, 0, 0);
  return { canvas, places };
}

function fillStrip(strip, view, { theme, row, shown }) {
  const { code, start, end } = row.device.action;
  const scale = scaleOf(view) * view.pixelRatio, narrow = NARROW * view.pixelRatio;
  for (let i = shown.first; i < shown.last; i++) {
    const width = (end[i] - start[i]) * scale;
    if (width > narrow || width === 0) continue;
    const left = Math.max(0, Math.round((start[i] - view.from) * scale));
    const gap = width > 5 * view.pixelRatio ? view.pixelRatio : width > 2.5 ? 1 : 0;
    const right = Math.min(strip.length, Math.max(left + 1, Math.round((end[i] - view.from) * scale - gap)));
    strip.fill(theme.pixels[code[i] % 4][shadeOf(row.device, code[i] >> 2)], left, right);
  }
}

function drawStrip(context, view, { row, strips }) {
  const { canvas, places } = strips, { top, height } = places.get(row);
  context.imageSmoothingEnabled = false;
  context.drawImage(canvas, 0, top, canvas.width, height, plotLeft(view), row.action.top, canvas.width / view.pixelRatio, row.action.height);
}

function paintActions(context, view, { theme, row, shown }) {
  const { code, microbatch, start, end } = row.device.action;
  const { top, height } = row.action;
  const [left, right] = [plotLeft(view) - 4, plotRight(view) + 4];
  const labels = [];
  for (let i = shown.first; i < shown.last; i++) {
    const from = Math.max(left, xOf(view, start[i])), to = Math.min(right, xOf(view, end[i]));
    const kind = code[i] % 4, width = to - from;
    if (end[i] === start[i]) continue;
    if (xOf(view, end[i]) - xOf(view, start[i]) > NARROW) {
      context.fillStyle = theme.kinds[kind][shadeOf(row.device, code[i] >> 2)];
      roundedRect(context, { left: snap(view, from), top, width: snap(view, to) - snap(view, from) - 1, height });
    }
    const digits = String(microbatch[i]).length;
    if (height >= 10 && width >= 5.4 * digits + 2) labels.push({ kind, text: microbatch[i], x: (from + to - 1) / 2, isTight: width < 6.4 * digits + 5 });
  }
  paintNumbers(context, { theme, labels, middle: top + height / 2 + 0.5, size: height >= 20 ? 11 : 9 });
}

// The roomy ones first, so that the font changes once.
function paintNumbers(context, { theme, labels, middle, size }) {
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (const isTight of [false, true]) {
    context.font = `${isTight ? 8.5 : size}px ${FONT}`;
    for (const { kind, text, x } of labels.filter((label) => label.isTight === isTight)) {
      context.fillStyle = theme.onKinds[kind];
      context.fillText(text, x, middle);
    }
  }
}

function roundedRect(context, { left, top, width, height }) {
  context.beginPath();
  context.roundRect(left, top, width, height, 2.5);
  context.fill();
}

// Where actions are too narrow to tell apart, every column is filled in proportion: F below, then I, W, B, idle above.
function fillDensity(strip, view, { theme, row, shown, width, height }) {
  const columns = addUp(view, row.device.action, shown);
  const pixelAt = (column) => Math.min(width, Math.max(0, Math.round((columns.x(column) - plotLeft(view)) * view.pixelRatio)));
  for (let column = 0, left = pixelAt(0), right; column < columns.count; column++, left = right) {
    right = pixelAt(column + 1);
    for (let kind = 0, low = 0, high; kind < KINDS.length; kind++, low = high) {
      high = Math.round(columns.upTo(column, kind) * height);
      for (let y = low; y < high; y++) strip.fill(theme.pixels[kind][0], (height - 1 - y) * width + left, (height - 1 - y) * width + right);
    }
  }
}

// Time per kind in columns of equal length, on a grid that stays put while the view is moved.
function addUp(view, action, { first, last, pitch }) {
  const wanted = Math.max(3, 4 * pitch) / scaleOf(view);
  const step = 2 ** Math.ceil(Math.log2(wanted));
  const origin = Math.floor(view.from / step);
  const count = Math.ceil(view.to / step) - origin;
  const sums = new Float64Array(4 * count);
  for (let i = first; i < last; i++) {
    const kind = action.code[i] % 4;
    let time = Math.max(action.start[i], origin * step);
    while (time < action.end[i]) {
      const column = Math.floor(time / step) - origin;
      if (column >= count) break;
      const end = Math.min(action.end[i], (column + origin + 1) * step);
      sums[4 * column + kind] += end - time;
      time = end;
    }
  }
  const upTo = (column, kind) => {
    let sum = 0;
    for (let k = 0; k <= kind; k++) sum += sums[4 * column + k];
    return sum / step;
  };
  return { count, upTo, x: (column) => xOf(view, Math.min((column + origin) * step, action.end[action.count - 1])) };
}

function transferColour(theme, channel) { return theme.kinds[channel.backward ? INPUT_GRAD : FORWARD][2]; }

function paintTransfers(context, view, { theme, row }) {
  const { top, height } = row.transfers;
  const half = (height - 1) / 2;
  for (const channel of row.device.channels) {
    const first = firstAbove(channel.end, view.from), last = firstAbove(channel.ready, view.to);
    const y = top + (channel.backward ? half + 0.5 : 0);
    context.fillStyle = transferColour(theme, channel);
    for (let i = first; i < last; i++) {
      const left = xOf(view, channel.start[i]);
      if (channel.start[i] > channel.ready[i]) context.fillRect(xOf(view, channel.ready[i]), y + half / 2, left - xOf(view, channel.ready[i]), 0.7);
      context.fillRect(left, y, Math.max(0.7, xOf(view, channel.end[i]) - left), half);
    }
  }
}

// In the transfers' strip, or where that is hidden along the foot of the actions.
function paintBars(context, view, { theme, row }) {
  const strip = row.transfers ?? { top: row.action.top + row.action.height * 0.72, height: row.action.height * 0.28 };
  for (const bar of row.device.bars) {
    if (bar.end < view.from || bar.start > view.to) continue;
    const { top, height } = barPlace(strip, bar);
    const left = xOf(view, bar.start), width = Math.max(1.5, (bar.end - bar.start) * scaleOf(view));
    context.fillStyle = theme[bar.what];
    context.fillRect(left, top, width, height);
    if (height < 8 || width < 60) continue;
    context.fillStyle = theme.card;
    context.font = `8px ${FONT}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText(`${bar.what === "gather" ? "gather" : "sync"} ${bar.stage}`, left + width / 2, top + height / 2 + 0.5);
  }
}

function paintMemory(context, view, { theme, row }) {
  const { top, height } = row.memory;
  const { limitBytes, peakBytes } = row.device;
  const most = Math.max(limitBytes, peakBytes, 1);
  const bottom = top + height - 1;
  const yOf = (bytes) => bottom - (bytes / most) * (height - 4);
  const steps = memorySteps(view, row.device.held, Math.min(view.to, row.plan.figures.makespanNs));
  if (steps.length) {
    traceSteps(context, { steps, yOf, bottom });
    context.globalAlpha = 0.28;
    context.fillStyle = peakBytes > limitBytes ? theme.bad : theme.held;
    context.fill();
    context.globalAlpha = 1;
    traceSteps(context, { steps, yOf });
    context.strokeStyle = peakBytes > limitBytes ? theme.bad : theme.held;
    context.lineWidth = 1;
    context.stroke();
  }
  context.strokeStyle = peakBytes > limitBytes ? theme.bad : theme.faint;
  context.lineWidth = 1;
  context.setLineDash([2, 3]);
  context.beginPath();
  context.moveTo(plotLeft(view), snap(view, yOf(limitBytes)) + 0.5);
  context.lineTo(Math.min(plotRight(view), xOf(view, row.plan.figures.makespanNs)), snap(view, yOf(limitBytes)) + 0.5);
  context.stroke();
  context.setLineDash([]);
}

// The curve as [x, bytes] steps, at most two per pixel: the most that was held in it, then what was left.
function memorySteps(view, held, endNs) {
  const first = Math.max(0, firstAbove(held.time, view.from) - 1), last = firstAbove(held.time, endNs);
  const steps = [];
  for (let i = first; i < last; i++) {
    const x = Math.max(plotLeft(view), xOf(view, held.time[i]));
    const before = steps[steps.length - 1], beforeThat = steps[steps.length - 2];
    if (beforeThat && x - beforeThat[0] < 1) {
      beforeThat[1] = Math.max(beforeThat[1], before[1]);
      before[1] = held.bytes[i];
    } else steps.push([x, held.bytes[i]]);
  }
  if (steps.length) steps.push([xOf(view, endNs), steps[steps.length - 1][1]]);
  return steps;
}

function traceSteps(context, { steps, yOf, bottom = null }) {
  context.beginPath();
  context.moveTo(steps[0][0], bottom ?? yOf(steps[0][1]));
  let level = yOf(steps[0][1]);
  for (const [x, bytes] of steps) {
    context.lineTo(x, level);
    context.lineTo(x, (level = yOf(bytes)));
  }
  if (bottom !== null) context.lineTo(steps[steps.length - 1][0], bottom);
}

function paintLabel(context, view, { theme, row }) {
  const { device } = row;
  const room = row.bottom - row.top;
  const right = plotLeft(view) - 14;
  const small = room < 15;
  const size = small ? Math.max(7.5, Math.min(10, room - 1.5)) : 12;
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.fillStyle = theme.text;
  context.font = `${small ? 400 : 600} ${size}px ${FONT}`;
  const middle = row.action.top + row.action.height / 2;
  const lines = room >= 58 ? 3 : room >= 34 ? 2 : 1;
  const first = lines === 1 ? middle : lines === 2 ? row.top + room / 2 - 10 : row.top + 9;
  const mark = foldMark(row);
  context.fillText(`${fitText(context, device.name, right - 6 - context.measureText(mark).width)}${mark}`, right, first);
  if (device.action.count) context.fillText(inPercent(device.action.work / row.plan.figures.makespanNs, 0), view.width - 6, middle);
  context.font = `11px ${FONT}`;
  context.fillStyle = theme.muted;
  if (lines > 1) context.fillText(fitText(context, stageList(device.stages), right - 6), right, first + 15);
  context.fillStyle = device.peakBytes > device.limitBytes ? theme.bad : theme.muted;
  if (lines > 2 && device.limitBytes && device.peakBytes) context.fillText(peakThatFits(context, device, right - 6), right, first + 30);
}

// Behind the name of a row that stands for several, or of the first of those that were unfolded.
export function foldMark({ members, group, plan, device }) {
  if (members.length > 1) return ` ×${members.length} ▸`;
  return group.length > 1 && plan.devices[group[0]] === device ? " ▾" : "";
}

// On a narrow screen the limit is left out: its line is drawn.
function peakThatFits(context, device, width) {
  return [peakText(device), inBytes(device.peakBytes)].find((text) => context.measureText(text).width <= width) ?? "";
}

export function peakText(device) { return `peak ${inBytes(device.peakBytes)} / ${inBytes(device.limitBytes)}`; }

// Names differ in their numbers, or at their ends more often than at their beginnings, so these are kept.
function fitText(context, text, width) {
  const brief = /\d\D+\d/.test(text) ? text.replace(/\p{L}{5,}/gu, (letters) => `${letters.slice(0, 2)}.`) : text;
  const fitting = [text, brief].find((each) => context.measureText(each).width <= width);
  if (fitting !== undefined) return fitting;
  const letters = [...text], cut = (kept) => `${letters.slice(0, Math.floor(kept / 3)).join("")}…${letters.slice(letters.length - Math.ceil((2 * kept) / 3)).join("")}`;
  let kept = letters.length - 1;
  while (kept > 1 && context.measureText(cut(kept)).width > width) kept--;
  return cut(kept);
}

// With two plans, a heading over each and a line where each ends.
function paintPanel(context, view, { theme, panel }) {
  const { plan, top, bottom } = panel;
  paintLine(context, view, { time: plan.figures.makespanNs, top, bottom, colour: theme.muted });
  if (isNumber(view.content.lowerBoundNs)) {
    paintLine(context, view, { time: view.content.lowerBoundNs, top, bottom, colour: theme.accent, dash: [5, 4] });
  }
  if (!isPair(view)) return;
  context.textAlign = "left";
  context.textBaseline = "alphabetic";
  context.fillStyle = theme.text;
  context.font = `650 12px ${FONT}`;
  const title = `${plan.letter}  ${inMs(plan.figures.makespanNs)}, ${inPercent(plan.figures.bubble)} of it idle`;
  context.fillText(title, plotLeft(view), top - 6);
}

function paintLine(context, view, { time, top, bottom, colour, dash = [] }) {
  const x = snap(view, xOf(view, time));
  if (x < plotLeft(view) || x > plotRight(view)) return;
  context.strokeStyle = colour;
  context.lineWidth = 1.5;
  context.setLineDash(dash);
  context.beginPath();
  context.moveTo(x, top);
  context.lineTo(x, bottom);
  context.stroke();
  context.setLineDash([]);
}

// The names of the lines, above the axis: the end at the right, the bound to the left of its line.
function paintMarkers(context, view, theme) {
  context.font = `600 11px ${FONT}`;
  context.textBaseline = "alphabetic";
  context.textAlign = "right";
  const { lowerBoundNs, plans } = view.content;
  let free = view.width - 6;
  if (!isPair(view) && isVisible(view, plans[0].figures.makespanNs)) {
    const text = `makespan ${inMs(plans[0].figures.makespanNs)}`;
    const right = Math.min(free, Math.max(xOf(view, plans[0].figures.makespanNs) + 50, plotLeft(view) + 140));
    context.fillStyle = theme.muted;
    context.fillText(text, right, 12);
    free = right - context.measureText(text).width - 14;
  }
  if (!isNumber(lowerBoundNs) || !isVisible(view, lowerBoundNs)) return;
  const x = xOf(view, lowerBoundNs);
  const text = `lower bound ${inMs(lowerBoundNs)}`;
  const width = context.measureText(text).width, right = Math.max(Math.min(free, x + 4), plotLeft(view) + width);
  context.fillStyle = theme.accent;
  if (right <= free) context.fillText(text, right, 12);
  else return;
  context.fillRect(snap(view, x) - 0.75, 16, 1.5, AXIS_HEIGHT - 16);
  if (right < x) context.fillRect(right - 2, 16, x - right + 2, 1);
}

function isVisible(view, time) { return time >= view.from && time <= view.to; }
