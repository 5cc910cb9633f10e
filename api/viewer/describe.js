// Words for what is drawn: numbers with units, what an action depends on, and why it waited.

import {
  BACKWARD, FORWARD, INPUT_GRAD, KIND_NAMES, WEIGHT_GRAD, actionName, bytesAt, findAction, firstAbove, leaderOf,
} from "./model.js";

export function isNumber(value) { return typeof value === "number" && Number.isFinite(value); }

export function withCommas(value, digits) {
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

// Round numbers between two, about so many, and the digits behind their points.
export function niceSteps(from, to, count) {
  const raw = (to - from) / count || 1, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999), steps = [];
  for (let number = Math.ceil(from / step - 1e-9); number * step <= to + step * 1e-9; number++) steps.push(number * step);
  return { steps, step, digits: digitsOf(step) };
}

// Digits behind the point that tell numbers apart which differ by a step.
export function digitsOf(step) { return Math.max(0, -Math.floor(Math.log10(step) + 1e-9)); }

export function inMs(ns) {
  if (!isNumber(ns)) return "–";
  const ms = ns / 1e6;
  const digits = Math.max(0, 4 - Math.floor(Math.log10(Math.max(Math.abs(ms), 1e-3))) - 1);
  return `${withCommas(ms, Math.min(digits, 6))} ms`;
}

export function inPercent(fraction, digits = 1) {
  if (!isNumber(fraction)) return "–";
  const text = (100 * fraction).toFixed(digits);
  return `${Number(text) === 0 ? text.replace("-", "") : text} %`;
}

export function inBytes(bytes) {
  if (!isNumber(bytes)) return "–";
  const ofSize = Math.min(5, Math.max(0, Math.floor(Math.log2(Math.max(1, Math.abs(bytes))) / 10)));
  const power = ofSize && ofSize < 5 && Math.round(Math.abs(bytes) / 1024 ** ofSize) === 1024 ? ofSize + 1 : ofSize; // 1.00 GiB, not 1024 MiB
  const value = bytes / 1024 ** power;
  return `${power ? value.toPrecision(Math.abs(value) >= 1000 ? 4 : 3) : value} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][power]}`;
}

// A pair of plans has rows for the devices of both.
export function usedDevices(plan) { return plan.devices.filter((device) => device.stages.length || device.action.count); }

export function plural(count, one, many = `${one}s`) { return `${count} ${count === 1 ? one : many}`; }

export function shorten(text, length) {
  const letters = [...text];
  return letters.length <= length ? text : `${letters.slice(0, length - 1).join("")}…`;
}

export function stageList(stages) {
  if (!stages.length) return "idle";
  return `${stages.length === 1 ? "stage" : "stages"} ${stages.length > 8 ? `${stages.slice(0, 7).join(", ")} …` : stages.join(", ")}`;
}

// Everything an action waited for: [{device, index, arrival, channel?, transfer?, why}], the previous action on the device first.
export function causesOf(plan, device, index) {
  const { code, microbatch, end } = device.action;
  const stage = code[index] >> 2, kind = code[index] % 4;
  const causes = [];
  if (index > 0) causes.push({ device, index: index - 1, arrival: end[index - 1], why: "order" });
  const own = (kinds) => {
    const found = findAction(plan, device, { stage, kinds, microbatch: microbatch[index] });
    if (found >= 0) causes.push({ device, index: found, arrival: end[found], why: "order" });
  };
  if (kind === WEIGHT_GRAD) own([INPUT_GRAD]);
  if (kind === INPUT_GRAD || kind === BACKWARD) own([FORWARD]);
  if (kind !== WEIGHT_GRAD) causes.push(...arrivals(plan, device, { stage, microbatch: microbatch[index], backward: kind !== FORWARD }));
  return causes.filter((cause, place) => causes.findIndex((c) => c.device === cause.device && c.index === cause.index) === place);
}

