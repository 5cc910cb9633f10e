// What-ifs as instruments: every position of a slider is answered at once with a range that is certain, and sharpened
// by the solver when asked.

import { addressOf, readAddress, writeAddress } from "./address.js";
import { findRanges, isNoChange, knownRange, noChange, sharpen } from "./ranges.js";
import { call, follow, isLive } from "./service.js";
import { inBytes, inMs, inPercent, isNumber, plural } from "../viewer/describe.js";
import { button, element } from "../viewer/dom.js";
import { objectiveOf } from "../viewer/headline.js";

const MOST_MOVED = 4, AT_ONCE = 3;
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
  const words = (count) => (size ? plural(count * size, "sample") : plural(count, "microbatch", "microbatches"));
  const positions = counts.map((count) => ({ change: { [field]: count === now ? null : count * (size || 1) }, text: count === now ? `as it is, ${words(count)}` : words(count) }));
  return { name: "batch", label: "Batch", positions, start: counts.indexOf(now) };
}

// The same batch in other microbatches, where the profile says what they cost.
function cutInstrument({ microbatchSize: now, microbatchSizes: sizes = [] }) {
  if (sizes.length < 2) return [];
  const words = (size) => `${plural(size, "sample")} each`;
  const positions = sizes.map((size) => ({ change: { microbatch_size: size === now ? null : size }, text: size === now ? `as they are, ${words(size)}` : words(size) }));
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
    Object.assign(this, { root, onAsked, job: null, content: null, sliders: [], busy: false, isStale: false, control: null, range: null });
  }

  // `job` has a plan, of which `content` is the picture.
  show(job, content) {
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
    Object.assign(this, { job: null, key: null, range: null });
    this.control?.abort();
    this.observer?.disconnect();
  }

  build() {
    this.sliders = instrumentsOf(this.content).map((instrument) => this.slider(instrument));
    this.answer = element("p", { className: "answer", attributes: { role: "status", "aria-live": "polite" }, text: HINT });
    this.scale = element("div", { className: "range-scale", attributes: { "aria-hidden": "true" } });
    this.sharpen = button("Sharpen with the solver", { onClick: () => this.ask(), attributes: { id: "sharpen", disabled: "" } });
    this.clear = button("As it is", { onClick: () => this.reset() });
    this.open = element("a", { text: "Open the plan", attributes: { href: "?", hidden: "" } });
    this.watch();
    if (this.sliders.some(({ input, start }) => Number(input.value) !== start)) this.lookUp();
    this.root.replaceChildren(element("div", { className: "sliders" }, this.sliders.map(({ box }) => box)), this.scale, this.answer, element("p", { className: "row" }, [this.sharpen, this.clear, this.open]));
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
    this.control?.abort();
    this.open.hidden = true;
    this.lookUp();
  }

  reset() {
    for (const slider of this.sliders) {
      slider.input.value = slider.start;
      this.moved(slider);
    }
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
      if (this.job?.id === job.id) this.tell(range);
      for (const other of this.sliders) if (!isOver() && !isLive(job)) await this.lookAlong(job, other, isOver);
    } catch (error) {
      if (this.job?.id === job.id) this.answer.textContent = error.message;
    }
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
    this.sharpen.disabled = isLive(this.job) || !isNumber(range.at_least_ns) || isNoChange(range.change);
    this.answer.textContent = isNoChange(range.change) ? HINT : rangeInWords(range, { before, content: this.content });
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

  async ask() {
    const { range: { change }, job: base } = this;
    this.control = new AbortController();
    const { signal } = this.control;
    this.sharpen.disabled = true;
    try {
      let job = await call("POST", "v1/what-if", JSON.stringify({ base: base.id, change, limits: { time_limit_s: 20 } }));
      this.onAsked(job);
      const update = async () => {
        job = await call("GET", `v1/plans/${job.id}`, undefined, { signal });
        this.tell(sharpen(base, change, { least: job.lower_bound_ns, most: job.incumbent_ns }));
        this.sharpen.disabled = isLive(job);
      };
      await follow(job.id, { signal, onNews: update, onTrouble: () => {} });
      if (signal.aborted) return;
      await update();
      this.open.href = addressOf(job.id);
      this.open.hidden = job.state !== "succeeded";
      if (job.error) this.answer.textContent = `No plan: ${job.error.detail}`;
      this.onAsked(job);
    } catch (error) {
      if (!signal.aborted) this.answer.textContent = error.message;
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
function rangeInWords({ change, at_least_ns: least, at_most_ns: most, witness, reason }, { before, content }) {
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
