// What-ifs as instruments: every position of a slider is answered at once with a range that is certain, which a solver
// sharpens while one looks.

import { addressOf, readAddress, writeAddress } from "./address.js";
import { findRanges, isNoChange, isSameChange, knownRange, noChange, sharpen } from "./ranges.js";
import { call, follow, isLive, phaseText, secondsOf } from "./service.js";
import { inBytes, inMs, inPercent, isNumber, plural } from "../viewer/describe.js";
import { button, element } from "../viewer/dom.js";
import { objectiveOf } from "../viewer/headline.js";

const MOST_MOVED = 4, AT_ONCE = 3;
const REST_MS = 1200, SEARCH_S = 20, CLOSED = 0.001; // a slider at rest; seconds of the solver; what is as good as exact
const MEMORY_STEPS = [-0.5, -0.25, -0.1, 0, 0.1, 0.25, 0.5, 1], LINK_STEPS = [0.125, 0.25, 0.5, 1, 2, 4, 8], BATCH_STEPS = [0.25, 0.5, 0.75, 1, 1.5, 2, 4];

const HINT = "Move a slider: the answer is a range that is certain, at once.";

// The sliders for a question: [{name, label, positions: [{change, text}], start}].
export function instrumentsOf(content) {
  const devices = content.machine.devices, count = devices.length;
  const memory = Math.min(...devices.map(([, , , bytes]) => bytes));
  const moves = Array.from({ length: 2 * MOST_MOVED + 1 }, (_, i) => i - MOST_MOVED).filter((move) => count + move > 0);
  return [
    { name: "memory", label: "Memory per device", positions: MEMORY_STEPS.map((part) => ({ change: { memory_bytes: Math.round(part * memory) }, text: part ? `${signed(part * memory, inBytes)} (${signed(100 * part, (n) => `${n} %`)})` : `as it is, ${inBytes(memory)}` })), start: 3 },
    { name: "devices", label: "Devices", positions: moves.map((move) => ({ change: { devices: move }, text: move ? `${count + move} (${signed(move, String)})` : `as they are, ${count}` })), start: moves.indexOf(0) },
    { name: "links", label: "Speed of the links", positions: LINK_STEPS.map((speed) => ({ change: { link_speed: speed }, text: speed === 1 ? "as it is" : speed > 1 ? `${speed} × as fast` : `1/${1 / speed} as fast` })), start: 3 },
    batchInstrument(content),
    ...cutInstrument(content),
  ];
}

// More or fewer microbatches as they are; where their size is known, in samples.
function batchInstrument({ numMicrobatches: now, microbatchSize: size }) {
  const counts = [...new Set(BATCH_STEPS.map((part) => Math.max(1, Math.round(part * now))))];
  const field = size ? "global_batch_size" : "num_microbatches";
  const phrase = (count) => (size ? plural(count * size, "sample") : plural(count, "microbatch", "microbatches"));
  const positions = counts.map((count) => ({ change: { [field]: count === now ? null : count * (size || 1) }, text: count === now ? `as it is, ${phrase(count)}` : phrase(count) }));
  return { name: "batch", label: "Batch", positions, start: counts.indexOf(now) };
}

// The same batch in other microbatches, where the profile says what they cost.
function cutInstrument({ microbatchSize: now, microbatchSizes: sizes = [] }) {
  if (sizes.length < 2) return [];
  const phrase = (size) => `${plural(size, "sample")} each`;
  const positions = sizes.map((size) => ({ change: { microbatch_size: size === now ? null : size }, text: size === now ? `as they are, ${plural(size, "sample")}` : phrase(size) }));
  return [{ name: "microbatches", label: "Microbatches", positions, start: sizes.indexOf(now) }];
}

// How many times the present batch a changed question has.
function batchFactor(change, { numMicrobatches: count, microbatchSize: size }) {
  if (change.global_batch_size) return change.global_batch_size / (count * size);
  return (change.num_microbatches ?? count) / count;
}

function signed(value, write) { return value < 0 ? `−${write(-value)}` : `+${write(value)}`; }

export class WhatIf {
  // `root`: where it stands; `onAsked()`: a plan for a change was asked for.
  constructor(root, { onAsked }) {
    Object.assign(this, { root, onAsked, job: null, content: null, sliders: [], busy: false, isStale: false, control: null, range: null, jobs: [], isMoved: false, asked: null, timer: 0 });
  }

