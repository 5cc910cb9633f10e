// The layers as coloured bands over the stages: every stage as wide as its time, every layer as wide as its part.

import { inBytes, inMs, plural, shorten } from "./describe.js";
import { element } from "./dom.js";

const MOST_LAYERS = 2000;

export function layerBands(content, { onStage = null } = {}) {
  const plan = content.plans[0];
  const total = plan.stages.reduce((sum, stage) => sum + timeOfStage(stage), 0) || 1;
  const told = element("p", { className: "hint told", attributes: { "aria-live": "off" }, text: adviceOf(plan) });
  const shown = plan.stages.reduce((sum, stage) => sum + stage.layers.length, 0) <= MOST_LAYERS;
  const bands = plan.stages.map((stage, number) => stageBand(plan, { stage, number, total, shown, told, onStage }));
  return [element("ol", { className: "bands" }, bands), told];
}

function timeOfStage(stage) { return stage.layerNs.reduce((sum, ns) => sum + ns, 0); }

function adviceOf(plan) { return `${plural(plan.stages.length, "stage")}, as wide as the time of a microbatch in them. Point at a layer for its figures.`; }

function stageBand(plan, { stage, number, total, shown, told, onStage }) {
  const time = timeOfStage(stage);
  const rows = [...new Set(stage.replicas.flat())].sort((a, b) => a - b), devices = rows.map((row) => plan.devices[row].name);
  const phrase = `stage ${number}: ${plural(stage.layers.length, "layer")}, ${inMs(time)} a microbatch, on ${shorten(devices.join(", "), 60)}${stage.recompute ? `, ${stage.recompute}` : ""}`;
  const label = element("button", { className: "band-label", text: `${number}`, title: phrase, attributes: { type: "button", "aria-label": phrase } });
  label.addEventListener("click", () => onStage?.(number));
  const strip = element("span", { className: "band-layers", attributes: { "aria-hidden": "true" } });
  if (shown) strip.append(...stage.layers.map((layer, place) => layerBand(stage, { layer, place, time, told, phrase })));
  const names = element("span", { className: "band-names", text: devices.length > 1 ? `${devices[0]} +${devices.length - 1}` : devices[0], title: devices.join(", ") });
  const band = element("li", { className: `band hue-${(rows[0] ?? 0) % 8}` }, [label, strip, names]);
  band.style.flexGrow = String(Math.max(0.004, time / total) * 1000);
  const tell = () => { told.textContent = phrase; };
  label.addEventListener("focus", tell);
  band.addEventListener("pointerleave", () => { told.textContent = adviceOf(plan); });
  return band;
}

function layerBand(stage, { layer, place, time, told, phrase }) {
  const made = element("i");
  made.style.flexGrow = String(Math.max(0.002, stage.layerNs[place] / (time || 1)) * 1000);
  made.addEventListener("pointerenter", () => {
    told.textContent = `${layer}: ${inMs(stage.layerNs[place])} a microbatch, ${inBytes(stage.layerBytes[place])} of parameters · ${phrase}`;
  });
  return made;
}
