// The page: what is shown stands in the address; this puts the parts together and keeps them up to date.

import { addressOf, readAddress, writeAddress } from "./address.js";
import { demoList, isRecommended, recommendedDemos } from "./demos.js";
import { differenceOf } from "./difference.js";
import { hashOf, planOf, refusalOf, verdictText } from "./dropped.js";
import { changeText, fillJobs, requestOf, searchOf, takeFiles } from "./jobs.js";
import { ledger } from "./ledger.js";
import { Pareto } from "./pareto.js";
import { chartWidth, progressChart, seconds } from "./progress_chart.js";
import { call, download, follow, isLive, keepKey, phaseText, readKey, secondsOf, sendFile } from "./service.js";
import { besideChoices, isTrace, traceContent, traceFootnote, traceHeadline, traceTables } from "./trace.js";
import { WhatIf } from "./what_if.js";
import { layerBands } from "../viewer/bands.js";
import { baselineBars } from "../viewer/baselines.js";
import { inMs, plural, usedDevices } from "../viewer/describe.js";
import { byId, element } from "../viewer/dom.js";
import { footnoteOf, headlineOf, objectiveOf } from "../viewer/headline.js";
import { machinePicture } from "../viewer/machine.js";
import { memoryRows } from "../viewer/memory.js";
import { unpackContent } from "../viewer/model.js";
import { stageTable, wideTable } from "../viewer/tables.js";
import { searchPart } from "../viewer/terms.js";
import { isDark, onTheme, startTheme, switchTheme } from "../viewer/theme.js";
import { Timeline, answerTests } from "../viewer/timeline/timeline.js";

const LIST_S = 4, PICTURE_MS = 700, SEARCH_MS = 300;
const state = { job: null, story: [], content: null, latest: null, jobs: [], found: [], control: null, isLoading: false, isStale: false };
let timeline = null, whatIf = null, pareto = null;

function say(text) { byId("status").textContent = text; }

// If a key is needed, the page asks for it.
function tell(error) {
  say(error.status === 401 ? (readKey() ? "The API key is not valid." : "An API key is needed.") : error.message);
  if (error.status === 401) document.body.dataset.key = "wanted";
}

// ---------------------------------------------------------------- plans and asking

async function refresh() {
  try {
    state.jobs = (await call("GET", "v1/plans?limit=100")).plans;
    fillPlans();
    say("");
    if (state.content) fillInstruments();
  } catch (error) {
    tell(error);
  }
}

// What is wanted of the latest plans at once; what the service finds among all of them when it has answered.
function fillPlans() {
  const wanted = byId("filter").value.trim().toLowerCase();
  const latest = state.jobs.filter((job) => `${job.name} ${job.id} ${job.state} ${job.project} ${job.tags}`.toLowerCase().includes(wanted));
  const shown = wanted ? [...latest, ...state.found.filter((job) => !latest.some(({ id }) => id === job.id))] : state.jobs;
  fillJobs(byId("plans-list"), shown, state.job?.id ?? null);
  byId("no-plans").hidden = shown.length > 0;
}

async function search() {
  const asked = byId("filter").value.trim();
  state.found = [];
  fillPlans();
  if (!asked) return;
  try {
    const { plans } = await call("GET", `v1/plans?${searchOf(asked)}`);
    if (byId("filter").value.trim() !== asked) return;
    state.found = plans;
    say("");
    fillPlans();
  } catch (error) {
    tell(error);
  }
}

function searchForModel() {
  byId("filter").value = `model:${state.job.name}`;
  byId("filter").focus();
  search();
}

async function planAgain() {
  await submit(JSON.stringify({ start_from: state.job.id, limits: await limits(), project: state.job.project, tags: state.job.tags }));
}

async function limits() { return { time_limit_s: await secondsOf(Math.max(1, Number(byId("seconds").value) || 20)) }; }

async function submit(text) {
  byId("refusal").textContent = "";
  try {
    const job = await call("POST", "v1/plans", text);
    await show(job.id);
    await refresh();
    if (job.doubts) say(job.doubts.join("; "));
  } catch (error) {
    refuse(error.message);
  }
}

