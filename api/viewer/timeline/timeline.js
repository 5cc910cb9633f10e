// The timeline: its frame of toolbar, canvas and boxes, and everything that can be done with it.

import { connect } from "./controls.js";
import { stageList, summaryOf } from "../describe.js";
import { button, byId, element } from "../dom.js";
import { fillLegend } from "./legend.js";
import { actionName, firstAbove } from "../model.js";
import { boxOf, fillFoldTip, fillPinned, fillTip, paintOverlay } from "./overlay.js";
import { foldAll, isFoldable, isOpen, toggleGroup } from "./folding.js";
import { FONT, paintPicture, peakText, readTheme } from "./paint.js";
import { isDark, onTheme, switchTheme } from "../theme.js";
import {
  AXIS_HEIGHT, barPlace, chooseStrips, clampView, fixedHeight, foldAt, fullSpan, hitTest, layOut, makeView, reveal, rowOf, showAll, xOf,
} from "./view.js";

export class Timeline {
  // `room`: pixels of height that the picture may take, as a function of where its frame begins.
  constructor(root, { room }) {
    this.root = root;
    this.roomBelow = room;
    this.build();
    this.context = this.canvas.getContext("2d", { alpha: false });
    this.pen = this.overlay.getContext("2d");
    this.view = null;
    this.hover = this.pinned = null;
    this.isWaiting = false;
    this.room = 0;
    connect(this);
    addEventListener("resize", () => this.resize());
    new ResizeObserver(() => { if (this.view && this.frame.clientWidth !== this.view.width) this.resize(); }).observe(this.frame);
    onTheme(() => this.takeTheme());
  }

  build() {
    this.canvas = element("canvas", { attributes: { id: "picture", tabindex: "0", role: "img", "aria-describedby": "keys" } });
    this.overlay = element("canvas", { attributes: { id: "overlay", "aria-hidden": "true" } });
    this.tip = element("div", { attributes: { id: "tip", hidden: "" } });
    this.box = element("div", { attributes: { id: "pinned", role: "group", "aria-label": "Pinned action", hidden: "" } });
    this.frame = element("div", { attributes: { id: "stage" } }, [this.canvas, this.overlay, this.tip, this.box]);
    this.legend = element("ul", { attributes: { id: "legend", "aria-label": "Legend" } });
    this.root.replaceChildren(element("div", { className: "toolbar" }, [this.legend, this.tools()]), this.frame, keysHint());
  }

  tools() {
    const tool = (id, text, { title, label = null }) => element("button", { text, title, attributes: { type: "button", id, ...(label ? { "aria-label": label } : {}) } });
    const check = (id) => element("label", {}, [element("input", { attributes: { type: "checkbox", id } }), ` ${id}`]);
    const zooms = [tool("zoom-out", "−", { title: "Zoom out (-)", label: "Zoom out" }), tool("zoom-in", "+", { title: "Zoom in (+)", label: "Zoom in" }), tool("reset", "all", { title: "Show everything (0 or double click)" })];
    const every = element("label", { title: "Replicas that do the same at the same times share a row (f)", attributes: { id: "unfold-label" } }, [element("input", { attributes: { type: "checkbox", id: "unfold" } }), " every device"]);
    return element("span", { className: "tools" }, [every, check("transfers"), check("memory"), element("span", { className: "group" }, zooms), ...(byId("theme") ? [] : [themeButton()])]);
  }

  // Another plan in the same frame; who has zoomed in stays where they are.
  show(content) {
    const before = this.view;
    this.view = makeView(content);
    this.pin(null);
    this.canvas.setAttribute("aria-label", summaryOf(content));
    this.takeTheme();
    this.measure();
    if (before) Object.assign(this.view, { showTransfers: before.showTransfers, showMemory: before.showMemory, unfolded: before.unfolded });
    else chooseStrips(this.view, this.room - fixedHeight(this.view));
    if (!content.machine.devices.length) Object.assign(this.view, { showTransfers: false, showMemory: false });
    showAll(this.view);
    if (before && before.to - before.from < 0.98 * fullSpan(before).to) Object.assign(this.view, { from: before.from, to: before.to, scroll: before.scroll });
    this.resize();
  }

