/* The labelling screen: the way to the server. What is entered is kept in the outbox, on this device,
   until the server has taken it: a lost network, a lost sign-in or a closed tab loses nothing, and the
   keys under which things are sent keep them from being stored twice. */
const PATIENCE = 20_000;
const LONGEST_PAUSE = 30_000;

const cookie = (name) => document.cookie.split("; ").find((pair) => pair.startsWith(`${name}=`))?.slice(name.length + 1);

function kindOf(answer) {
  if (new URL(answer.url, location.href).pathname.startsWith("/login/") || [401, 403].includes(answer.status)) return "signed-out";
  if (answer.status >= 500 || answer.status === 408 || answer.status === 429) return "away";
  return { 409: "conflict", 410: "gone", 422: "refused" }[answer.status] ?? (answer.ok ? "ok" : "failed");
}

/** One request. The outcome's kind: ok, refused, conflict, gone, failed; signed-out and away can be tried again. */
export async function ask(address, { form, json, headers = {} } = {}) {
  const options = { headers: { "HX-Request": "true", ...headers }, cache: "no-store", signal: AbortSignal.timeout(PATIENCE) };
  if (form || json) {
    options.method = "POST";
    // A sign-in in another tab changes the token; the cookie always has the one that counts.
    options.headers["X-CSRFToken"] = cookie("csrftoken") ?? "";
    options.body = json ? JSON.stringify(json) : new URLSearchParams(form);
    if (json) options.headers["Content-Type"] = "application/json";
  }
  try {
    const answer = await fetch(address, options);
    return { kind: kindOf(answer), status: answer.status, text: await answer.text(), headers: answer.headers };
  } catch {
    return { kind: "away", status: 0, text: "", headers: new Headers() };
  }
}

function draftBody({ fields, base, page, revision }) {
  const grouped = {};
  for (const [name, value] of fields) (grouped[name] ??= []).push(value);
  return { fields: grouped, base_version: base, saved_from: page, is_revision: revision };
}

/** Entries of one kind on their way, one after another. */
class Lane {
  constructor(outbox, kind) {
    Object.assign(this, { outbox, kind, state: "fine", pause: 0, timer: 0, running: null, more: false });
  }

  /** Send what waits. A second call joins the first. */
  flush() {
    this.more = true;
    return this.running ??= this.drain();
  }

  async drain() {
    // `running` is set before anything here can clear it.
    await null;
    clearTimeout(this.timer);
    try {
      while (this.more) {
        this.more = false;
        if (!await this.round()) return;
      }
    } finally {
      this.running = null;
      this.outbox.tell();
    }
  }

  /** Everything once. False when it has to be tried again later. */
  async round() {
    let trouble = "";
    for (const entry of this.outbox.waiting(this.kind)) {
      if (this.outbox.get(entry.id)?.stamp !== entry.stamp) continue;
      const sent = entry.kind === "draft" ? { json: draftBody(entry) } : { form: entry.fields };
      const outcome = await ask(entry.address, { ...sent, headers: this.outbox.headers(entry) });
      if (outcome.kind === "away" || outcome.kind === "signed-out") {
        trouble = outcome.kind;
        // A server that answers may have trouble with this one alone: the others get their turn.
        if (outcome.status < 500) break;
        continue;
      }
      this.state = "fine";
      this.pause = 0;
      await this.close(entry, outcome);
    }
    if (trouble) this.retry(trouble);
    else this.state = "fine";
    return !trouble;
  }

  async close(entry, outcome) {
    const { outbox } = this;
    const decided = await outbox.settle(entry, outcome);
    if (decided === "again") this.more = true;
    else if (decided === "failed") outbox.put({ ...entry, failed: outcome.status });
    // What was entered while it was under way is still to be sent.
    else if (outbox.get(entry.id)?.stamp === entry.stamp) outbox.drop(entry.id);
    else this.more = true;
  }

  retry(state) {
    this.state = state;
    this.pause = Math.min(LONGEST_PAUSE, (this.pause || 500) * 2);
    this.timer = setTimeout(() => this.flush(), this.pause);
  }
}

/** What waits to be sent, oldest first. Other tabs of the same person share it. */
export class Outbox {
  /* `headers(entry)` goes along with an entry. `settle(entry, outcome)` says what becomes of it: "done",
     "again" (it was changed) or "failed". `report(state, entries)` is told after every change how things
     stand, and what could not be sent. */
  constructor(user, { headers, settle, report }) {
    Object.assign(this, { prefix: `rondo-outbox-${user}-`, headers, settle, report });
    this.memory = new Map();
    // An answer waits behind no draft: neither one under way, nor the pause after one that failed.
    this.lanes = { submit: new Lane(this, "submit"), draft: new Lane(this, "draft") };
    for (const event of ["online", "focus"]) addEventListener(event, () => this.waiting().length && this.flush());
  }

  entries() {
    const texts = [...this.memory.values()];
    try {
      for (let i = 0; i < localStorage.length; i += 1) {
        const key = localStorage.key(i);
        if (key.startsWith(this.prefix)) texts.push(localStorage.getItem(key));
      }
    } catch { /* storage is switched off: what waits lives as long as this tab */ }
    return texts.map(entryIn).filter(Boolean).sort((a, b) => a.at - b.at);
  }

  waiting(kind) {
    return this.entries().filter((entry) => !entry.failed && (!kind || entry.kind === kind));
  }

  put(entry) {
    const text = JSON.stringify({ ...entry, stamp: crypto.getRandomValues(new Uint32Array(2)).join() });
    try {
      localStorage.setItem(this.prefix + entry.id, text);
    } catch {
      this.memory.set(entry.id, text);
    }
  }

  get(id) {
    return this.entries().find((entry) => entry.id === id);
  }

  drop(id) {
    this.memory.delete(id);
    try { localStorage.removeItem(this.prefix + id); } catch { /* it was never there */ }
  }

  /** Send what waits, answers and drafts beside each other. */
  flush() {
    return Promise.all(Object.values(this.lanes).map((lane) => lane.flush()));
  }

  tell() {
    const { submit, draft } = this.lanes;
    const state = submit.state === "fine" ? draft.state : submit.state;
    this.report(state, this.entries().filter((entry) => entry.failed || this.lanes[entry.kind].state !== "fine"));
  }

  /** Everything once more, what had failed too. */
  sendNow() {
    for (const entry of this.entries()) if (entry.failed) this.put({ ...entry, failed: 0 });
    return this.flush();
  }
}

/** An entry from its text; null when another tab has just taken it away, or something else broke it. */
function entryIn(text) {
  try {
    const entry = JSON.parse(text);
    return entry && ["submit", "draft"].includes(entry.kind) ? entry : null;
  } catch {
    return null;
  }
}
