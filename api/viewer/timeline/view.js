// Where things are: the visible span of time, the rows, and the way between nanoseconds and pixels.

import { alikeRows, shownRows } from "./folding.js";
import { firstAbove } from "../model.js";

export const AXIS_HEIGHT = 40, FOOT_HEIGHT = 12, PANEL_HEIGHT = 22, BUSY_WIDTH = 52;
const ROOMY = { action: 30, transfers: 9, memory: 26, gap: 9 };
const TIGHT = { action: 8, transfers: 4, memory: 13, gap: 1 };
const TIGHT_AMONG_STRIPS = { ...TIGHT, action: 14, gap: 2 };

export function makeView(content) {
  return {
    content, from: 0, to: content.endNs, scroll: 0, showTransfers: false, showMemory: false,
    width: 0, height: 0, pixelRatio: 1, gutter: 120, rows: [], panels: [], contentHeight: 0,
    groups: alikeRows(content.plans), unfolded: new Set(),
  };
}

export function plotLeft(view) { return view.gutter; }
export function plotRight(view) { return view.width - BUSY_WIDTH; }
export function scaleOf(view) { return (plotRight(view) - plotLeft(view)) / (view.to - view.from); }
export function xOf(view, time) { return plotLeft(view) + (time - view.from) * scaleOf(view); }
function timeAt(view, x) { return view.from + (x - plotLeft(view)) / scaleOf(view); }

export function isPair(view) { return view.content.plans.length > 1; }
function countRows(view) { return view.content.plans.length * shownRows(view).length; }

function rowHeight(view, sizes) {
  return sizes.action + sizes.gap + (view.showTransfers ? sizes.transfers : 0) + (view.showMemory ? sizes.memory : 0);
}

function leastSizes(view) { return view.showTransfers || view.showMemory ? TIGHT_AMONG_STRIPS : TIGHT; }

// Transfers and memory are shown from the start if they fit without scrolling.
export function chooseStrips(view, room) {
  view.showTransfers = view.showMemory = true;
  if (rowHeight(view, leastSizes(view)) * countRows(view) > room) view.showTransfers = view.showMemory = false;
}

export function fixedHeight(view) {
  return AXIS_HEIGHT + FOOT_HEIGHT + (isPair(view) ? PANEL_HEIGHT * view.content.plans.length : 0);
}

// Rows share the room between a tight and a roomy size; what does not fit is scrolled to.
export function layOut(view, room) {
  const share = (room - fixedHeight(view)) / countRows(view);
  const tight = leastSizes(view);
  const [least, most] = [rowHeight(view, tight), rowHeight(view, ROOMY)];
  const part = Math.min(1, Math.max(0, (share - least) / (most - least)));
  const size = {};
  for (const key of Object.keys(ROOMY)) size[key] = Math.floor((tight[key] + part * (ROOMY[key] - tight[key])) * 2) / 2;
  size.gap = Math.round(size.gap);
  view.rows = [];
  view.panels = [];
  let top = AXIS_HEIGHT;
  for (const plan of view.content.plans) {
    if (isPair(view)) top += PANEL_HEIGHT;
    const first = top;
    for (const [number, group, alike] of shownRows(view)) {
      const members = alike.map((row) => plan.devices[row]);
      view.rows.push(makeRow(view, { plan, device: plan.devices[number], members, group, top, size }));
      top += rowHeight(view, size);
    }
    view.panels.push({ plan, top: first, bottom: top });
  }
  view.contentHeight = top + FOOT_HEIGHT;
  view.height = Math.ceil(Math.min(view.contentHeight, Math.max(room, 240)));
  view.scroll = Math.min(view.scroll, maxScroll(view));
}

// `members`: the devices that the row stands for; `group`: the numbers of all that are alike.
function makeRow(view, { plan, device, members, group, top, size }) {
  const strips = { action: { top, height: size.action }, transfers: null, memory: null };
  let next = top + size.action;
  for (const [name, shown] of [["transfers", view.showTransfers], ["memory", view.showMemory]]) {
    if (!shown) continue;
    strips[name] = { top: next + 1, height: size[name] - 1 };
    next += size[name];
  }
  return { plan, device, members, group, top, bottom: next, ...strips };
}

// Messages leave room for stashes at the edges: above those that leave, below those that return.
export function barPlace({ top, height }, { what }) {
  const part = what === "offload" || what === "fetch" ? height * 0.4 : height;
  return { top: what === "fetch" ? top + height - part : top, height: part };
}

