"use strict";
// The page: lists plans, submits, follows events, draws. Text goes in by textContent only; no library, no other host.

const byId = (id) => document.getElementById(id);
const GIB = 2 ** 30;
const state = { job: null, beside: null, series: [], follow: null };

const ms = (ns) => (ns === null || ns === undefined ? "–" : (ns / 1e6).toLocaleString("en", { maximumSignificantDigits: 5 }));
const percent = (part) => (part === null || part === undefined ? "–" : `${(100 * part).toFixed(1)} %`);

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function svgElement(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function headers(more = {}) {
  const key = byId("key").value.trim();
  return key ? { Authorization: `Bearer ${key}`, ...more } : more;
}

async function call(method, path, body) {
  const sent = body === undefined ? headers() : headers({ "Content-Type": "application/json" });
  const answer = await fetch(path, { method, headers: sent, body, cache: "no-store" });
  const text = await answer.text();
  if (answer.status >= 400) throw new Error(explain(answer.status, text));
  return text ? JSON.parse(text) : null;
}

function explain(status, text) {
  try {
    const problem = JSON.parse(text);
    const lines = (problem.errors || []).map((error) => `${error.pointer || "the file"}: ${error.detail}`);
    return [problem.detail || problem.title, ...lines].filter(Boolean).join("\n");
  } catch {
    return `the service answered ${status}`;
  }
}

function say(text) { byId("status").textContent = text; }

// ---------------------------------------------------------------- the list

async function refresh() {
  try {
    const { plans } = await call("GET", "v1/plans?limit=20");
    fill(plans);
    say(`${plans.length} recent plans`);
  } catch (error) {
    say(error.message);
  }
}

// Rows are drawn anew only when they say something new, and the focus stays where it was.
function fill(plans) {
  const news = JSON.stringify(plans.map((job) => [job.id, job.state, job.incumbent_ns, job.gap, state.job && state.job.id === job.id]));
  if (news === state.listed) return;
  state.listed = news;
  const held = document.activeElement, name = held.name || "id", id = held.dataset.id || held.dataset.beside;
  byId("recent").tBodies[0].replaceChildren(...plans.map(row));
  if (id) byId("recent").querySelector(name === "beside" ? `[data-beside="${id}"]` : `[data-id="${id}"]`)?.focus();
}

function row(job) {
  const made = element("tr");
  if (state.job && job.id === state.job.id) made.setAttribute("aria-current", "true");
  const open = element("button", `${job.name} ${job.id.slice(0, 6)}`, { type: "button", "data-id": job.id });
  open.addEventListener("click", () => show(job.id));
  const tick = element("input", null, { type: "radio", name: "beside", "data-beside": job.id, "aria-label": `Put ${job.name} ${job.id.slice(0, 6)} beside` });
  tick.disabled = job.state !== "succeeded";
  tick.checked = state.beside === job.id;
  tick.addEventListener("change", () => { state.beside = job.id; mayCompare(); });
  const cells = [open, element("span", job.state), element("span", ms(job.incumbent_ns)), element("span", percent(job.gap)), tick];
  for (const cell of cells) { const box = element("td"); box.append(cell); made.append(box); }
  return made;
}

// ---------------------------------------------------------------- asking

async function submit(text) {
  byId("refusal").textContent = "";
  try {
    const job = await call("POST", "v1/plans", text);
    await show(job.id);
    await refresh();
  } catch (error) {
    byId("refusal").textContent = error.message;
  }
}

async function submitFile(file) {
  if (!file) return;
  const text = await file.text();
  let body = text;
  try {
    const tree = JSON.parse(text);
    if (tree && typeof tree === "object" && !("workload" in tree)) body = JSON.stringify({ workload: tree, limits: limits() });
  } catch { /* the service says what is wrong with it */ }
  await submit(body);
}

const limits = () => ({ time_limit_s: Math.max(1, Number(byId("seconds").value) || 20) });

async function submitDemo() {
  const name = byId("demo").value;
  if (!name) return;
  const body = await call("GET", `v1/demo-profiles/${encodeURIComponent(name)}`);
  await submit(JSON.stringify({ ...body, limits: limits() }));
}

// ---------------------------------------------------------------- one plan

async function show(id) {
  if (state.follow) state.follow.abort();
  state.series = [];
  state.job = await call("GET", `v1/plans/${id}`);
  byId("detail").hidden = false;
  closePicture();
  byId("comparison").replaceChildren();
  byId("what-if-answer").textContent = "";
  paintJob();
  follow(id);
}

async function follow(id) {
  const control = new AbortController();
  state.follow = control;
  let after = 0;
  while (!control.signal.aborted) {
    try {
      const answer = await fetch(`v1/plans/${id}/events`, { headers: headers({ "Last-Event-ID": String(after) }), signal: control.signal, cache: "no-store" });
      if (!answer.ok) throw new Error(explain(answer.status, await answer.text()));
      after = await hear(answer.body, after);
      state.job = await call("GET", `v1/plans/${id}`);
      paintJob();
      if (!["queued", "running"].includes(state.job.state)) { await refresh(); return; }
    } catch (error) {
      if (control.signal.aborted) return;
      say(error.message);
      await new Promise((done) => setTimeout(done, 2000));
    }
  }
}

async function hear(stream, after) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return after;
    text += value;
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) after = take(block) || after;
  }
}

