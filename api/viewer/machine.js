// The machine: hosts with their devices, switches, and links as thick as they are busy.

import { inBytes, inPercent, plural, shorten, stageList, usedDevices } from "./describe.js";
import { element, svgElement } from "./dom.js";
import { makeTable, wideTable } from "./tables.js";

const BOX = { width: 118, height: 44, gap: 12 }, PAD = 14, TOP = 26, MOST_DRAWN = 600;

export function machinePicture(content) {
  const plan = content.plans[0], { machine } = content;
  const places = new Map(), shapes = [];
  const size = placeHosts({ content, plan, places, shapes });
  const links = linksByLoad(content);
  const drawn = links.filter((link) => places.has(link.a) && places.has(link.b)).slice(0, MOST_DRAWN);
  const lines = drawn.reverse().map((link) => linkLine(link, places));
  const label = `${plural(machine.devices.length, "device")}, ${plural(machine.links.length, "link")}; ${busiestText(links)}`;
  const picture = svgElement("svg", { viewBox: `0 0 ${size.width} ${size.height}`, role: "img", "aria-label": label, class: "machine" }, [...shapes.filter((s) => s.classList.contains("host")), ...lines, ...shapes.filter((s) => !s.classList.contains("host"))]);
  picture.style.maxWidth = `${Math.max(420, size.width * 1.25)}px`;
  return [picture, linkTable(links)];
}

function busiestText(links) {
  return links.length && links[0].share > 0 ? `busiest link: ${links[0].name}, ${shareText(links[0].share)} of the time` : "no link carries anything";
}

function shareText(share) { return share > 0 && share < 0.005 ? "less than 1 %" : inPercent(share, 0); }

function linksByLoad(content) {
  const plan = content.plans[0], end = plan.figures.makespanNs || 1;
  const found = content.machine.links.map(([a, b, speed, duplex], number) => {
    const [there, back, bytes] = plan.linkUse[number];
    return { a, b, speed, bytes, share: Math.max(there, back) / end, there: there / end, back: back / end, name: `${a} ${duplex ? "⇄" : "↔"} ${b}` };
  });
  return found.sort((x, y) => y.share - x.share);
}

// Hosts in rows that fill about twice as wide as high; devices without a host stand alone; switches above.
function placeHosts({ content, plan, places, shapes }) {
  const { machine } = content, hosts = new Map();
  for (const [name, type, host] of machine.devices) {
    const key = host || "";
    if (!hosts.has(key)) hosts.set(key, []);
    hosts.get(key).push({ name, type });
  }
  const perRow = Math.max(2, Math.min(8, Math.ceil(Math.sqrt(machine.devices.length * 1.4))));
  let top = machine.switches.length ? 62 : 8, left = 8, tallest = 0, width = 0;
  const limit = Math.max(4, perRow) * (BOX.width + BOX.gap) * (hosts.size > 1 ? 1.5 : 1) + 2 * PAD;
  for (const [host, devices] of hosts) {
    const columns = Math.min(devices.length, hosts.size > 1 ? Math.min(4, perRow) : perRow), rows = Math.ceil(devices.length / columns);
    const box = { width: columns * (BOX.width + BOX.gap) - BOX.gap + 2 * PAD, height: rows * (BOX.height + 40) - 40 + TOP + PAD };
    if (left > 8 && left + box.width > limit) [left, top, tallest] = [8, top + tallest + 18, 0];
    placeHost({ host, devices, columns, box, left, top, plan, places, shapes });
    left += box.width + 18;
    [width, tallest] = [Math.max(width, left), Math.max(tallest, box.height)];
  }
  machine.switches.forEach((name, number) => placeSwitch({ name, x: (width * (number + 1)) / (machine.switches.length + 1), places, shapes }));
  return { width: width + 4, height: top + tallest + 22 }; // bows hang below the last row
}

function placeHost({ host, devices, columns, box, left, top, plan, places, shapes }) {
  if (host) {
    shapes.push(svgElement("rect", { x: left, y: top, width: box.width, height: box.height, rx: 10, class: "host" }));
    shapes.push(svgText(host, { x: left + PAD, y: top + 17, class: "faint", length: Math.floor(box.width / 7) }));
    places.set(host, [left + box.width / 2, top + 4]);
  }
  devices.forEach(({ name, type }, number) => {
    const x = left + PAD + (number % columns) * (BOX.width + BOX.gap), y = top + TOP + Math.floor(number / columns) * (BOX.height + 40);
    const row = plan.devices.findIndex((device) => device.name === name);
    const device = usedDevices(plan).find((used) => used.name === name);
    places.set(name, [x + BOX.width / 2, y + BOX.height / 2]);
    const phrase = device ? stageList(device.stages) : "idle";
    const hue = device ? ` hue-${row % 8}` : " idle";
    shapes.push(svgElement("rect", { x, y, width: BOX.width, height: BOX.height, rx: 7, class: `device${hue}` }, [svgElement("title", {}, [`${name}, ${type}: ${phrase}`])]));
    shapes.push(svgText(name, { x: x + 9, y: y + 18, class: "strong", length: 15 }), svgText(phrase, { x: x + 9, y: y + 35, class: "faint", length: 17 }));
  });
}

function placeSwitch({ name, x, places, shapes }) {
  places.set(name, [x, 26]);
  shapes.push(svgElement("rect", { x: x - 62, y: 10, width: 124, height: 30, rx: 15, class: "switch" }), svgText(name, { x, y: 30, class: "middle", length: 16 }));
}

function svgText(text, { length, ...attributes }) { return svgElement("text", attributes, [shorten(text, length)]); }

// A straight line where the ends are near, a bow below (or beside) whatever stands between them.
function linkLine(link, places) {
  const [x1, y1] = places.get(link.a), [x2, y2] = places.get(link.b);
  const bow = Math.abs(y1 - y2) < 2 ? Math.min(60, 14 + Math.abs(x2 - x1) / 9) : 0, sway = Math.abs(x1 - x2) < 2 ? Math.min(60, 14 + Math.abs(y2 - y1) / 5) : 0;
  const d = `M${x1},${y1}Q${(x1 + x2) / 2 + sway},${(y1 + y2) / 2 + 1.6 * bow} ${x2},${y2}`;
  const title = svgElement("title", {}, [`${link.name}: ${shareText(link.share)} busy, ${inBytes(link.bytes)} in all`]);
  return svgElement("path", { d, class: link.share > 0 ? "link used" : "link", "stroke-width": link.share > 0 ? (1.5 + 10 * link.share).toFixed(1) : 1 }, [title]);
}

function linkTable(links) {
  const busy = links.filter((link) => link.share > 0).slice(0, 40);
  const columns = [{ name: "link", className: "name" }, { name: "busy there", number: true }, { name: "and back", number: true }, { name: "carries", number: true }, { name: "speed", number: true }];
  const rows = busy.map((link) => ({ cells: [link.name, shareText(link.there), shareText(link.back), inBytes(link.bytes), `${inBytes(link.speed)}/s`] }));
  const idle = links.length - busy.length;
  const summary = element("summary", { text: `${busiestText(links)}${idle && busy.length ? `; ${idle} of ${links.length} carry nothing or little` : ""}` });
  return element("details", {}, rows.length ? [summary, wideTable("Links by load", makeTable(columns, rows))] : [summary]);
}