// The inputs that reach a stage for one microbatch, with the transfers that carried them.
function arrivals(plan, device, { stage, microbatch, backward }) {
  const leader = leaderOf(plan, stage, device.row);
  const found = [];
  for (const channel of plan.channels) {
    if (channel.toStage !== stage || channel.to !== leader || Boolean(channel.backward) !== backward) continue;
    const sender = plan.devices[channel.from];
    const index = findAction(plan, sender, { stage: channel.fromStage, kinds: backward ? [INPUT_GRAD, BACKWARD] : [FORWARD], microbatch });
    const transfer = channel.count ? channel.microbatch.indexOf(microbatch) : -1;
    if (index < 0) continue;
    const arrival = transfer < 0 ? sender.action.end[index] : channel.end[transfer];
    found.push({ device: sender, index, arrival, channel, transfer, why: backward ? "gradient" : "activation" });
  }
  return found;
}

// Everything that waits for an action: [{device, index, channel?, transfer?}], the next action on the device first.
export function effectsOf(plan, device, index) {
  const { code, microbatch } = device.action;
  const stage = code[index] >> 2, kind = code[index] % 4;
  const effects = [];
  const add = (target, kinds, { to = stage, channel = null } = {}) => {
    const found = findAction(plan, target, { stage: to, kinds, microbatch: microbatch[index] });
    const isNew = !effects.some((effect) => effect.device === target && effect.index === found);
    if (found >= 0 && isNew) effects.push({ device: target, index: found, channel, transfer: channel && channel.count ? channel.microbatch.indexOf(microbatch[index]) : -1 });
  };
  if (index + 1 < device.action.count) effects.push({ device, index: index + 1, channel: null, transfer: -1 });
  if (kind === FORWARD) add(device, [INPUT_GRAD, BACKWARD]);
  if (kind === INPUT_GRAD) add(device, [WEIGHT_GRAD]);
  if (kind === WEIGHT_GRAD) return effects;
  const backward = kind !== FORWARD;
  for (const channel of plan.channels) {
    if (channel.fromStage !== stage || channel.from !== leaderOf(plan, stage, device.row) || Boolean(channel.backward) !== backward) continue;
    add(plan.devices[channel.to], backward ? [INPUT_GRAD, BACKWARD] : [FORWARD], { to: channel.toStage, channel });
  }
  return effects;
}

// Why the device stood idle before an action, in words.
function waitingReason(plan, device, index) {
  const { start, end } = device.action;
  const free = index > 0 ? end[index - 1] : 0;
  const idle = start[index] - free;
  if (idle <= 0) return index > 0 ? "no wait: the device was busy until then" : "no wait: starts at once";
  const before = index > 0 ? `idle for ${inMs(idle)}` : `first action, after ${inMs(idle)}`;
  const last = causesOf(plan, device, index).reduce((a, b) => (b.arrival > a.arrival ? b : a), { arrival: -1 });
  const bar = device.bars.find((each) => each.end === start[index]);
  if (last.arrival < start[index] && bar) return `${before}, until ${barText(bar)}`;
  if (last.arrival < start[index]) return `${before}: the link was in use, or the other devices of its group were`;
  return `${before}, until ${causeText(last)}`;
}

function causeText({ device, index, channel, transfer, why }) {
  const name = actionName(device, index);
  if (why === "order") return `${name} ended`;
  if (transfer < 0) return `the ${why} of ${name} was ready`;
  const queue = channel.start[transfer] - channel.ready[transfer];
  const queued = queue > 0 ? `, ${inMs(queue)} of it queueing` : "";
  return `the ${why} of ${name} came from ${device.name} (${inMs(channel.end[transfer] - channel.ready[transfer])} on the way${queued})`;
}

export function describeHit(hit) {
  if (hit.strip === "action") return describeAction(hit.row.plan, hit.row.device, hit.index);
  if (hit.strip === "transfers") return describeTransfer(hit);
  if (hit.strip === "bar") return describeBar(hit.row.plan, hit.bar);
  return describeIdle(hit);
}