function take(block) {
  const fields = Object.fromEntries(block.split("\n").map((line) => [line.slice(0, line.indexOf(": ")), line.slice(line.indexOf(": ") + 2)]));
  if (!fields.id) return 0;
  const data = JSON.parse(fields.data);
  const last = state.series[state.series.length - 1] || { incumbent: null, bound: null };
  state.series.push({ at: performance.now(), incumbent: data.incumbent_ns ?? last.incumbent, bound: data.lower_bound_ns ?? last.bound });
  if (data.incumbent_ns) state.job.incumbent_ns = data.incumbent_ns;
  if (data.lower_bound_ns) state.job.lower_bound_ns = data.lower_bound_ns;
  if (data.gap !== undefined && data.gap !== null) state.job.gap = data.gap;
  if (fields.event === "started") state.job.state = "running";
  paintJob();
  return Number(fields.id);
}

function paintJob() {
  const job = state.job;
  const isLive = ["queued", "running"].includes(job.state);
  byId("detail-title").textContent = `${job.name} ${job.id.slice(0, 6)}`;
  const figures = [
    ["State", job.state], ["Makespan ms", ms(job.incumbent_ns)], ["Lower bound ms", ms(job.lower_bound_ns)], ["Gap", percent(job.gap)],
    ["Verdict", job.verdict && job.verdict.passed ? "✓ passed" : "–"], ["Found by", job.source || "–"], ["Stopped by", job.stopped_by || "–"],
    ["Proved optimal by", job.proved_by || "–"], ["Complete search ms", ms(job.solver_bound_ns)],
  ];
  if (job.error) figures.push(["Error", job.error.detail]);
  byId("figures").replaceChildren(...figures.map(([name, value]) => { const box = element("div"); box.append(element("dt", name), element("dd", value)); return box; }));
  byId("stop").disabled = !isLive;
  byId("pin").textContent = job.pinned ? "Unpin" : "Pin";
  const isDone = job.state === "succeeded";
  const wasHidden = byId("finished").hidden;
  byId("finished").hidden = !isDone;
  for (const name of ["download", "trace"]) byId(name).hidden = !isDone;
  paintProgress();
  mayCompare();
  if (isDone && (wasHidden || byId("finished").dataset.job !== job.id)) report(job);
}

function paintProgress() {
  const canvas = byId("progress");
  const pen = canvas.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  pen.clearRect(0, 0, canvas.width, canvas.height);
  const points = state.series.filter((point) => point.incumbent || point.bound);
  if (!points.length) return;
  const values = points.flatMap((point) => [point.incumbent, point.bound]).filter(Boolean);
  const low = Math.min(...values) * 0.98, high = Math.max(...values) * 1.02;
  const begin = state.series[0].at, end = Math.max(points[points.length - 1].at, begin + 1000);
  const x = (at) => 8 + (canvas.width - 16) * (at - begin) / (end - begin);
  const y = (value) => 8 + (canvas.height - 16) * (high - value) / (high - low || 1);
  for (const [name, colour, dash] of [["incumbent", "--good", []], ["bound", "--blue", [6, 5]]]) {
    pen.strokeStyle = style.getPropertyValue(colour);
    pen.setLineDash(dash);
    pen.lineWidth = 2;
    pen.beginPath();
    let before = null;
    for (const point of points) {
      if (!point[name]) continue;
      if (before === null) pen.moveTo(x(point.at), y(point[name]));
      else { pen.lineTo(x(point.at), y(before)); pen.lineTo(x(point.at), y(point[name])); }
      before = point[name];
    }
    if (before !== null) pen.lineTo(canvas.width - 8, y(before));
    pen.stroke();
  }
}

