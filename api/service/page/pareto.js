// Time against devices, memory or money: certain ranges for every number, and every plan made so far as a point to open.

import { addressOf, readAddress, writeAddress } from "./address.js";
import { chartWidth, valueRows } from "./progress_chart.js";
import { findRanges, isNoChange, isSameChange, noChange } from "./ranges.js";
import { call, isLive, secondsOf } from "./service.js";
import { instrumentsOf } from "./what_if.js";
import { inMs, isNumber, plural } from "../viewer/describe.js";
import { button, element, svgElement } from "../viewer/dom.js";

const HEIGHT = 260, EDGE = { left: 66, right: 20, top: 16, bottom: 40 };

const AXES = [{ name: "devices", text: "devices", unit: "devices" }, { name: "memory", text: "memory per device", unit: "GiB per device" }, { name: "money", text: "money", unit: "per hour" }];

export class Pareto {
  constructor(root, { onAsked }) {
    Object.assign(this, { root, onAsked, axis: "devices", ranges: null, job: null, content: null, jobs: [] });
    this.chart = element("div");
    this.told = element("p", { className: "hint told" });
    this.choice = element("select", { attributes: { id: "pareto-axis" } }, AXES.map(({ name, text }) => element("option", { text, attributes: { value: name } })));
    this.choice.addEventListener("change", () => {
      this.axis = this.choice.value;
      writeAddress({ axis: this.axis === AXES[0].name ? null : this.axis });
      this.ranges = null;
      this.look();
    });
    this.planAll = button("Plan every point", { onClick: () => this.askAll(), attributes: { id: "plan-all" } });
    root.replaceChildren(this.chart, this.told, element("p", { className: "row" }, [element("label", { text: "Time against " }, [this.choice]), this.planAll]));
  }

  show(job, content, jobs) {
    if (job.id !== this.job?.id || job.state !== this.job.state) this.ranges = null;
    const isOther = job.id !== this.job?.id;
    Object.assign(this, { job, content, jobs });
    this.choice.querySelector("[value='money']").disabled = !content.machine.hasPrices;
    if (isOther) this.readAxis();
    if (this.ranges) this.paint();
    else this.look();
  }

  readAxis() {
    const asked = readAddress().axis, choice = [...this.choice.options].find(({ value, disabled }) => value === asked && !disabled);
    this.choice.value = this.axis = choice ? asked : AXES[0].name;
  }

  // The page turns to something else: what is under way is dropped.
  leave() { this.job = null; }

  // Money is spent on devices: the same positions, by what they cost.
  instrument() { return instrumentsOf(this.content).find(({ name }) => name === (this.axis === "money" ? "devices" : this.axis)); }

  unit() { return AXES.find(({ name }) => name === this.axis).unit; }

  async look() {
    const { positions } = this.instrument(), { job, axis } = this;
    const changes = positions.map(({ change }) => ({ ...noChange(), ...change }));
    try {
      const ranges = await findRanges(job, changes);
      if (job.id !== this.job?.id || axis !== this.axis) return;
      this.ranges = ranges.map((range, place) => ({ ...range, text: positions[place].text }));
      this.paint();
    } catch (error) {
      if (job.id === this.job?.id) this.told.textContent = error.message;
    }
  }

  // The plan of this page, and its what-ifs that change nothing else.
  points() {
    const own = [{ job: this.job, place: this.ranges.findIndex(({ change }) => isNoChange(change)), isOwn: true }];
    const others = this.jobs.filter((job) => job.what_if?.base === this.job.id && job.incumbent_ns).map((job) => ({ job, place: this.ranges.findIndex(({ change }) => isSameChange(change, job.what_if.change)) }));
    return [...own, ...others].filter(({ job, place }) => place >= 0 && job.incumbent_ns);
  }

