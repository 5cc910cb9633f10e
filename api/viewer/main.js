// Puts the parts together, paints for the first time, and answers the tests.

class App {
  constructor(content) {
    this.canvas = byId("picture");
    this.overlay = byId("overlay");
    this.tip = byId("tip");
    this.box = byId("pinned");
    this.context = this.canvas.getContext("2d", { alpha: false });
    this.pen = this.overlay.getContext("2d");
    this.view = makeView(content);
    this.hover = this.pinned = null;
    this.isWaiting = false;
    this.room = 0;
  }

  start() {
    this.setTheme(matchMedia("(prefers-color-scheme: dark)").matches);
    fillPage(this.view.content);
    this.measure();
    chooseLanes(this.view, this.room - fixedHeight(this.view));
    showAll(this.view);
    this.resize();
    connect(this);
    addEventListener("resize", () => this.resize());
    new ResizeObserver(() => { if (byId("stage").clientWidth !== this.view.width) this.resize(); }).observe(byId("stage"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => this.setTheme(event.matches));
  }

  setTheme(isDark) {
    document.documentElement.dataset.theme = isDark ? "dark" : "light";
    byId("theme").textContent = isDark ? "light" : "dark";
    this.theme = readTheme();
    fillLegend(this.view.content, this.theme, devicePixelRatio || 1);
    if (this.view.width) this.paintBoth();
  }

  switchTheme() { this.setTheme(document.documentElement.dataset.theme !== "dark"); }

  measure() {
    const { view } = this;
    view.width = byId("stage").clientWidth;
    view.pixelRatio = Math.max(1, devicePixelRatio || 1);
    view.gutter = this.gutterWidth();
    this.room = Math.max(420, innerHeight - byId("stage").getBoundingClientRect().top - scrollY - 56);
  }

  gutterWidth() {
    const texts = this.view.content.plans.flatMap((plan) => plan.devices).flatMap((device) => [device.name, stageList(device.stages), peakText(device)]);
    this.context.font = `600 11.5px ${FONT}`;
    const widest = Math.max(...texts.map((text) => this.context.measureText(text).width));
    return Math.round(Math.min(Math.max(widest + 26, 96), Math.min(240, this.view.width * 0.28)));
  }

  resize() {
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
    if (this.pinned) this.pinned.row = rowOf(view, this.pinned.row.plan, this.pinned.row.device);
    this.paintBoth();
  }

  showLanes(lanes) {
    Object.assign(this.view, lanes);
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
    if (this.hover) fillTip(this.tip, this.view, { hit: this.hover, x, y });
    else this.tip.hidden = true;
    this.paintOver();
  }

  clickAt(x, y) {
    const hit = hitTest(this.view, x, y);
    const isSame = hit && this.pinned && hit.row === this.pinned.row && hit.index === this.pinned.index;
    this.pin(hit && hit.lane === "action" && !isSame ? { row: hit.row, index: hit.index } : null);
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

// Where an action is on the page, by plan, device and name (`2F0`); undefined if there is none.
function locate(app, { plan = 0, device, action }) {
  const row = app.view.rows.find((candidate) => candidate.plan.index === plan && candidate.device.name === device);
  const index = row ? [...row.device.action.code.keys()].find((i) => actionName(row.device, i) === action) : undefined;
  if (index === undefined) return undefined;
  const box = boxOf(app.view, { row, index }), frame = app.canvas.getBoundingClientRect();
  return { x: frame.left + (box.left + box.right) / 2, y: frame.top + box.middle - app.view.scroll, width: box.width };
}

const app = new App(readContent());
app.start();
app.context.getImageData(0, 0, 1, 1);
window.pipeplanFirstPaintMs = performance.now();
window.pipeplanPaint = () => timePaint(app);
window.pipeplanLocate = (wanted) => locate(app, wanted);
window.pipeplanView = () => ({
  from: app.view.from, to: app.view.to, scroll: app.view.scroll, width: app.view.width, height: app.view.height,
  pinned: app.pinned ? actionName(app.pinned.row.device, app.pinned.index) : null,
});