function refuse(text) {
  say("");
  byId("refusal").textContent = text;
  byId("ask").open = true;
  byId("refusal").scrollIntoView({ block: "nearest" });
}

async function submitDemo(name) {
  const body = await call("GET", `v1/demo-profiles/${encodeURIComponent(name)}`);
  await submit(JSON.stringify({ ...body, limits: await limits() }));
}

async function listDemos() {
  try {
    const { demo_profiles: demos } = await call("GET", "v1/demo-profiles");
    byId("demos").replaceChildren(...demoList(demos, submitDemo));
    byId("recommended").replaceChildren(...recommendedDemos(demos, submitDemo));
    byId("welcome-demos").replaceChildren(...demoList(demos, submitDemo, (demo) => !isRecommended(demo)));
  } catch (error) {
    tell(error);
  }
}

// ---------------------------------------------------------------- one plan

async function show(id, choices = { incumbent: null, baseline: null, against: null }) {
  writeAddress({ plan: id, ...choices });
  await open();
}

// Shows what the address says.
async function open() {
  const { plan } = readAddress();
  leave();
  state.control = new AbortController();
  document.body.dataset.view = plan ? "plan" : "start";
  byId("ask").open = !plan;
  fillPlans();
  if (!plan) return;
  const { signal } = state.control;
  try {
    const job = await call("GET", `v1/plans/${plan}`, undefined, { signal });
    if (signal.aborted) return;
    state.job = job;
    fillHead();
    await showNewest(signal);
    if (isLive(state.job)) await live(plan, signal);
  } catch (error) {
    if (!signal.aborted) lost(error);
  }
}

// What is shown is about to be something else.
function leave() {
  state.control?.abort();
  Object.assign(state, { job: null, story: [], content: null, latest: null, isLoading: false, isStale: false });
  byId("timeline-card").removeAttribute("aria-busy");
  whatIf?.leave();
  pareto?.leave();
}

function lost(error) {
  if (!error.status) console.error(error);
  document.body.dataset.view = "lost";
  byId("footnote").textContent = "";
  byId("subtitle").textContent = error.status === 404 ? "It was deleted, or kept for as long as this service keeps plans. Choose another one from the list." : "";
  byId("headline").textContent = error.status === 404 ? "There is no such plan any more." : error.message;
}

async function live(id, signal) {
  const last = state.story.length ? state.story[state.story.length - 1].seq : 0;
  await follow(id, { after: last, signal, onEvent: () => showNewest(signal), onTrouble: (error) => tell(error) });
  if (signal.aborted) return;
  await showNewest(signal);
  await refresh();
}

// Job, story and, if there is a new plan, its picture.
async function showNewest(signal) {
  const { id } = state.job;
  const [job, { events }] = await Promise.all([call("GET", `v1/plans/${id}`, undefined, { signal }), call("GET", `v1/plans/${id}/history`, undefined, { signal })]);
  if (signal.aborted) return;
  Object.assign(state, { job, story: events });
  fillHead();
  fillSearch();
  fillScrubber();
  if (job.incumbent_ns && (!readAddress().incumbent || !state.content)) await draw();
}

// Fetches and draws what the address asks for; while a search is on, not more often than can be seen.
async function draw() {
  state.isStale = true;
  if (state.isLoading) return;
  state.isLoading = true;
  byId("timeline-card").setAttribute("aria-busy", "true");
  const { signal } = state.control;
  try {
    while (state.isStale && !signal.aborted) {
      state.isStale = false;
      const begin = performance.now();
      await drawOnce(signal);
      if (isLive(state.job)) await new Promise((done) => setTimeout(done, Math.max(PICTURE_MS, performance.now() - begin)));
    }
  } catch (error) {
    if (signal.aborted) return;
    if (!error.status) console.error(error);
    tell(error);
  } finally {
    if (!signal.aborted) {
      state.isLoading = false;
      byId("timeline-card").removeAttribute("aria-busy");
    }
  }
}