  paint() {
    const points = this.points(), width = chartWidth(this.root), signature = JSON.stringify([this.axis, this.ranges, points.map(({ job }) => [job.id, job.incumbent_ns]), width]);
    this.planAll.disabled = isLive(this.job) || !this.missing(points).length;
    if (signature === this.signature) return; // drawn already: the focus stays where it is
    this.signature = signature;
    const known = this.ranges.flatMap((range) => [range.at_least_ns, range.at_most_ns]).filter(isNumber);
    const values = [...known, ...points.map(({ job }) => job.incumbent_ns)];
    if (!values.length) return;
    const room = (Math.max(...values) - Math.min(...values)) * 0.07 || 1;
    const scale = { width, from: Math.max(0, Math.min(...values) - room), to: Math.max(...values) + room, count: this.ranges.length };
    scale.x = (place) => EDGE.left + ((width - EDGE.left - EDGE.right) * (place + 0.5)) / scale.count;
    scale.y = (ns) => EDGE.top + ((HEIGHT - EDGE.top - EDGE.bottom) * (scale.to - ns)) / (scale.to - scale.from);
    const parts = [...this.drawAxes(scale), ...this.ranges.map((range, place) => rangeBar(range, place, scale)), ...points.map((point) => this.point(point, scale))];
    this.chart.replaceChildren(svgElement("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, class: "chart", role: "group", "aria-label": `Time against ${this.choice.selectedOptions[0].textContent}` }, parts));
    this.told.textContent = `Bars: where the best plan certainly lies. Dots: ${plural(points.length, "plan")} made; open one with a click.`;
  }

  drawAxes(scale) {
    const columns = this.ranges.map((range, place) => svgElement("text", { x: scale.x(place), y: HEIGHT - EDGE.bottom + 18, class: "middle" }, [this.tick(range)]));
    return [...valueRows(scale, EDGE), ...columns, svgElement("text", { x: scale.width - EDGE.right, y: HEIGHT - 3, class: "end" }, [this.unit()]), svgElement("text", { x: 2, y: HEIGHT - 3 }, ["milliseconds"])];
  }

  tick({ change, price_per_hour: price }) {
    if (this.axis === "money") return isNumber(price) ? price.toFixed(price < 100 ? 2 : 0) : "–";
    const devices = this.content.machine.devices;
    if (this.axis === "devices") return String(devices.length + change.devices);
    return ((Math.min(...devices.map(([, , , bytes]) => bytes)) + change.memory_bytes) / 2 ** 30).toFixed(1);
  }

  point({ job, place, isOwn }, scale) {
    const phrase = `${inMs(job.incumbent_ns)} with ${this.tick(this.ranges[place])} ${this.unit()}${isOwn ? ", this plan" : ""}`;
    const dot = svgElement("circle", { cx: scale.x(place), cy: scale.y(job.incumbent_ns), r: 6.5, class: `dot kept${isOwn ? " shown" : ""}` }, [svgElement("title", {}, [phrase])]);
    return svgElement("a", { href: addressOf(job.id), "aria-label": phrase }, [dot]);
  }

  missing(points) {
    return this.ranges.filter((range, place) => isNumber(range.at_least_ns) && !points.some((point) => point.place === place));
  }

  async askAll() {
    const { job } = this;
    this.planAll.disabled = true;
    try {
      for (const { change } of this.missing(this.points())) {
        this.onAsked(await call("POST", "v1/what-if", JSON.stringify({ base: job.id, change, limits: { time_limit_s: await secondsOf(10) } })));
      }
    } catch (error) {
      this.told.textContent = error.message;
    }
  }
}

function rangeBar(range, place, scale) {
  if (!isNumber(range.at_least_ns)) return svgElement("text", { x: scale.x(place), y: HEIGHT - EDGE.bottom - 6, class: "middle faint" }, ["–", svgElement("title", {}, [range.reason ?? "no plan"])]);
  const top = isNumber(range.at_most_ns) ? scale.y(range.at_most_ns) : EDGE.top, bottom = scale.y(range.at_least_ns);
  const phrase = `${range.text}: at least ${inMs(range.at_least_ns)}${isNumber(range.at_most_ns) ? `, at most ${inMs(range.at_most_ns)}` : ""}`;
  return svgElement("rect", { x: scale.x(place) - 9, width: 18, y: top, height: Math.max(2, bottom - top), rx: 3, class: isNumber(range.at_most_ns) ? "certain" : "certain open" }, [svgElement("title", {}, [phrase])]);
}