// ---------------------------------------------------------------- a finished plan

async function report(job) {
  byId("finished").dataset.job = job.id;
  try {
    const found = await call("GET", `v1/plans/${job.id}/report`);
    paintMemory(found);
    paintTopology(found);
    paintBaselines(found, job);
    for (const [id, what] of [["download", "plan"], ["trace", "trace"]]) {
      const answer = await fetch(`v1/plans/${job.id}/${what}`, { headers: headers() });
      byId(id).href = URL.createObjectURL(await answer.blob());
    }
  } catch (error) {
    say(error.message);
  }
}

function paintMemory(found) {
  const rows = Object.entries(found.simulation.devices).map(([name, device]) => {
    const box = element("div", null, { class: "bar" });
    const part = device.peak_bytes / Math.max(1, device.memory_bytes);
    const meter = element("meter", percent(part), { min: 0, max: 1, high: 0.95, value: Math.min(1, part), "aria-label": `Memory of ${name}` });
    box.append(element("span", name), meter, element("span", `${(device.peak_bytes / GIB).toFixed(2)} of ${(device.memory_bytes / GIB).toFixed(2)} GiB`));
    return box;
  });
  byId("memory").replaceChildren(...rows);
}

function paintTopology(found) {
  const stages = {};
  found.stages.forEach((stage, number) => stage.replicas.flat().forEach((name) => (stages[name] ??= []).push(number)));
  const hosts = {};
  for (const [name, host] of Object.entries(found.hosts)) (hosts[host || name] ??= []).push(name);
  const places = {};
  const shapes = [];
  const perRow = 6;
  let top = 10;
  for (const [host, names] of Object.entries(hosts)) {
    const height = 30 + 56 * Math.ceil(names.length / perRow);
    shapes.push(svgElement("rect", { x: 10, y: top, width: 940, height, rx: 8, class: "host" }), svgElement("text", { x: 20, y: top + 18, class: "faint" }, host));
    names.forEach((name, index) => {
      const left = 20 + 155 * (index % perRow), line = top + 26 + 56 * Math.floor(index / perRow);
      places[name] = places[host] = [left + 70, line + 22];
      shapes.push(
        svgElement("rect", { x: left, y: line, width: 140, height: 44, rx: 6, class: stages[name] ? "device" : "device idle" }),
        svgElement("text", { x: left + 8, y: line + 18 }, name),
        svgElement("text", { x: left + 8, y: line + 35, class: "faint" }, stages[name] ? `stage ${stages[name].join(", ")}` : "idle"),
      );
    });
    top += height + 14;
  }
  const lines = found.links.filter(([a, b]) => places[a] && places[b]).slice(0, 500)
    .map(([a, b]) => svgElement("line", { x1: places[a][0], y1: places[a][1], x2: places[b][0], y2: places[b][1], class: "link" }));
  byId("topology").setAttribute("viewBox", `0 0 960 ${top}`);
  byId("topology").replaceChildren(...lines, ...shapes);
}

function paintBaselines(found, job) {
  const rows = [{ name: "this plan", makespan_ns: job.incumbent_ns, fits_memory: true }, ...((found.evidence || {}).baselines || [])];
  rows.sort((a, b) => (a.makespan_ns ?? Infinity) - (b.makespan_ns ?? Infinity));
  byId("baselines").tBodies[0].replaceChildren(...rows.map((baseline) => {
    const made = element("tr");
    made.append(element("td", baseline.name), element("td", ms(baseline.makespan_ns), { class: "number" }), element("td", baseline.fits_memory ? "yes" : "no"));
    return made;
  }));
}

function closePicture() {
  byId("picture").hidden = true;
  byId("picture").removeAttribute("src");
  byId("open-picture").setAttribute("aria-expanded", "false");
}

async function openPicture(against) {
  const query = against ? `?against=${against}` : "";
  const frame = byId("picture");
  if (byId("key").value.trim()) {
    const ticket = await call("POST", `v1/plans/${state.job.id}:ticket`, "{}");
    frame.src = `v1/plans/${state.job.id}/view?ticket=${encodeURIComponent(ticket.ticket)}${against ? `&against=${against}` : ""}`;
  } else {
    frame.src = `v1/plans/${state.job.id}/view${query}`;
  }
  frame.hidden = false;
  byId("open-picture").setAttribute("aria-expanded", "true");
}