export function describeAction(plan, device, index) {
  const { code, microbatch, start, end } = device.action;
  const stage = code[index] >> 2, kind = code[index] % 4;
  return {
    title: `${actionName(device, index)} · ${KIND_NAMES[kind]} of stage ${stage}, microbatch ${microbatch[index]}`,
    facts: [
      ["device", device.name],
      ["time", `${inMs(start[index])} to ${inMs(end[index])}`],
      ["duration", inMs(end[index] - start[index])],
      ["waiting", waitingReason(plan, device, index)],
      ["memory", memoryText(device, start[index])],
    ],
  };
}

function memoryText(device, time) {
  if (!device.limitBytes) return "not known";
  const bytes = bytesAt(device, time);
  return `${inBytes(bytes)} of ${inBytes(device.limitBytes)} (${inPercent(bytes / device.limitBytes, 0)})`;
}

function describeTransfer({ row, channel, index }) {
  const what = channel.backward ? "gradient" : "activation";
  const queue = channel.start[index] - channel.ready[index];
  return {
    title: `${what} of microbatch ${channel.microbatch[index]}, stage ${channel.fromStage} to ${channel.toStage}`,
    facts: [
      ["from", row.device.name],
      ["to", row.plan.devices[channel.to].name],
      ["size", inBytes(channel.bytes)],
      ["route", channel.route.join(", ")],
      ["time", `${inMs(channel.start[index])} to ${inMs(channel.end[index])}`],
      ["duration", inMs(channel.end[index] - channel.start[index])],
      ["queue", queue > 0 ? `${inMs(queue)} until its links were free` : "none"],
    ],
  };
}

// What runs beside actions, as the legend and as a box name it.
export const BAR_NAMES = { synchronisation: "synchronisation", gather: "weights gathered", offload: "stash to host", fetch: "stash back" };

function barText({ what, stage, microbatch }) {
  if (what === "synchronisation") return `gradient synchronisation of stage ${stage}`;
  if (what === "gather") return `weights of stage ${stage} gathered`;
  return `stash of ${stage}F${microbatch} ${what === "fetch" ? "back from" : "to"} the host`;
}

function describeBar(plan, bar) {
  const own = bar.row === null ? [["replicas", String(plan.stages[bar.stage].replicas.length)]] : [["size", inBytes(bar.bytes)]];
  const queue = bar.wait > 0 ? [["queue", `${inMs(bar.wait)} until its link was free`]] : [];
  return { title: barText(bar), facts: [...own, ["time", `${inMs(bar.start)} to ${inMs(bar.end)}`], ["duration", inMs(bar.end - bar.start)], ...queue] };
}

function describeIdle({ row, time }) {
  const { plan, device } = row;
  const next = firstAbove(device.action.start, time);
  const running = next > 0 && device.action.end[next - 1] > time ? actionName(device, next - 1) : null;
  const facts = [["device", device.name], ["time", inMs(time)], ["memory", memoryText(device, time)]];
  for (const bar of device.bars) if (bar.start <= time && time <= bar.end) facts.push(["now", barText(bar)]);
  if (running) return { title: `running ${running}`, facts };
  if (next < device.action.count) facts.push(["next", actionName(device, next)], ["waiting", waitingReason(plan, device, next)]);
  return { title: time <= plan.figures.makespanNs ? "idle" : "after the end", facts };
}

// One sentence for those who do not see the picture.
export function summaryOf(content) {
  const plans = content.plans.map((plan) => {
    const name = plan.letter ? `plan ${plan.letter}` : "the plan";
    const { makespanNs, bubble } = plan.figures;
    return `${name} runs ${plural(content.numMicrobatches, "microbatch", "microbatches")} through ${plural(plan.stages.length, "stage")} ` +
      `on ${plural(usedDevices(plan).length, "device")} in ${inMs(makespanNs)}, ${inPercent(bubble)} of it idle`;
  });
  const bound = isNumber(content.lowerBoundNs) ? `; no plan takes less than ${inMs(content.lowerBoundNs)}` : "";
  return `Timeline of ${content.profile} on ${content.cluster}: ${plans.join("; ")}${bound}.`;
}