  // `job` has a plan, of which `content` is the picture; `jobs`: the latest of the service.
  show(job, content, jobs) {
    this.jobs = jobs;
    const key = JSON.stringify([job.id, content.machine.devices.length, content.numMicrobatches, content.microbatchSize]);
    Object.assign(this, { job, content });
    if (key === this.key) {
      if (this.range && this.plan !== planOf(job)) this.lookUp();
      return;
    }
    this.leave();
    Object.assign(this, { job, key });
    this.build();
  }

  // The page turns to something else: nothing more is asked about the job.
  leave() {
    Object.assign(this, { job: null, key: null, range: null, isMoved: false, asked: null });
    clearTimeout(this.timer);
    this.control?.abort();
    this.observer?.disconnect();
  }

  build() {
    this.sliders = instrumentsOf(this.content).map((instrument) => this.slider(instrument));
    this.answer = element("p", { className: "answer", attributes: { role: "status", "aria-live": "polite" }, text: HINT });
    this.scale = element("div", { className: "range-scale", attributes: { "aria-hidden": "true" } });
    this.sharpen = button("Narrow it with the solver", { onClick: () => this.ask(), attributes: { id: "sharpen", disabled: "" } });
    this.clear = button("Reset", { onClick: () => this.reset() });
    this.open = element("a", { text: "Open the plan", attributes: { href: "?", hidden: "" } });
    this.goOn = element("input", { attributes: { type: "checkbox", id: "go-on" } });
    this.goOn.checked = localStorage.getItem("go-on") !== "no";
    this.goOn.addEventListener("change", () => {
      localStorage.setItem("go-on", this.goOn.checked ? "yes" : "no");
      if (this.goOn.checked) this.rest();
      else this.giveUp();
    });
    this.work = element("span", { className: "hint" });
    this.watch();
    if (this.sliders.some(({ input, start }) => Number(input.value) !== start)) this.lookUp();
    this.root.replaceChildren(element("div", { className: "sliders" }, this.sliders.map(({ box }) => box)), this.scale, this.answer, element("p", { className: "row" }, [this.sharpen, this.clear, element("label", { className: "go-on" }, [this.goOn, "Narrow it by itself"]), this.work, this.open]));
  }

  slider({ name, label, positions, start }) {
    const place = placeInAddress(name, positions, start);
    const input = element("input", { attributes: { type: "range", id: `wi-${name}`, min: "0", max: String(positions.length - 1), step: "1", value: String(place) } });
    const output = element("output", { text: positions[place].text, attributes: { for: `wi-${name}` } });
    const strip = element("span", { className: "strip", attributes: { "aria-hidden": "true" } });
    const box = element("div", { className: "slider" }, [element("label", { text: label, attributes: { for: `wi-${name}` } }), output, strip, input]);
    const slider = { name, input, output, strip, positions, start, box };
    input.setAttribute("aria-valuetext", positions[place].text);
    input.addEventListener("input", () => this.moved(slider));
    return slider;
  }

  moved(slider) {
    const { text } = slider.positions[slider.input.value];
    writeAddress({ [slider.name]: slider.input.value - slider.start || null });
    slider.output.textContent = text;
    slider.input.setAttribute("aria-valuetext", text);
    this.isMoved = true;
    this.giveUp();
    this.open.hidden = true;
    this.lookUp();
  }

  reset() {
    for (const slider of this.sliders) {
      slider.input.value = slider.start;
      this.moved(slider);
    }
    this.isMoved = false;
  }

  change(overrides = null) {
    const change = noChange();
    for (const slider of this.sliders) Object.assign(change, slider.positions[slider.input.value].change);
    return { ...change, ...overrides };
  }

  // One question at a time; what was moved meanwhile is asked next, then what else the sliders could say. Whatever is
  // asked is asked about the job that the question began with, for the page may show another one when the answer comes.
  async lookUp() {
    this.isStale = true;
    if (this.busy) return;
    this.busy = true;
    try {
      while (this.isStale && this.job) await this.lookOnce(this.job);
    } finally {
      this.busy = false;
    }
  }

  async lookOnce(job) {
    const isOver = () => this.isStale || this.job?.id !== job.id;
    this.isStale = false;
    this.plan = planOf(job);
    try {
      const [range] = await findRanges(job, [this.change()]);
      if (this.job?.id === job.id) this.tell(this.withPlan(job, range));
      if (!isOver()) this.rest();
      for (const other of this.sliders) if (!isOver() && !isLive(job)) await this.lookAlong(job, other, isOver);
    } catch (error) {
      if (this.job?.id === job.id) this.answer.textContent = error.message;
    }
  }

