// What is drawn: the content of a picture, unpacked into typed arrays.

export const KINDS = ["F", "I", "W", "B"];
export const KIND_NAMES = ["forward", "input gradient", "weight gradient", "backward"];
export const BARS = ["synchronisation", "gather", "offload", "fetch"];
export const [FORWARD, INPUT_GRAD, WEIGHT_GRAD, BACKWARD] = [0, 1, 2, 3];

export function unpackContent(content) {
  content.plans.forEach((plan, index) => unpackPlan(plan, index, content));
  content.endNs = Math.max(1, ...content.plans.map((plan) => plan.figures.makespanNs));
  return content;
}

function unpackPlan(plan, index, content) {
  plan.index = index;
  plan.letter = content.plans.length > 1 ? "AB"[index] : "";
  plan.numMicrobatches = content.numMicrobatches;
  const usual = plan.stages.flatMap((stage) => stage.durationsNs);
  plan.devices.forEach((device, row) => unpackDevice(device, row, usual));
  plan.stages.forEach((stage, number) => {
    for (const row of stage.replicas.flat()) plan.devices[row].stages.push(number);
  });
  plan.channels = plan.legs;
  for (const channel of plan.channels) {
    unpackTransfers(channel);
    if (channel.count) plan.devices[channel.from].channels.push(channel);
  }
  plan.usedKinds = KINDS.map((_, kind) => plan.devices.some((device) => device.action.code.some((code) => code % 4 === kind)));
  plan.bars = plan.bars.map(([what, stage, start, end, row = null, microbatch, bytes, wait]) => ({ what, stage, start, end, row, microbatch, bytes, wait }));
  for (const device of plan.devices) {
    device.bars = plan.bars.filter((bar) => (bar.row === null ? device.stages.includes(bar.stage) : bar.row === device.row));
  }
}

function unpackDevice(device, row, usual) {
  device.row = row;
  device.stages = [];
  device.channels = [];
  device.action = unpackActions(device.actions, usual);
  device.held = unpackMemory(device.memory, device.memorySteps);
  delete device.actions;
  delete device.memory;
  delete device.memorySteps;
}

function unpackActions(flat, usual) {
  const count = flat.length / 4;
  const action = {
    count, code: new Int32Array(count), microbatch: new Int32Array(count),
    start: new Float64Array(count), end: new Float64Array(count), work: 0, index: null,
  };
  for (let i = 0, time = 0; i < count; i++) {
    const duration = usual[flat[4 * i]] + flat[4 * i + 3];
    action.code[i] = flat[4 * i];
    action.microbatch[i] = flat[4 * i + 1];
    action.start[i] = time + flat[4 * i + 2];
    action.end[i] = time = action.start[i] + duration;
    action.work += duration;
  }
  return action;
}

function unpackMemory(flat, steps) {
  const count = flat.length / 2;
  const held = { count, time: new Float64Array(count), bytes: new Float64Array(count) };
  for (let i = 0, time = 0, bytes = 0; i < count; i++) {
    held.time[i] = time += flat[2 * i];
    held.bytes[i] = bytes += steps[flat[2 * i + 1]];
  }
  return held;
}

function unpackTransfers(channel) {
  const flat = channel.transfers;
  const count = (channel.count = flat.length / 4);
  channel.microbatch = new Int32Array(count);
  for (const name of ["ready", "start", "end"]) channel[name] = new Float64Array(count);
  for (let i = 0, time = 0; i < count; i++) {
    channel.microbatch[i] = flat[4 * i];
    channel.ready[i] = time += flat[4 * i + 1];
    channel.start[i] = time + flat[4 * i + 2];
    channel.end[i] = channel.start[i] + channel.durationNs + flat[4 * i + 3];
  }
  delete channel.transfers;
}

// The first position in `values` (ascending) with values[position] > limit.
export function firstAbove(values, limit) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > limit) high = middle;
    else low = middle + 1;
  }
  return low;
}

// The position of an action on a device, or -1. `kinds`: any of these kind numbers will do.
export function findAction(plan, device, { stage, kinds, microbatch }) {
  if (microbatch < 0 || microbatch >= plan.numMicrobatches) return -1; // what travels once per iteration
  const action = device.action;
  if (!action.index) {
    action.index = new Map();
    for (let i = 0; i < action.count; i++) action.index.set(action.code[i] * plan.numMicrobatches + action.microbatch[i], i);
  }
  for (const kind of kinds) {
    const found = action.index.get((4 * stage + kind) * plan.numMicrobatches + microbatch);
    if (found !== undefined) return found;
  }
  return -1;
}

// Tensors travel between the first devices of the groups.
export function leaderOf(plan, stage, row) {
  const group = plan.stages[stage].replicas.find((devices) => devices.includes(row));
  return group ? group[0] : row;
}

export function bytesAt(device, time) {
  const position = firstAbove(device.held.time, time) - 1;
  return position < 0 ? 0 : device.held.bytes[position];
}

export function actionName(device, index) {
  const code = device.action.code[index];
  return `${code >> 2}${KINDS[code % 4]}${device.action.microbatch[index]}`;
}