  takeTheme() {
    this.theme = readTheme();
    if (!this.view) return;
    fillLegend(this.legend, this.view.content, this.theme, devicePixelRatio || 1);
    if (this.view.width) this.paintBoth();
  }

  measure() {
    const { view } = this;
    view.width = this.frame.clientWidth;
    view.pixelRatio = Math.max(1, devicePixelRatio || 1);
    view.gutter = this.gutterWidth();
    this.room = this.roomBelow(this.frame.getBoundingClientRect().top + scrollY);
  }

  gutterWidth() {
    const mark = isFoldable(this.view) ? " ×99 ▸" : "";
    const texts = this.view.content.plans.flatMap((plan) => plan.devices).flatMap((device) => [device.name + mark, stageList(device.stages), device.limitBytes ? peakText(device) : ""]);
    this.context.font = `600 11.5px ${FONT}`;
    const widest = Math.max(...texts.map((text) => this.context.measureText(text).width));
    return Math.round(Math.min(Math.max(widest + 26, 96), Math.min(240, this.view.width * 0.28)));
  }

  resize() {
    if (!this.view) return;
    const { view } = this;
    this.measure();
    layOut(view, this.room);
    clampView(view);
    for (const canvas of [this.canvas, this.overlay]) {
      canvas.width = Math.round(view.width * view.pixelRatio);
      canvas.height = Math.round(view.height * view.pixelRatio);
      canvas.style.height = `${view.height}px`;
    }
    byId("transfers").checked = view.showTransfers;
    byId("memory").checked = view.showMemory;
    for (const id of ["unfold-label", "fold-hint"]) byId(id).hidden = !isFoldable(view);
    byId("unfold").checked = view.groups.every((group) => isOpen(view, group));
    if (this.pinned) this.pinned.row = rowOf(view, this.pinned.row.plan, this.pinned.row.device);
    this.paintBoth();
  }

  // All rows of replicas that are alike, or one of each.
  fold(folded) {
    if (!isFoldable(this.view)) return;
    foldAll(this.view, folded);
    this.resize();
  }

  showStrips(strips) {
    Object.assign(this.view, strips);
    this.resize();
  }

  paint() { paintPicture(this.context, this.view, this.theme); }
  paintOver() { paintOverlay(this.pen, this.view, this); }
  paintBoth() {
    this.paint();
    this.paintOver();
  }

  // Moves the view now and paints it with the next frame.
  change(move) {
    move();
    this.hover = null;
    this.tip.hidden = true;
    if (this.pinned) this.showPinned();
    this.paintSoon();
  }

  paintSoon() {
    if (this.isWaiting) return;
    this.isWaiting = true;
    requestAnimationFrame(() => {
      this.isWaiting = false;
      this.paintBoth();
    });
  }

  hoverAt(x, y) {
    this.hover = hitTest(this.view, x, y);
    const folded = foldAt(this.view, x, y);
    this.canvas.classList.toggle("on-fold", Boolean(folded));
    if (folded) fillFoldTip(this.tip, this.view, { row: folded, x, y });
    else if (this.hover) fillTip(this.tip, this.view, { hit: this.hover, x, y });
    else this.tip.hidden = true;
    this.paintOver();
  }

  clickAt(x, y) {
    const folded = foldAt(this.view, x, y);
    if (folded) {
      this.tip.hidden = true;
      toggleGroup(this.view, folded.group);
      return this.resize();
    }
    const hit = hitTest(this.view, x, y);
    const isSame = hit && this.pinned && hit.row === this.pinned.row && hit.index === this.pinned.index;
    this.pin(hit && hit.strip === "action" && !isSame ? { row: hit.row, index: hit.index } : null);
  }

  pin(pinned) {
    this.pinned = pinned;
    this.tip.hidden = true;
    this.box.hidden = !pinned;
    if (pinned) this.showPinned();
    this.paintOver();
  }