async function drawOnce(signal) {
  const { incumbent, baseline, against } = readAddress(), { job } = state;
  const query = new URLSearchParams(Object.entries({ incumbent, baseline, against }).filter(([, value]) => value));
  const path = `v1/plans/${job.id}/picture`;
  const content = await contentOf(path, query, signal);
  if (incumbent && !state.latest && !isLive(job)) state.latest = unpackContent(await call("GET", path, undefined, { signal }));
  if (signal.aborted) return;
  if (!readAddress().incumbent) state.latest = content;
  complete(content, job);
  state.content = content;
  fillPlan();
  await fillDifference(content.isOfAnotherModel ? null : readAddress().against, signal);
}

// The picture; where what is to stand beside it, or an earlier plan, is there no more, of the plan alone.
async function contentOf(path, query, signal) {
  try {
    return unpackContent(await call("GET", query.size ? `${path}?${query}` : path, undefined, { signal }));
  } catch (error) {
    if (!query.size || ![404, 422].includes(error.status)) throw error;
    writeAddress({ incumbent: null, baseline: null, against: null });
    const alone = await call("GET", path, undefined, { signal });
    return unpackContent({ ...alone, aloneBecause: "What the link puts beside this plan is not there any more", isOfAnotherModel: true });
  }
}

async function fillDifference(against, signal) {
  byId("difference").hidden = !against;
  if (!against || isLive(state.job)) return;
  try {
    byId("difference-body").replaceChildren(...await differenceOf(state.job.id, against, { signal, order: state.content.machine.devices.map(([name]) => name) }));
  } catch (error) {
    if (error.status !== 422) throw error;
    byId("difference-body").replaceChildren(element("p", { text: error.message })); // two models of one name
  }
}

// What only the finished plan states: baselines, and the bound that has been proved by now.
function complete(content, job) {
  const known = state.latest?.plans[0];
  if (known && !content.plans[0].baselines.length) content.plans[0].baselines = known.baselines;
  content.lowerBoundNs ??= state.latest?.lowerBoundNs ?? job.lower_bound_ns;
}

function fillHead() {
  const { job } = state;
  document.body.dataset.plan = job.incumbent_ns ? "found" : isLive(job) ? "awaited" : "none";
  byId("plan-name").textContent = job.name;
  byId("plan-state").textContent = job.state === "running" ? phaseText(job) : job.state;
  byId("plan-state").className = `state ${job.state}`;
  byId("stop").hidden = !isLive(job);
  byId("pin").textContent = job.pinned ? "Unpin" : "Pin";
  byId("again").disabled = job.state !== "succeeded";
  for (const link of byId("downloads").querySelectorAll("button")) link.disabled = job.state !== "succeeded";
  if (!job.incumbent_ns) byId("headline").textContent = job.error ? "There is no plan for this question." : "Searching for a first plan …";
  if (!job.incumbent_ns) byId("footnote").textContent = "";
  if (!job.incumbent_ns) byId("subtitle").textContent = isLive(job) ? "" : inASentence(job.error?.detail ?? "It was stopped before a plan was found");
  byId("what-if-of").replaceChildren();
  if (job.what_if) byId("what-if-of").append(`What if: ${changeText(job.what_if.change)} · `, element("a", { text: "the plan it started from", attributes: { href: addressOf(job.what_if.base) } }));
  state.jobs = state.jobs.map((other) => (other.id === job.id ? job : other));
  fillPlans();
}

function inASentence(text) { return `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`; }

function fillPlan() {
  const { content, job } = state;
  const isNow = !readAddress().incumbent;
  fillPicture(content, { isUnfinished: isLive(job) && isNow });
  byId("alone").textContent = !content.aloneBecause ? "" : `${content.aloneBecause}${content.isOfAnotherModel ? "" : "; what is different stands below"}.`;
  document.title = `${inMs(job.incumbent_ns)} · ${job.name} · pipeplan`;
  fillBeside();
  fillBaselines();
  fillSearch();
  fillScrubber();
  fillInstruments();
}

// What is drawn of any plan, whether the service keeps it or not.
function fillPicture(content, { isUnfinished }) {
  showTimeline(content);
  byId("headline").textContent = headlineOf(content, { isUnfinished });
  byId("footnote").textContent = footnoteOf(content);
  byId("subtitle").textContent = `${content.profile} on ${content.cluster}: ${plural(content.numMicrobatches, "microbatch", "microbatches")} through ${plural(content.plans[0].stages.length, "stage")} on ${plural(usedDevices(content.plans[0]).length, "device")}, ${inMs(objectiveOf(content, content.plans[0].figures))}`;
  byId("layers-body").replaceChildren(...layerBands(content));
  byId("memory-body").replaceChildren(memoryRows(content));
  byId("machine-body").replaceChildren(...machinePicture(content));
  byId("stages-body").replaceChildren(wideTable("Table of stages", stageTable(content.plans[0])));
}