  // What a plan that was made for the change has shown before; one that is still made continues narrowing the range.
  withPlan(base, range) {
    const made = this.jobs.find((job) => job.what_if?.base === base.id && isSameChange(range.change, job.what_if.change));
    if (!made || !isNumber(range.at_least_ns)) return range;
    if (made.state === "succeeded") this.offer(made);
    if (isLive(made) && !this.asked) this.follow(made, { base, change: range.change });
    return sharpen(base, range.change, { least: made.lower_bound_ns, most: made.incumbent_ns });
  }

  offer(job) {
    this.open.href = addressOf(job.id);
    this.open.hidden = false;
  }

  // Once a moved slider has been left alone, the solver continues where the range is open.
  rest() {
    clearTimeout(this.timer);
    if (!this.isMoved || !this.goOn.checked || !this.open.hidden || !this.canAsk() || !this.isOpen()) return;
    this.timer = setTimeout(() => this.ask({ isByItself: true }), REST_MS);
  }

  // Whether the solver can be asked for a plan.
  canAsk() {
    const { job, range } = this;
    return Boolean(job && range && !this.asked && !isLive(job) && !isNoChange(range.change) && isNumber(range.at_least_ns));
  }

  // Whether there is a range that a solver could narrow.
  isOpen() {
    const { at_least_ns: least, at_most_ns: most } = this.range;
    return !isNumber(most) || most - least > CLOSED * most;
  }

  // The solver is no longer waited for; what it began by itself is not wanted unless it has ended.
  giveUp() {
    clearTimeout(this.timer);
    this.control?.abort();
    const { asked } = this;
    Object.assign(this, { asked: null, jobs: this.jobs.filter((job) => job.id !== asked?.job.id) });
    this.work.textContent = "";
    this.sharpen.disabled = !this.canAsk();
    if (asked?.isByItself) this.forget(asked.job);
  }

  // What has ended stays: it may be an answer that was there before.
  async forget(job) {
    if (!isLive(job)) return;
    await call("DELETE", `v1/plans/${job.id}`).catch(() => {});
    this.onAsked(job);
  }

  // The other positions of a slider, while the others stay.
  async lookAlong(job, slider, isOver) {
    const changes = slider.positions.map(({ change }) => this.change(change));
    for (let from = 0; from < changes.length && !isOver(); from += AT_ONCE) await findRanges(job, changes.slice(from, from + AT_ONCE));
    if (!isOver()) this.paintStrip(slider, changes.map((change) => knownRange(job, change)));
  }

  // Once it can be seen, every slider shows what its positions would bring.
  watch() {
    this.observer?.disconnect();
    this.observer = new IntersectionObserver(([entry]) => {
      if (!entry.isIntersecting) return;
      this.observer.disconnect();
      this.lookUp();
    });
    this.observer.observe(this.root);
  }

  tell(range) {
    this.range = range;
    const before = objectiveOf(this.content, this.content.plans[0].figures);
    this.sharpen.disabled = !this.canAsk();
    this.answer.textContent = isNoChange(range.change) ? HINT : rangeText(range, { before, content: this.content });
    this.paintScale(range, before);
  }

  // Every position of the slider as a bar from the least to the most, on one scale.
  paintStrip(slider, ranges) {
    const known = ranges.filter((range) => range && isNumber(range.at_least_ns));
    if (!known.length) return;
    const least = Math.min(...known.map((range) => range.at_least_ns)), most = Math.max(...known.map((range) => range.at_most_ns ?? range.at_least_ns), least + 1);
    const share = (ns) => (90 * (ns - least)) / (most - least);
    slider.strip.replaceChildren(...ranges.map((range) => {
      const bar = element("i", { className: range && isNumber(range.at_least_ns) ? "" : "none" });
      if (range && isNumber(range.at_least_ns)) {
        bar.style.bottom = `${share(range.at_least_ns)}%`;
        bar.style.height = `${Math.max(8, share(range.at_most_ns ?? most) - share(range.at_least_ns))}%`;
      }
      return element("span", {}, [bar]);
    }));
  }