  showPinned() {
    const onClose = () => {
      this.pin(null);
      this.canvas.focus();
    };
    fillPinned(this.box, this.view, { pinned: this.pinned, onJump: (...target) => this.jump(...target), onClose });
  }

  jump(plan, device, index) {
    if (rowOf(this.view, plan, device).device !== device) {
      toggleGroup(this.view, rowOf(this.view, plan, device).group);
      this.resize();
    }
    const row = rowOf(this.view, plan, device);
    reveal(this.view, { row, start: device.action.start[index], end: device.action.end[index] });
    this.pin({ row, index });
    this.canvas.focus({ preventScroll: true });
    this.paintSoon();
  }

  pinFirst() {
    const isShown = ({ device }) => firstAbove(device.action.end, this.view.from) < device.action.count;
    const row = this.view.rows.find((candidate) => candidate.bottom > this.view.scroll + AXIS_HEIGHT && isShown(candidate));
    if (row) this.jump(row.plan, row.device, firstAbove(row.device.action.end, this.view.from));
  }

  pinNext(step) {
    if (!this.pinned) this.pinFirst();
    else {
      const { row, index } = this.pinned;
      if (index + step >= 0 && index + step < row.device.action.count) this.jump(row.plan, row.device, index + step);
    }
  }
}

// Milliseconds of one full repaint, down to finished pixels: reading one back waits for all of them.
function timePaint(app) {
  const begin = performance.now();
  app.paintBoth();
  app.context.getImageData(0, 0, 1, 1);
  return performance.now() - begin;
}

// Where an action, or with `bar` the nth bar beside them, is on the page, by plan, device and name (`2F0`); undefined if
// there is none.
function locate(app, { plan = 0, device, action, bar }) {
  const row = app.view.rows.find((candidate) => candidate.plan.index === plan && candidate.members.some(({ name }) => name === device));
  if (bar !== undefined) return row && locateBar(app, row, row.device.bars[bar]);
  const index = row ? [...row.device.action.code.keys()].find((i) => actionName(row.device, i) === action) : undefined;
  if (index === undefined) return undefined;
  const box = boxOf(app.view, { row, index }), frame = app.canvas.getBoundingClientRect();
  return { x: frame.left + (box.left + box.right) / 2, y: frame.top + box.middle - app.view.scroll, width: box.width };
}

function locateBar({ view, canvas }, row, bar) {
  if (!bar || !row.transfers) return undefined;
  const frame = canvas.getBoundingClientRect(), { top, height } = barPlace(row.transfers, bar);
  return { x: frame.left + xOf(view, (bar.start + bar.end) / 2), y: frame.top + top + height / 2 - view.scroll, height };
}

// Where the page around has none of its own.
function themeButton() {
  const made = button(isDark() ? "light" : "dark", { onClick: switchTheme, title: "Light or dark (d)", attributes: { id: "theme" } });
  onTheme(() => { made.textContent = isDark() ? "light" : "dark"; });
  return made;
}

function keysHint() {
  const key = (text) => element("kbd", { text });
  return element("p", { className: "hint", attributes: { id: "keys" } }, [
    "Zoom with the wheel or ", key("+"), " ", key("−"), ", pan by dragging or with the arrow keys, ", key("0"), " shows everything. " +
    "A click pins an action and draws what it waited for and what waits for it; ", key("n"), " ", key("p"), " step along.",
    element("span", { attributes: { id: "fold-hint" } }, [" A name with ▸ stands for replicas that do the same; a click on it or ", key("f"), " shows each."]),
  ]);
}

// Answers the tests.
export function answerTests(app) {
  app.context.getImageData(0, 0, 1, 1);
  window.pipeplanFirstPaintMs ??= performance.now();
  window.pipeplanPaint = () => timePaint(app);
  window.pipeplanLocate = (wanted) => locate(app, wanted);
  window.pipeplanView = () => ({
    from: app.view.from, to: app.view.to, scroll: app.view.scroll, width: app.view.width, height: app.view.height,
    rows: app.view.rows.map((row) => row.members.map(({ name }) => name)),
    pinned: app.pinned ? actionName(app.pinned.row.device, app.pinned.index) : null,
  });
}
