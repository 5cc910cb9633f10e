// What changes with the pointer: the crosshair, outlines, the pinned action's dependencies, and the boxes of words.

import { causesOf, describeAction, describeHit, effectsOf, inMs, shorten } from "../describe.js";
import { element, factList } from "../dom.js";
import { actionName } from "../model.js";
import { FONT, clipTo, snap } from "./paint.js";
import { AXIS_HEIGHT, plotLeft, plotRight, rowOf, xOf } from "./view.js";

export function paintOverlay(context, view, { theme, hover, pinned }) {
  context.setTransform(view.pixelRatio, 0, 0, view.pixelRatio, 0, 0);
  context.clearRect(0, 0, view.width, view.height);
  context.save();
  clipTo(context, { left: plotLeft(view), top: AXIS_HEIGHT, right: plotRight(view), bottom: view.height });
  context.translate(0, -view.scroll);
  if (pinned) paintPinned(context, view, { theme, pinned });
  if (hover && hover.strip === "action") outline(context, view, { ...hover, colour: theme.pin, width: 1.5 });
  context.restore();
  if (hover) paintCrosshair(context, view, { theme, time: hover.time });
}

function paintCrosshair(context, view, { theme, time }) {
  const x = xOf(view, time);
  context.fillStyle = theme.faint;
  context.fillRect(snap(view, x), AXIS_HEIGHT, 1 / view.pixelRatio, view.height - AXIS_HEIGHT);
  context.font = `600 11px ${FONT}`;
  const text = inMs(time);
  const width = context.measureText(text).width + 10;
  const left = Math.min(Math.max(x - width / 2, plotLeft(view)), plotRight(view) - width);
  context.fillStyle = theme.text;
  context.fillRect(left, AXIS_HEIGHT - 20, width, 17);
  context.fillStyle = theme.card;
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillText(text, left + 5, AXIS_HEIGHT - 11);
}

export function boxOf(view, { row, index }) {
  const { start, end } = row.device.action;
  const left = xOf(view, start[index]), width = Math.max(3, xOf(view, end[index]) - left);
  return { left, right: left + width, width, top: row.action.top, height: row.action.height, middle: row.action.top + row.action.height / 2 };
}

function outline(context, view, { row, index, colour, width }) {
  const box = boxOf(view, { row, index });
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.strokeRect(box.left - width / 2, box.top - width / 2, box.width + width - 1, box.height + width);
}

function paintPinned(context, view, { theme, pinned }) {
  const { row, index } = pinned;
  const { plan, device } = row;
  const own = boxOf(view, pinned);
  for (const cause of causesOf(plan, device, index)) {
    const other = { row: rowOf(view, plan, cause.device), index: cause.index };
    outline(context, view, { ...other, colour: theme.pin, width: 1.5 });
    arrow(context, boxOf(view, other), { to: own, colour: theme.pin, dash: [] });
  }
  for (const effect of effectsOf(plan, device, index)) {
    const other = { row: rowOf(view, plan, effect.device), index: effect.index };
    outline(context, view, { ...other, colour: theme.pin, width: 1.5 });
    arrow(context, own, { to: boxOf(view, other), colour: theme.pin, dash: [4, 3] });
  }
  outline(context, view, { row, index, colour: theme.pin, width: 3 });
}

function arrow(context, from, { to, colour, dash }) {
  context.strokeStyle = context.fillStyle = colour;
  context.lineWidth = 1.4;
  context.setLineDash(dash);
  context.beginPath();
  const tip = from.top === to.top ? traceArc(context, from, to) : traceCurve(context, from, to);
  context.stroke();
  context.setLineDash([]);
  context.beginPath();
  context.moveTo(tip.x, tip.y);
  if (tip.isDown) [[-3.5, -7], [3.5, -7]].forEach(([dx, dy]) => context.lineTo(tip.x + dx, tip.y + dy));
  else [[-7, -3.5], [-7, 3.5]].forEach(([dx, dy]) => context.lineTo(tip.x + dx, tip.y + dy));
  context.fill();
}

