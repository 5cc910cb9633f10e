// The plans on the left, and the ways to ask for a new one.

import { addressOf } from "./address.js";
import { isLive } from "./service.js";
import { inBytes, inMs, inPercent, plural } from "../viewer/describe.js";
import { element } from "../viewer/dom.js";

function jobRow(job, { isShown }) {
  const figures = [inMs(job.incumbent_ns), isLive(job) ? job.state : gapOf(job)].filter((text) => text && text !== "–").join(" · ");
  const made = element("a", { className: `job ${job.state}`, attributes: { href: addressOf(job.id), "data-id": job.id } }, [
    element("span", { className: "job-name", text: job.name }),
    element("span", { className: "job-figures", text: job.what_if ? `what if: ${changeText(job.what_if.change)}` : [job.id.slice(0, 6), job.project, ago(job.created_at)].filter(Boolean).join(" · ") }),
    element("span", { className: "job-figures", text: figures || job.state }),
  ]);
  made.title = job.profile_sha256 ? `profile ${job.profile_sha256.slice(0, 12)}` : "";
  if (isShown) made.setAttribute("aria-current", "page");
  return element("li", {}, [made]);
}

// The query for what was typed: `project:x tag:y since:2026-11-01 until:2026-12-01`, a hash, or part of a name; what
// stands behind `model:` is a whole name.
export function searchOf(text) {
  const query = new URLSearchParams({ limit: "100" }), rest = [];
  const [, before, model] = /^(|.*\s)model:(.+)$/.exec(text) ?? [null, text, null];
  if (model) query.set("model", model);
  for (const term of before.split(/\s+/)) {
    const [, name, value] = /^(project|tag|state|since|until):(.+)$/.exec(term) ?? [];
    if (name) query.set(name, value);
    else rest.push(term);
  }
  const left = rest.join(" ");
  if (/^[0-9a-f]{6,64}$/.test(left)) query.set("sha256", left);
  else if (left) query.set("name", left);
  return query;
}

function gapOf(job) {
  if (job.state !== "succeeded") return job.state;
  return job.solution_status === "optimal" ? "optimal" : `gap ${inPercent(job.gap)}`;
}

export function changeText(change) {
  const parts = [];
  if (change.devices) parts.push(`${change.devices > 0 ? "+" : "−"}${plural(Math.abs(change.devices), "device")}`);
  if (change.memory_bytes) parts.push(`${change.memory_bytes > 0 ? "+" : "−"}${inBytes(Math.abs(change.memory_bytes))}`);
  if (change.link_speed !== 1) parts.push(`links × ${change.link_speed}`);
  if (change.num_microbatches) parts.push(plural(change.num_microbatches, "microbatch", "microbatches"));
  if (change.global_batch_size) parts.push(`batch of ${plural(change.global_batch_size, "sample")}`);
  if (change.microbatch_size) parts.push(`microbatches of ${plural(change.microbatch_size, "sample")}`);
  if (change.lost?.length) parts.push(`without ${change.lost.join(", ")}`);
  return parts.join(", ") || "nothing changed";
}

function ago(moment) {
  const passed = (Date.now() - Date.parse(moment)) / 1000;
  if (passed < 90) return "just now";
  if (passed < 5400) return `${Math.round(passed / 60)} min ago`;
  return passed < 129600 ? `${Math.round(passed / 3600)} h ago` : `${Math.round(passed / 86400)} days ago`;
}

// Rows are drawn anew only when they say something new, and the focus stays where it was.
export function fillJobs(list, jobs, shownId) {
  const signature = JSON.stringify([shownId, jobs.map((job) => [job.id, job.state, job.incumbent_ns, job.gap])]);
  if (signature === list.dataset.signature) return;
  list.dataset.signature = signature;
  const focused = document.activeElement?.dataset?.id;
  list.replaceChildren(...jobs.map((job) => jobRow(job, { isShown: job.id === shownId })));
  if (focused) list.querySelector(`[data-id="${focused}"]`)?.focus();
}

// A request out of whatever was dropped: a request as it is, a workload with limits around it.
export function requestOf(text, limits) {
  try {
    const tree = JSON.parse(text);
    if (tree && typeof tree === "object" && !("workload" in tree)) return JSON.stringify({ workload: tree, limits });
  } catch { /* the service says what is wrong with it */ }
  return text;
}

// Files dropped anywhere on the page, or chosen.
export function takeFiles({ zone, input, onFile }) {
  input.addEventListener("change", () => {
    if (input.files[0]) onFile(input.files[0]);
    input.value = "";
  });
  for (const name of ["dragenter", "dragover"]) {
    addEventListener(name, (event) => {
      event.preventDefault();
      zone.classList.add("over");
    });
  }
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) zone.classList.remove("over"); });
  addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    if (event.dataTransfer.files[0]) onFile(event.dataTransfer.files[0]);
  });
}