// What asks on behalf of a plan that is there; its picture is the sign that it is.
function fillInstruments() {
  const { job, jobs } = state, content = state.latest ?? state.content;
  whatIf ??= new WhatIf(byId("what-if-body"), { onAsked: () => refresh() });
  whatIf.show(job, content, jobs);
  pareto ??= new Pareto(byId("pareto-body"), { onAsked: () => refresh() });
  pareto.show(job, content, jobs);
}

function showTimeline(content) {
  byId("timeline-card").classList.remove("waiting");
  timeline ??= new Timeline(byId("timeline"), { room: () => Math.min(680, Math.max(300, innerHeight * 0.62)) });
  timeline.show(content);
  answerTests(timeline);
}

function fillBaselines() {
  const { content } = state, { baseline } = readAddress(), { figures, baselines } = content.plans[0];
  const known = baselines.length > 0, signature = JSON.stringify([state.job.id, figures, baselines, content.lowerBoundNs, baseline]);
  if (signature === byId("baselines-body").dataset.signature) return; // the focus stays where it is
  byId("baselines-body").dataset.signature = signature;
  byId("baselines-body").replaceChildren(...(known ? baselineBars(content, { opened: baseline, onOpen: (name) => putBeside({ baseline: name, against: null }) }) : [element("p", { className: "hint", text: "They stand here when the search is done." })]));
}