function isWithin({ top, height }, y) { return y >= top && y < top + height; }

export function maxScroll(view) { return Math.max(0, view.contentHeight - view.height); }

export function clampView(view) {
  const whole = fullSpan(view);
  const span = Math.min(whole.to - whole.from, Math.max(view.to - view.from, 40));
  view.from = Math.min(Math.max(view.from, whole.from), whole.to - span);
  view.to = view.from + span;
  view.scroll = Math.min(Math.max(view.scroll, 0), maxScroll(view));
}

export function fullSpan(view) { return { from: 0, to: view.content.endNs * 1.012 }; }

export function showAll(view) { Object.assign(view, fullSpan(view), { scroll: 0 }); }

export function zoom(view, factor, x) {
  const time = timeAt(view, x ?? (plotLeft(view) + plotRight(view)) / 2);
  view.from = time - (time - view.from) * factor;
  view.to = time + (view.to - time) * factor;
  clampView(view);
}

export function pan(view, { dx = 0, dy = 0 }) {
  const time = dx / scaleOf(view);
  const whole = fullSpan(view);
  const shift = Math.min(Math.max(time, whole.from - view.from), whole.to - view.to);
  view.from += shift;
  view.to += shift;
  view.scroll += dy;
  clampView(view);
}

// Brings a span of time and a row into sight, changing the zoom only if it must.
export function reveal(view, { row, start, end }) {
  const span = view.to - view.from;
  if (start < view.from || end > view.to) {
    view.from = (start + end - span) / 2;
    view.to = view.from + span;
  }
  if (row.top - AXIS_HEIGHT < view.scroll) view.scroll = row.top - AXIS_HEIGHT;
  if (row.bottom > view.scroll + view.height) view.scroll = row.bottom - view.height + FOOT_HEIGHT;
  clampView(view);
}

export function rowOf(view, plan, device) { return view.rows.find((row) => row.plan === plan && row.members.includes(device)); }

// The row whose name is under a point, if there are others like it.
export function foldAt(view, x, y) {
  if (x < 0 || x >= plotLeft(view) || y < AXIS_HEIGHT) return null;
  const inside = y + view.scroll;
  return view.rows.find((row) => row.group.length > 1 && inside >= row.top && inside < row.bottom) ?? null;
}

// What is under a point: {row, strip, index, channel?} or null.
export function hitTest(view, x, y) {
  if (x < plotLeft(view) || x > plotRight(view) || y < AXIS_HEIGHT) return null;
  const inside = y + view.scroll;
  const row = view.rows.find((candidate) => inside >= candidate.top && inside < candidate.bottom);
  if (!row) return null;
  const time = timeAt(view, x);
  if (row.transfers && isWithin(row.transfers, inside)) {
    return hitTransfer(view, { row, time, inside }) ?? { row, time, strip: "idle", index: -1 };
  }
  if (row.memory && inside >= row.memory.top) return { row, time, strip: "memory", index: -1 };
  return hitAction(view, row, time);
}

function hitAction(view, row, time) {
  const action = row.device.action;
  const slack = 1.5 / scaleOf(view);
  let index = Math.max(0, firstAbove(action.end, time));
  if (index === action.count || action.start[index] > time) {
    const before = index - 1, near = [];
    if (before >= 0) near.push([time - action.end[before], before]);
    if (index < action.count) near.push([action.start[index] - time, index]);
    near.sort((a, b) => a[0] - b[0]);
    index = near.length && near[0][0] <= slack ? near[0][1] : -1;
  }
  return { row, time, strip: index < 0 ? "idle" : "action", index };
}

function hitTransfer(view, { row, time, inside }) {
  const slack = 1.5 / scaleOf(view);
  const lower = inside >= row.transfers.top + row.transfers.height / 2;
  for (const channel of row.device.channels) {
    if (Boolean(channel.backward) !== lower) continue;
    const index = firstAbove(channel.end, time - slack);
    if (index < channel.count && channel.ready[index] <= time + slack) return { row, time, strip: "transfers", channel, index };
  }
  const bar = row.device.bars.find((each) => each.start <= time && time <= each.end && isWithin(barPlace(row.transfers, each), inside));
  return bar ? { row, time, strip: "bar", bar, index: -1 } : null;
}
