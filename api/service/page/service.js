// The service: calls with the caller's key, refusals in words, and the story of a job as it happens.

export function readKey() { return sessionStorage.getItem("key") ?? ""; }

export function keepKey(key) { sessionStorage.setItem("key", key); }

function headers(more = {}) {
  const key = readKey();
  return key ? { Authorization: `Bearer ${key}`, ...more } : more;
}

// The answer's JSON, null for an empty one; an Error in words for a refusal.
export async function call(method, path, body, options) {
  const answer = await request(method, path, body, options);
  const text = await answer.text();
  return text ? JSON.parse(text) : null;
}

// A file as it is, which is no JSON; the answer's JSON.
export function sendFile(path, file) { return call("POST", path, file, { type: "application/octet-stream" }); }

export async function download(path) { return (await request("GET", path)).blob(); }

async function request(method, path, body, { signal = null, type = "application/json" } = {}) {
  const sent = body === undefined ? headers() : headers({ "Content-Type": type });
  const answer = await fetch(path, { method, headers: sent, body, signal });
  if (!answer.ok) throw refusal(answer.status, await answer.text());
  return answer;
}

function refusal(status, text) {
  const error = new Error(explain(status, text));
  error.status = status;
  return error;
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

const PHASES = { baselines: "trying known methods", bound: "looking for the limit" };

export function phaseText(job) { return job.state === "queued" ? "waiting for a worker" : PHASES[job.phase] ?? "searching"; }

let most = null;

// So long a search may take that should take so many seconds: no longer than the service allows.
export async function secondsOf(wanted) {
  try {
    most ??= (await call("GET", "v1/capabilities")).limits.max_time_limit_s;
  } catch { return wanted; } // what comes next says what is wrong
  return Math.min(wanted, most);
}

export function isLive(job) { return job.state === "queued" || job.state === "running"; }

// Calls `onEvent()` whenever something has happened to the job, until `signal` says so or the job has ended.
export async function follow(id, { after = 0, signal, onEvent, onTrouble }) {
  let seen = after, isOver = false;
  while (!signal.aborted && !isOver) {
    try {
      const answer = await fetch(`v1/plans/${id}/events`, { headers: headers({ "Last-Event-ID": String(seen) }), signal, cache: "no-store" });
      if (!answer.ok) throw refusal(answer.status, await answer.text());
      for await (const event of eventsOf(answer.body)) {
        seen = Math.max(seen, event.id);
        isOver ||= event.kind === "done";
        await onEvent(event);
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 404) throw error;
      onTrouble(error);
    }
    if (!isOver) await new Promise((done) => setTimeout(done, 1000));
  }
}

async function* eventsOf(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ""; ;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (text + value).split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const fields = Object.fromEntries(block.split("\n").map((line) => [line.slice(0, line.indexOf(": ")), line.slice(line.indexOf(": ") + 2)]));
      if (fields.id) yield { id: Number(fields.id), kind: fields.event };
    }
  }
}