function mayCompare() {
  byId("compare").disabled = !(state.job && state.job.state === "succeeded" && state.beside && state.beside !== state.job.id);
}

async function compare() {
  try {
    const other = await call("GET", `v1/plans/${state.beside}`);
    const table = element("table");
    table.append(element("caption", "Side by side"));
    for (const [name, read] of [["Plan", (job) => `${job.name} ${job.id.slice(0, 6)}`], ["Makespan ms", (job) => ms(job.incumbent_ns)], ["Lower bound ms", (job) => ms(job.lower_bound_ns)], ["Gap", (job) => percent(job.gap)]]) {
      const line = element("tr");
      line.append(element("th", name, { scope: "row" }), element("td", read(state.job)), element("td", read(other)));
      table.append(line);
    }
    byId("comparison").replaceChildren(table);
    await openPicture(state.beside);
  } catch (error) {
    say(error.message);
  }
}

// ---------------------------------------------------------------- what if

function readSliders() {
  const speed = 2 ** Number(byId("wi-links").value);
  byId("wi-memory").nextElementSibling.textContent = `${Number(byId("wi-memory").value)} GiB`;
  byId("wi-devices").nextElementSibling.textContent = byId("wi-devices").value;
  byId("wi-links").nextElementSibling.textContent = `× ${speed}`;
  return { memory_bytes: Number(byId("wi-memory").value) * GIB, devices: Number(byId("wi-devices").value), link_speed: speed };
}

async function askWhatIf(event) {
  event.preventDefault();
  const answer = byId("what-if-answer");
  answer.textContent = "Asking";
  try {
    let job = await call("POST", "v1/what-if", JSON.stringify({ base: state.job.id, change: readSliders(), limits: limits() }));
    while (["queued", "running"].includes(job.state)) {
      answer.textContent = `Asking: ${ms(job.incumbent_ns)} ms so far`;
      await new Promise((done) => setTimeout(done, 700));
      job = await call("GET", `v1/plans/${job.id}`);
    }
    const moved = job.what_if.moved_ns;
    answer.textContent = job.state === "succeeded"
      ? `${ms(job.incumbent_ns)} ms: ${moved <= 0 ? "saves" : "costs"} ${ms(Math.abs(moved))} ms`
      : `No plan: ${job.error ? job.error.detail : job.state}`;
    await refresh();
  } catch (error) {
    answer.textContent = error.message;
  }
}

// ---------------------------------------------------------------- the beginning

function listen() {
  const drop = byId("drop");
  const choose = () => byId("file").click();
  drop.addEventListener("click", choose);
  drop.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(); } });
  for (const name of ["dragenter", "dragover"]) drop.addEventListener(name, (event) => { event.preventDefault(); drop.classList.add("over"); });
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => { event.preventDefault(); drop.classList.remove("over"); submitFile(event.dataTransfer.files[0]); });
  byId("file").addEventListener("change", () => submitFile(byId("file").files[0]));
  byId("ask-demo").addEventListener("click", submitDemo);
  byId("stop").addEventListener("click", async () => { state.job = await call("POST", `v1/plans/${state.job.id}:stop`, "{}"); paintJob(); });
  byId("pin").addEventListener("click", async () => { state.job = await call("POST", `v1/plans/${state.job.id}:${state.job.pinned ? "unpin" : "pin"}`, "{}"); paintJob(); });
  byId("delete").addEventListener("click", async () => { if (state.follow) state.follow.abort(); await call("DELETE", `v1/plans/${state.job.id}`); byId("detail").hidden = true; state.job = null; refresh(); });
  byId("open-picture").addEventListener("click", () => (byId("picture").hidden ? openPicture(null) : closePicture()));
  byId("compare").addEventListener("click", compare);
  byId("what-if").addEventListener("input", readSliders);
  byId("what-if").addEventListener("submit", askWhatIf);
  byId("key").value = sessionStorage.getItem("key") || "";
  byId("key").addEventListener("change", () => { sessionStorage.setItem("key", byId("key").value.trim()); start(); });
}

async function start() {
  await refresh();
  try {
    const { demo_profiles: demos } = await call("GET", "v1/demo-profiles");
    byId("demo").replaceChildren(element("option", "choose one", { value: "" }), ...demos.map((demo) => element("option", demo.name, { value: demo.name })));
  } catch (error) {
    say(error.message);
  }
}

listen();
start();
setInterval(() => { if (!document.hidden) refresh(); }, 5000);
