// The legend above the timeline.

import { element } from "../dom.js";
import { BAR_NAMES } from "../describe.js";
import { BARS, KINDS, KIND_NAMES } from "../model.js";
import { SHADES, makeHatch } from "./paint.js";

export function fillLegend(list, content, theme, pixelRatio) {
  const items = [];
  KINDS.forEach((kind, number) => {
    if (!content.plans.some((plan) => plan.usedKinds[number])) return;
    const chunks = Math.min(SHADES.length, Math.max(...content.plans.flatMap((plan) => plan.devices.map((device) => device.stages.length))));
    items.push([`${kind} ${KIND_NAMES[number]}`, stripes(theme.kinds[number].slice(0, chunks))]);
  });
  items.push(["idle", (pen) => { pen.fillStyle = makeHatch(pen, theme, pixelRatio); pen.fillRect(0, 0, 16, 12); }]);
  for (const what of BARS) {
    if (content.plans.some(({ bars }) => bars.some((bar) => bar.what === what))) items.push([BAR_NAMES[what], stripes([theme[what]])]);
  }
  if (content.plans.some((plan) => plan.optimizerNs)) items.push(["optimizer", stripes([theme.optimizer])]);
  list.replaceChildren(...items.map(([text, draw]) => legendItem({ text, draw, pixelRatio })));
}

function stripes(colours) {
  return (pen) => colours.forEach((colour, index) => {
    pen.fillStyle = colour;
    pen.fillRect((index * 16) / colours.length, 0, 16 / colours.length, 12);
  });
}

function legendItem({ text, draw, pixelRatio }) {
  const swatch = element("canvas", { attributes: { "aria-hidden": "true" } });
  swatch.width = 16 * pixelRatio;
  swatch.height = 12 * pixelRatio;
  const pen = swatch.getContext("2d");
  pen.setTransform(pixelRatio, 0, 0, pixelRatio, 0, 0);
  draw(pen);
  return element("li", {}, [swatch, document.createTextNode(text)]);
}