async function putBeside(choice) {
  const focused = document.activeElement?.getAttribute?.("aria-label");
  writeAddress(choice);
  await draw();
  if (choice.baseline) byId("timeline-card").scrollIntoView({ block: "start", behavior: "auto" });
  if (focused) document.querySelector(`[aria-label="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

// What may stand beside the plan: nothing, a baseline, or another plan of the same service.
function fillBeside() {
  const { content, job, jobs } = state, { baseline, against } = readAddress();
  const option = (value, text) => element("option", { text, attributes: { value } });
  const names = content.plans[0].baselines.filter((row) => row.makespanNs).map((row) => row.name);
  const done = jobs.filter((other) => other.id !== job.id && other.state === "succeeded");
  const plans = done.filter((other) => other.name === job.name).slice(0, 30);
  const note = element("option", { text: "plans of other models are not compared", attributes: { disabled: "" } });
  const groups = [["Known methods", names.map((name) => option(`baseline:${name}`, name))], [`Plans of ${job.name}`, plans.map((other) => option(`against:${other.id}`, `${other.name} ${other.id.slice(0, 6)}, ${inMs(other.incumbent_ns)}`))]];
  byId("beside").replaceChildren(option("", "nothing"), ...groups.filter(([, options]) => options.length).map(([label, options]) => element("optgroup", { attributes: { label } }, options)), ...(done.some((other) => other.name !== job.name) ? [note] : []));
  byId("beside").value = baseline ? `baseline:${baseline}` : against && !content.isOfAnotherModel ? `against:${against}` : "";
}

// ---------------------------------------------------------------- a trace

async function lookAtTrace(file) {
  byId("refusal").textContent = "";
  say("Reading the trace …");
  try {
    const trace = await sendFile("v1/traces", file);
    leave();
    writeAddress({ plan: null, incumbent: null, baseline: null, against: null });
    document.body.dataset.view = "trace";
    fillPlans();
    byId("headline").textContent = traceHeadline(trace);
    byId("subtitle").textContent = `${file.name}: step ${trace.step}, the median of ${plural(trace.num_steps, "step")}. A: as it ran. Traces are not kept: drop it again after a reload.`;
    byId("trace-body").replaceChildren(...traceTables(trace));
    byId("trace-beside").replaceChildren(...besideChoices(trace).map(([value, text]) => element("option", { text, attributes: { value } })));
    byId("trace-beside").onchange = () => showTimeline(traceContent(trace, byId("trace-beside").value));
    byId("trace-beside").onchange();
    byId("footnote").textContent = traceFootnote(trace);
    byId("ask").open = false;
    say("");
  } catch (error) {
    refuse(error.message);
  }
}

// ---------------------------------------------------------------- a plan in a file

// One that this service has made is opened where it stands; any other is drawn, checked, and not kept.
async function lookAtPlan(file, text, { plan, workload }) {
  byId("refusal").textContent = "";
  say("Reading the plan …");
  try {
    const hash = await hashOf(text), known = hash ? (await call("GET", `v1/plans?sha256=${hash}`)).plans.find((job) => job.plan_sha256 === hash) : null;
    if (known) await show(known.id);
    else await showFile(file, JSON.stringify({ plan, workload }));
    say("");
  } catch (error) {
    refuse(error.message);
  }
}

async function showFile(file, body) {
  const order = JSON.parse(body);
  const [content, verdict] = await Promise.all([call("POST", "v1/playbacks", JSON.stringify({ ...order, what: "picture" })), call("POST", "v1/verifications", body)]);
  leave();
  writeAddress({ plan: null, incumbent: null, baseline: null, against: null });
  document.body.dataset.view = "file";
  document.body.dataset.plan = "found";
  byId("ask").open = false;
  fillPlans();
  fillPicture(unpackContent(content), { isUnfinished: false });
  const known = content.plans[0].baselines;
  byId("baselines-body").dataset.signature = "";
  byId("baselines-body").replaceChildren(...(known.length ? baselineBars(content) : [element("p", { className: "hint", text: "The file names none." })]));
  byId("plan-name").textContent = file.name;
  byId("plan-state").className = `state ${verdict.passed ? "succeeded" : "failed"}`;
  byId("plan-state").textContent = verdict.passed ? "checked" : "breaks a rule";
  byId("what-if-of").textContent = `${verdictText(verdict)} Files are not kept: drop it again after a reload.`;
  byId("alone").textContent = "";
  document.title = `${file.name} · pipeplan`;
}

async function takeFile(file) {
  if (isTrace(file)) return lookAtTrace(file);
  const text = await file.text(), found = planOf(text), reason = refusalOf(file, text);
  if (found) return lookAtPlan(file, text, found);
  return reason ? refuse(reason) : submit(requestOf(text, await limits()));
}

// ---------------------------------------------------------------- the search

function foundPlans() { return state.story.filter((event) => event.kind === "incumbent"); }

function fillSearch() {
  const { job, story } = state, last = story[story.length - 1];
  if (!last) return;
  const end = isLive(job) ? Math.max(last.at_s, (Date.now() - Date.parse(job.started_at ?? job.created_at)) / 1000) : last.at_s;
  const found = foundPlans();
  const shown = Number(readAddress().incumbent) || found[found.length - 1]?.seq;
  byId("search-body").replaceChildren(progressChart(story, { endS: end, shown, width: chartWidth(byId("search-body")), onPick: (seq) => scrubTo(seq) }));
  byId("ledger-body").replaceChildren(ledger(story, state.latest?.plans[0].figures.improvers));
}

// The positions of the scrubber: every plan that is kept, and the best one.
function stops() {
  const found = foundPlans();
  return found.filter((event, place) => event.has_plan || place === found.length - 1);
}

function fillScrubber() {
  const places = stops(), asked = Number(readAddress().incumbent), slider = byId("scrub");
  byId("scrubber").hidden = places.length < 2;
  if (places.length < 2) return;
  const place = asked ? Math.max(0, places.findIndex((event) => event.seq === asked)) : places.length - 1;
  slider.max = String(places.length - 1);
  slider.value = String(place);
  const { incumbent_ns: ns, source, at_s: at } = places[place];
  const phrase = `plan ${place + 1} of ${places.length}: ${inMs(ns)}, by ${searchPart(source)} after ${seconds(at)}`;
  slider.setAttribute("aria-valuetext", phrase);
  byId("scrub-words").textContent = phrase;
}

async function scrubTo(seq) {
  const places = stops(), isLast = places[places.length - 1]?.seq === seq;
  writeAddress({ incumbent: isLast ? null : seq });
  fillScrubber();
  fillSearch();
  await draw();
}

function step(by) {
  const places = stops(), place = Number(byId("scrub").value) + by;
  if (places[place]) scrubTo(places[place].seq);
}

// ---------------------------------------------------------------- what can be done with a plan

async function save(what, name) {
  try {
    const link = element("a", { attributes: { download: name } });
    link.href = URL.createObjectURL(await download(`v1/plans/${state.job.id}/${what}`));
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  } catch (error) {
    tell(error);
  }
}

async function act(verb) {
  try {
    const job = await call("POST", `v1/plans/${state.job.id}:${verb}`, "{}");
    if (job.id !== state.job?.id) return;
    state.job = job;
    fillHead();
  } catch (error) {
    tell(error);
  }
}

async function remove() {
  if (!confirm("Delete this plan for good?")) return;
  const { id } = state.job;
  leave();
  try {
    await call("DELETE", `v1/plans/${id}`);
    writeAddress({ plan: null, incumbent: null, baseline: null, against: null });
  } catch (error) {
    tell(error);
  }
  await open();
  await refresh();
}

const KEYS = {
  "/": () => byId("filter").focus(), "[": () => step(-1), "]": () => step(1), "?": () => byId("help").showModal(),
  i: () => byId("picture")?.focus(), w: () => byId("wi-memory")?.focus(),
};

function onKeydown(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches?.("input, select, textarea")) return;
  if (Object.hasOwn(KEYS, event.key) && (document.body.dataset.view === "plan" || event.key === "/" || event.key === "?")) {
    event.preventDefault();
    KEYS[event.key]();
  }
}

// Links to plans are followed without loading the page again.
function onLink(event) {
  const link = event.target.closest?.("a[href^='?']");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  const query = new URLSearchParams((link.getAttribute("href") || "").slice(1));
  show(query.get("plan")).then(() => scrollTo(0, 0));
}

function listen() {
  const onClick = (id, action) => byId(id).addEventListener("click", action);
  takeFiles({ zone: byId("drop"), input: byId("file"), onFile: takeFile });
  onClick("drop", () => byId("file").click());
  onClick("stop", () => act("stop"));
  onClick("again", planAgain);
  onClick("same-model", searchForModel);
  onClick("pin", () => act(state.job.pinned ? "unpin" : "pin"));
  onClick("delete", remove);
  onClick("save-plan", () => save("plan", "plan.json"));
  onClick("save-trace", () => save("trace", "trace.json"));
  onClick("save-view", () => save("view", "plan.html"));
  onClick("theme", () => {
    switchTheme();
    localStorage.setItem("theme", isDark() ? "dark" : "light");
  });
  onClick("help-open", () => byId("help").showModal());
  let typed = 0;
  byId("filter").addEventListener("input", () => {
    fillPlans();
    clearTimeout(typed);
    typed = setTimeout(search, SEARCH_MS);
  });
  byId("scrub").addEventListener("input", () => scrubTo(stops()[byId("scrub").value].seq));
  byId("beside").addEventListener("change", () => {
    const [kind, ...rest] = byId("beside").value.split(":"), value = rest.join(":") || null;
    putBeside({ baseline: kind === "baseline" ? value : null, against: kind === "against" ? value : null });
  });
  byId("key").value = readKey();
  if (readKey()) document.body.dataset.key = "given";
  byId("key-form").addEventListener("submit", (event) => event.preventDefault());
  byId("key").addEventListener("change", () => {
    keepKey(byId("key").value.trim());
    document.body.dataset.key = readKey() ? "given" : "wanted";
    start();
  });
  addEventListener("keydown", onKeydown);
  addEventListener("click", onLink);
  addEventListener("popstate", open);
  onTheme(() => { byId("theme").textContent = isDark() ? "Light" : "Dark"; });
}

async function start() {
  await Promise.all([refresh(), listDemos(), open()]);
}

listen();
startTheme(localStorage.getItem("theme"));
start();
setInterval(() => { if (!document.hidden) refresh(); }, LIST_S * 1000);
setInterval(() => { if (!document.hidden && state.job && isLive(state.job)) fillSearch(); }, 1000);
