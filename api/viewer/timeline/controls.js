// Pointer, wheel, keyboard and buttons.

import { byId } from "../dom.js";
import { switchTheme } from "../theme.js";
import { pan, plotLeft, plotRight, showAll, zoom } from "./view.js";

const CLICK_SLACK = 4;

export function connect(app) {
  connectPointer(app);
  const { canvas } = app;
  canvas.addEventListener("wheel", (event) => { if (app.view) onWheel(app, event); }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.altKey && app.view && onKey(app, event.key, event.shiftKey)) event.preventDefault();
  });
  canvas.addEventListener("dblclick", () => app.change(() => showAll(app.view)));
  const click = (id, action) => byId(id).addEventListener("click", action);
  click("zoom-in", () => app.change(() => zoom(app.view, 1 / 1.5)));
  click("zoom-out", () => app.change(() => zoom(app.view, 1.5)));
  click("reset", () => app.change(() => showAll(app.view)));
  byId("unfold").addEventListener("change", (event) => app.fold(!event.target.checked));
  byId("transfers").addEventListener("change", (event) => app.showStrips({ showTransfers: event.target.checked }));
  byId("memory").addEventListener("change", (event) => app.showStrips({ showMemory: event.target.checked }));
}

function connectPointer(app) {
  const { canvas } = app;
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    drag = { x: event.offsetX, y: event.offsetY, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const { offsetX: x, offsetY: y } = event;
    if (drag && (drag.moved || Math.hypot(x - drag.x, y - drag.y) > CLICK_SLACK)) {
      const [dx, dy] = [drag.x - x, drag.y - y];
      drag = { x, y, moved: true };
      canvas.classList.add("dragging");
      app.change(() => pan(app.view, { dx, dy }));
    }
    if (!drag) app.hoverAt(x, y);
  });
  const release = (event) => {
    const clicked = drag && !drag.moved && event.type === "pointerup";
    drag = null;
    canvas.classList.remove("dragging");
    if (clicked) app.clickAt(event.offsetX, event.offsetY);
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", () => app.hoverAt(-1, -1));
}

// Over the names the wheel moves the rows (or the page), elsewhere it zooms; sideways or with Shift it pans.
function onWheel(app, event) {
  const { view } = app;
  const unit = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
  const [dx, dy] = [event.deltaX * unit, event.deltaY * unit];
  if (event.offsetX < plotLeft(view)) {
    const before = view.scroll;
    app.change(() => pan(view, { dy }));
    if (view.scroll !== before) event.preventDefault();
    return;
  }
  event.preventDefault();
  if (event.shiftKey || Math.abs(dx) > Math.abs(dy)) app.change(() => pan(view, { dx: dx || dy }));
  else app.change(() => zoom(view, Math.exp(Math.max(-240, Math.min(240, dy)) * 0.002), event.offsetX));
}

// Returns whether the key meant something.
function onKey(app, key, shift) {
  const { view } = app;
  const page = (plotRight(view) - plotLeft(view)) * (shift ? 0.9 : 0.15);
  const moves = {
    "+": () => zoom(view, 1 / 1.5), "=": () => zoom(view, 1 / 1.5), "-": () => zoom(view, 1.5), "_": () => zoom(view, 1.5),
    "0": () => showAll(view),
    ArrowLeft: () => pan(view, { dx: -page }), ArrowRight: () => pan(view, { dx: page }),
    ArrowUp: () => pan(view, { dy: -48 }), ArrowDown: () => pan(view, { dy: 48 }),
    Home: () => pan(view, { dx: -1e9 }), End: () => pan(view, { dx: 1e9 }),
  };
  const actions = {
    Escape: () => app.pin(null), Enter: () => app.pinFirst(), n: () => app.pinNext(1), p: () => app.pinNext(-1),
    d: () => switchTheme(), f: () => app.fold(view.unfolded.size > 0),
    t: () => app.showStrips({ showTransfers: !view.showTransfers }), m: () => app.showStrips({ showMemory: !view.showMemory }),
  };
  if (Object.hasOwn(moves, key)) app.change(moves[key]);
  else if (Object.hasOwn(actions, key)) actions[key]();
  else return false;
  return true;
}