// Between devices: from the end of one action to the start of the other.
function traceCurve(context, from, to) {
  const bend = Math.max(14, Math.min(90, Math.abs(to.left - from.right) / 2));
  context.moveTo(from.right, from.middle);
  context.bezierCurveTo(from.right + bend, from.middle, to.left - bend, to.middle, to.left - 3, to.middle);
  return { x: to.left, y: to.middle, isDown: false };
}

// On one device: over the actions in between.
function traceArc(context, from, to) {
  const [start, end] = [Math.max(from.left, from.right - 6), Math.min(to.right, to.left + 6)];
  const rise = Math.max(8, Math.min(22, (end - start) / 4));
  context.moveTo(start, from.top);
  context.bezierCurveTo(start + rise / 2, from.top - rise, end - rise / 2, to.top - rise, end, to.top - 4);
  return { x: end, y: to.top, isDown: true };
}

export function fillTip(tip, view, { hit, x, y }) {
  const { title, facts } = describeHit(hit);
  placeTip(tip, view, { title, facts: [...facts, ...alikeFacts(hit.row)], x, y });
}

// What a folded row stands for.
export function fillFoldTip(tip, view, { row, x, y }) {
  const names = row.group.map((number) => row.plan.devices[number].name).join(", ");
  const title = row.members.length > 1 ? `${row.members.length} devices in one row` : "One of several alike";
  const facts = [["devices", shorten(names, 300)], ["all", "run the same stages at the same times"], ["click", row.members.length > 1 ? "shows each" : "folds them again"]];
  placeTip(tip, view, { title, facts, x, y });
}

function alikeFacts({ members: [first, ...others] }) {
  if (!others.length) return [];
  const isSame = others.every(({ action }) => action.microbatch.every((number, i) => number === first.action.microbatch[i]));
  return [["likewise", `${shorten(others.map((device) => device.name).join(", "), 200)}${isSame ? "" : ", with other microbatches"}`]];
}

function placeTip(tip, view, { title, facts, x, y }) {
  tip.replaceChildren(element("strong", { text: title }), factList(facts));
  tip.hidden = false;
  const right = x + 16 + tip.offsetWidth <= view.width;
  tip.style.left = `${right ? x + 16 : Math.max(0, x - 16 - tip.offsetWidth)}px`;
  tip.style.top = `${Math.max(0, Math.min(y + 18, view.height - tip.offsetHeight))}px`;
}

// The pinned action in words, with a button for every action that it waited for or that waits for it.
export function fillPinned(box, view, { pinned, onJump, onClose }) {
  const { row: { plan, device }, index } = pinned;
  const { title, facts } = describeAction(plan, device, index);
  const close = element("button", { text: "×", className: "close", title: "Let go (Esc)", attributes: { type: "button", "aria-label": "Let go" } });
  close.addEventListener("click", onClose);
  box.replaceChildren(close, element("strong", { text: title }), factList(facts));
  for (const [heading, others] of [["waited for", causesOf(plan, device, index)], ["waits for it", effectsOf(plan, device, index)]]) {
    if (!others.length) continue;
    const buttons = others.map((other) => jumpButton(plan, device, { other, onJump }));
    box.append(element("h3", { text: heading }), element("div", { className: "links" }, buttons));
  }
  box.hidden = false;
  placeAside(box, view, boxOf(view, pinned));
}

function jumpButton(plan, device, { other, onJump }) {
  const where = other.device === device ? "" : ` on ${shorten(other.device.name, 24)}`;
  const button = element("button", { text: `${actionName(other.device, other.index)}${where}`, attributes: { type: "button" } });
  button.addEventListener("click", () => onJump(plan, other.device, other.index));
  return button;
}

// Beside the action where there is room, never over it.
function placeAside(box, view, { left, right, top, height }) {
  const x = right + 24 + box.offsetWidth <= plotRight(view) ? right + 24 : Math.max(0, left - 24 - box.offsetWidth);
  const wanted = top - view.scroll + height + 18;
  box.style.left = `${Math.min(x, view.width - box.offsetWidth)}px`;
  box.style.top = `${Math.max(0, Math.min(wanted, view.height - box.offsetHeight))}px`;
}
