// Rows that are alike: replicas that do the same at the same times, of which one is drawn.

const SAME_TIME = 0.005, SAME_MEMORY = 0.01; // parts of the makespan, and of the limit

// Numbers of rows that are alike in every plan, each group in the machine's order.
export function alikeRows(plans) {
  const found = new Map();
  plans[0].devices.forEach((_, row) => {
    const key = plans.map((plan) => workOf(plan.devices[row])).join("|");
    if (!found.has(key)) found.set(key, []);
    const group = found.get(key).find(([first]) => plans.every((plan) => isAlike(plan, first, row)));
    if (group) group.push(row);
    else found.get(key).push([row]);
  });
  return [...found.values()].flat().sort(([a], [b]) => a - b);
}

function workOf({ type, stages, action, bars }) {
  return [type, stages, action.code, bars.map(({ what, stage }) => `${what} ${stage}`)].map((each) => String(each)).join(";");
}

function isAlike({ devices, figures }, one, other) {
  const [a, b] = [devices[one], devices[other]], slack = SAME_TIME * figures.makespanNs;
  if (a.limitBytes !== b.limitBytes || Math.abs(a.peakBytes - b.peakBytes) > SAME_MEMORY * a.limitBytes) return false;
  return ["start", "end"].every((name) => a.action[name].every((time, i) => Math.abs(time - b.action[name][i]) <= slack));
}

// The numbers of rows to show: all of the groups that are open, else the first of each.
export function shownRows(view) {
  const rows = view.groups.flatMap((group) => (isOpen(view, group) ? group.map((row) => [row, group, [row]]) : [[group[0], group, group]]));
  return rows.sort(([a], [b]) => a - b);
}

export function isOpen(view, group) { return group.length === 1 || view.unfolded.has(nameOf(view, group)); }

export function isFoldable(view) { return view.groups.some((group) => group.length > 1); }

export function toggleGroup(view, group) {
  const name = nameOf(view, group);
  if (!view.unfolded.delete(name)) view.unfolded.add(name);
}

export function foldAll(view, folded) {
  view.unfolded = new Set(folded ? [] : view.groups.filter((group) => group.length > 1).map((group) => nameOf(view, group)));
}

function nameOf(view, [first]) { return view.content.plans[0].devices[first].name; }