  paintScale(range, before) {
    this.scale.replaceChildren();
    if (!isNumber(range.at_least_ns)) return;
    const reference = before * batchFactor(range.change, this.content), most = Math.max(range.at_most_ns ?? 0, reference, range.at_least_ns) * 1.05;
    const bar = element("span", { className: "range" }), mark = element("span", { className: "now" });
    bar.style.left = `${(100 * range.at_least_ns) / most}%`;
    bar.style.width = `${Math.max(0.4, (100 * ((range.at_most_ns ?? most) - range.at_least_ns)) / most)}%`;
    mark.style.left = `${(100 * reference) / most}%`;
    this.scale.append(bar, mark);
  }

  // A plan for the present change; by itself behind whatever else this caller waits for.
  async ask({ isByItself = false } = {}) {
    const { range: { change }, job: base } = this;
    clearTimeout(this.timer);
    const asked = (this.asked = { isByItself, job: { state: "new" } });
    this.sharpen.disabled = true;
    try {
      const order = { base: base.id, change, limits: { time_limit_s: await secondsOf(SEARCH_S) }, priority: isByItself ? -5 : 0 };
      const job = await call("POST", "v1/what-if", JSON.stringify(order));
      this.onAsked(job);
      if (this.asked !== asked) return isByItself ? this.forget(job) : undefined;
      await this.follow(job, { base, change, isByItself });
    } catch (error) {
      if (this.asked !== asked) return;
      this.asked = null;
      (isByItself ? this.work : this.answer).textContent = error.message;
      this.sharpen.disabled = !this.canAsk();
    }
  }

  // Whatever the solver finds out about the change is told as it comes.
  async follow(job, { base, change, isByItself = false }) {
    const asked = (this.asked = { isByItself, job });
    this.control = new AbortController();
    const { signal } = this.control;
    const update = async () => {
      asked.job = await call("GET", `v1/plans/${job.id}`, undefined, { signal });
      this.work.textContent = isLive(asked.job) ? `The solver goes on: ${phaseText(asked.job)} …` : "";
      this.tell(sharpen(base, change, { least: asked.job.lower_bound_ns, most: asked.job.incumbent_ns }));
    };
    try {
      await follow(job.id, { signal, onEvent: update, onTrouble: () => {} });
      if (signal.aborted) return;
      await update();
      this.asked = null;
      this.sharpen.disabled = !this.canAsk();
      if (asked.job.state === "succeeded") this.offer(asked.job);
      if (asked.job.error) this.answer.textContent = `No plan: ${asked.job.error.detail}`;
      this.onAsked(asked.job);
    } catch (error) {
      if (signal.aborted) return;
      this.asked = null;
      this.work.textContent = "";
      if (error.status !== 404) this.answer.textContent = error.message; // deleted elsewhere: the range is as it was
    }
  }
}

// Where the address says that a slider stands, in steps from where it starts.
function placeInAddress(name, positions, start) {
  const place = start + Number.parseInt(readAddress()[name] ?? "0", 10);
  return place in positions ? place : start;
}

function planOf(job) { return `${job.plan_sha256} ${job.incumbent_ns}`; }

// The range in words, against the present plan; with another batch, per sample or microbatch of the present size.
function rangeText({ change, at_least_ns: least, at_most_ns: most, witness, reason }, { before, content }) {
  if (!isNumber(least)) return `There is no such plan: ${reason}`;
  const factor = batchFactor(change, content), parts = factor * content.numMicrobatches * (content.microbatchSize || 1);
  const unit = factor === 1 ? "" : ` (${inMs(least / parts)} a ${content.microbatchSize ? "sample" : "microbatch"})`;
  const faster = (ns) => (before * factor) / ns - 1;
  const certain = isNumber(most) ? faster(most) : null, possible = faster(least);
  const ends = isNumber(most) ? `At least ${inMs(least)}${unit}, at most ${inMs(most)}` : `At least ${inMs(least)}${unit}; no plan that fits is known yet`;
  const gain = (value) => (Math.abs(value) < 0.0005 ? "as fast as now" : value > 0 ? `${inPercent(value)} faster` : `${inPercent(-value)} slower`);
  const verdict = certain === null ? `at best ${gain(possible)}` : Math.abs(certain - possible) < 0.0005 ? gain(certain) : `between ${gain(certain)} and ${gain(possible)}`;
  const by = witness && witness !== "this plan" ? `; ${witness} shows the upper end` : witness ? "; the present plan shows the upper end" : "";
  return `${ends}: ${verdict}${by}.`;
}
