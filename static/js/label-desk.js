/* The labelling screen: one screen after the other. What is entered goes to the outbox, and what the
   server answers decides what is shown next. The screen does without htmx, a request and a third of its
   weight; the server's answers are the same fragments. */

// ── The way to the server ───────────────────────────────────────────────────────────────

/* What is entered is kept in the outbox, on this device, until the server has taken it: a lost network, a
   lost sign-in or a closed tab loses nothing, and the keys under which things are sent keep them from being
   stored twice. In one file with what uses it: a request less. */
const PATIENCE = 20_000;
const LONGEST_PAUSE = 30_000;

export const cookie = (name) => document.cookie.split("; ").find((pair) => pair.startsWith(`${name}=`))?.slice(name.length + 1);

function kindOf(answer) {
  if (new URL(answer.url, location.href).pathname.startsWith("/login/") || [401, 403].includes(answer.status)) return "signed-out";
  if (answer.status >= 500 || answer.status === 408 || answer.status === 429) return "away";
  return { 409: "conflict", 410: "gone", 422: "refused" }[answer.status] ?? (answer.ok ? "ok" : "failed");
}

/** One request. The outcome's kind: ok, refused, conflict, gone, failed; signed-out and away can be tried again. */
export async function ask(address, { form, json, headers = {}, patience = PATIENCE } = {}) {
  const options = { headers: { "HX-Request": "true", ...headers }, cache: "no-store", signal: AbortSignal.timeout(patience) };
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

// ── One screen after the other ──────────────────────────────────────────────────────────

const PREPARE_AFTER = 1000;
/* What a page says of itself, which no other page may take over. */
const OF_THE_PAGE = new Set(["csrfmiddlewaretoken", "idempotency_key", "guideline", "rubric", "stands_on", "conversation"]);

const $ = (selector, root = document) => root.querySelector(selector);
export const listed = (names) => names.length < 2 ? names.join("") : translate("{first} and {last}", { first: names.slice(0, -1).join(", "), last: names.at(-1) });

/** What was entered in a form: pairs of name and value, less what the page says of itself. */
export const entered = (form) => [...new FormData(form)].filter(([name]) => !OF_THE_PAGE.has(name));

/** The fragment of a server's answer that takes the place of #screen; null when there is none. */
export function fragmentOf(html, selector = "#screen") {
  const template = document.createElement("template");
  template.innerHTML = html;
  const found = template.content.querySelector(selector);
  return found && document.importNode(found, true);
}

/** What a JSON answer says; nothing, when it is none. */
function wordsIn(text) {
  try {
    return JSON.parse(text) ?? {};
  } catch {
    return {};
  }
}

/** Keeps what stands in one screen's form as a draft: within two seconds after a change. */
export class Keeper {
  constructor(element, form, outbox) {
    Object.assign(this, { form, outbox, page: form.elements.idempotency_key.value });
    this.line = element.querySelector("[data-saved]");
    this.version = Number(element.dataset.draftVersion);
    this.target = {
      id: `draft-${this.page}`, kind: "draft", page: this.page, assignment: element.dataset.assignment,
      address: element.dataset.draft, shownAt: element.dataset.revise, revision: "revision" in element.dataset,
    };
    this.known = this.snapshot();
    this.savedAt = 0;
    this.due = 0;
  }

  snapshot() {
    return JSON.stringify(entered(this.form).filter(([name]) => name !== "active_seconds"));
  }

  changed() {
    if (this.ended) return;
    const now = Date.now();
    this.due ||= now + 1800;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.keep(), Math.min(1000, this.due - now));
  }

  /** Into the outbox now, if anything changed since. */
  keep() {
    clearTimeout(this.timer);
    this.due = 0;
    const snapshot = this.snapshot();
    if (this.ended || snapshot === this.known) return;
    this.known = snapshot;
    this.outbox.put({ ...this.target, at: Date.now(), fields: entered(this.form), base: this.version });
    this.say(translate("saving…"));
    this.outbox.flush();
  }

  /** What was sent came back: the last of it may never have been saved. */
  anew() {
    this.known = "";
    this.changed();
  }

  stored(version) {
    this.version = version;
    this.savedAt = Date.now();
    this.show();
  }

  /** Nothing more is kept: it was submitted, or given back. */
  end() {
    this.ended = true;
    clearTimeout(this.timer);
    this.outbox.drop(this.target.id);
  }

  say(text) {
    this.savedAt = 0;
    this.line.textContent = text;
  }

  show() {
    if (!this.savedAt || this.due) return;
    const seconds = Math.round((Date.now() - this.savedAt) / 1000);
    this.line.textContent = seconds < 60 ? translate("saved {seconds} s ago", { seconds }) : translate("saved {minutes} min ago", { minutes: Math.floor(seconds / 60) });
  }
}

/** What lies on the desk: the screen one works on, and those in hand for later. */
export class Desk {
  /* `open(element, desk)` makes what stands in an element #screen: a screen, or what waits for one. */
  constructor(open) {
    this.opens = open;
    this.outbox = new Outbox($("script[data-user]").dataset.user, {
      headers: (entry) => entry.kind === "submit" && this.current?.assignment !== entry.assignment ? { "X-Next-In-Hand": "yes" } : {},
      settle: (entry, outcome) => entry.kind === "submit" ? this.submitted(entry, outcome) : this.drafted(entry, outcome),
      report: (state, entries) => this.report(state, entries),
    });
    this.hand = [];
    this.totals = new Map();
    $("[data-outbox-send]").addEventListener("click", () => this.outbox.sendNow());
    this.current = this.open($("#screen"));
    this.keepTotal(this.current.element);
    this.current.enter();
    this.prepareSoon();
    this.outbox.flush();
  }

  open(element) {
    return this.opens(element, this);
  }

  screenOf(page) {
    return [this.current, ...this.hand].find((screen) => screen.keeper?.page === page);
  }

  /** Put another screen in place of this one. */
  show(screen) {
    const before = this.current;
    before.leave();
    before.element.replaceWith(screen.element);
    this.current = screen;
    this.keepTotal(screen.element);
    this.tellHand();
    screen.enter();
    if (before.isWaiting && screen.isWaiting) return;
    scrollTo(0, 0);
    const { label, revise } = screen.element.dataset;
    if (label) history.replaceState(null, "", "revision" in screen.element.dataset ? revise : label);
    const refusal = $("[data-focus-first]", screen.element);
    (refusal ?? $("[data-focus]", screen.element))?.focus({ preventScroll: !refusal });
    this.prepareSoon();
  }

  /** A screen that was made ahead of time may know of fewer comparisons than one that was shown before it. */
  keepTotal(element) {
    const place = $("[data-total]", element);
    if (!place) return;
    const total = Math.max(Number(place.textContent), this.totals.get(element.dataset.round) ?? 0);
    this.totals.set(element.dataset.round, total);
    place.textContent = String(total);
    $(".screen__progress", element).max = total;
  }

  /** Take the screen of an answer of the server into the place of this one. */
  showAnswer(text) {
    const next = fragmentOf(text);
    if (!next) return location.reload();
    const held = this.hand.findIndex((screen) => screen.assignment === next.dataset.assignment);
    this.show(held < 0 ? this.open(next) : this.hand.splice(held, 1)[0]);
  }

  async goTo(address) {
    this.current.keeper?.keep();
    await this.outbox.flush();
    if (this.outbox.waiting().length) this.current.say(translate("This waits for the server: what you did before is not sent yet."), "bad");
    else location.href = address;
  }

  // ── Submitting ──────────────────────────────────────────────────────────────────────

  submit(screen) {
    screen.keeper.end();
    const { dataset } = screen.element;
    const fields = [...new FormData(screen.form)].filter(([name]) => name !== "csrfmiddlewaretoken");
    this.outbox.put({
      id: `submit-${screen.keeper.page}`, kind: "submit", assignment: screen.assignment, at: Date.now(),
      address: screen.form.getAttribute("action"), shownAt: dataset.revise, label: dataset.label, fields,
    });
    const next = this.hand.shift();
    if (next) this.show(next);
    else screen.park();
    next?.isPrepared && next.renew().then((ours) => ours || this.refresh(next));
    this.outbox.flush();
  }

  async submitted(entry, outcome) {
    const isShown = this.current.assignment === entry.assignment;
    if (outcome.kind === "conflict") return this.answeredElsewhere(entry);
    const refused = outcome.kind === "refused" && fragmentOf(outcome.text);
    if (refused) {
      if (!isShown && !this.current.isWaiting) this.hand.unshift(this.current);
      this.show(this.open(refused));
      this.current.keeper.anew();
      return "done";
    }
    // What stands between may answer in the server's name: only its own words say that it is stored.
    if (outcome.kind === "ok" && (!outcome.text || fragmentOf(outcome.text, "#screen, .notice"))) {
      if (isShown) await this.showNext(entry, outcome.text);
      else if (outcome.text) this.tell(outcome.text);
      return "done";
    }
    if (!isShown) return "failed";
    this.current.unpark(translate("Not stored: the server returned {status}. What you entered is still here; submit again, or reload if it happens again.", outcome));
    return "done";
  }

  /** What the server has to say of the answer before, on the screen that took its place. */
  tell(text) {
    const notice = fragmentOf(text, ".notice");
    if (!notice) return;
    $(`#${notice.id}`, this.current.element)?.remove();
    ($(".screen__bar", this.current.element) ?? this.current.element.firstElementChild).after(notice);
  }

  async showNext(entry, text) {
    if (this.hand.length) return this.show(this.hand.shift());
    if (text) return this.showAnswer(text);
    const outcome = await ask(entry.label);
    return outcome.kind === "ok" ? this.showAnswer(outcome.text) : location.assign(entry.label);
  }

  /** Another page submitted the same comparison: the person says which answer stays. */
  async answeredElsewhere(entry) {
    const other = await this.pageOf(entry);
    if (!other) return "failed";
    const choice = await this.choose(entry, other, translate("You have submitted this comparison on another page as well. Which annotation should be kept?"));
    if (choice === "mine") {
      const standsOn = $('[name="stands_on"]', other).value;
      this.outbox.put({ ...entry, fields: entry.fields.map(([name, value]) => [name, name === "stands_on" ? standsOn : value]) });
      return "again";
    }
    if (this.current.assignment === entry.assignment) await this.showNext(entry, "");
    return "done";
  }

  // ── Drafts ──────────────────────────────────────────────────────────────────────────

  async drafted(entry, outcome) {
    const keeper = this.screenOf(entry.page)?.keeper;
    const { version, stored, message } = wordsIn(outcome.text);
    if (outcome.kind === "ok" && version) return this.draftStored(entry, keeper, version);
    // It was submitted or given back meanwhile: no draft is missed, and nothing is to be asked.
    if (!this.outbox.get(entry.id)) return "done";
    if (outcome.kind === "conflict" && stored !== undefined) {
      // It is this page's own save, of which it has not heard.
      if (!stored || stored.saved_from === entry.page) return this.resend(entry, stored?.version ?? 0);
      return this.savedElsewhere(entry, stored.version);
    }
    keeper?.say(message ?? translate("not saved: the server returned {status}", outcome));
    return "done";
  }

  async draftStored(entry, keeper, version) {
    keeper?.stored(version);
    const newer = this.outbox.get(entry.id);
    if (newer && newer.stamp !== entry.stamp) return this.resend(entry, version);
    // A page that was closed before it could send this: what it kept belongs on this screen.
    if (!keeper && this.current.assignment === entry.assignment && !this.current.touched) await this.refresh(this.current);
    return "done";
  }

  resend(entry, base) {
    const newest = this.outbox.get(entry.id);
    if (!newest) return "done";
    this.outbox.put({ ...newest, base });
    return "again";
  }

  /** Another page saved the same comparison: the person says which version stays. */
  async savedElsewhere(entry, version) {
    const [other] = await Promise.all([this.pageOf(entry), import("./label-conflict.js")]);
    if (!other || !this.outbox.get(entry.id)) return "done";
    const choice = await this.choose(entry, other, translate("Another page or device has saved this comparison, too. Which version stays?"));
    const shown = this.screenOf(entry.page);
    if (choice === "mine") {
      if (shown) shown.keeper.version = version;
      return this.resend(entry, version);
    }
    if (shown) {
      shown.keeper.end();
      if (shown === this.current) this.show(this.open(other));
      else this.hand = this.hand.filter((screen) => screen !== shown);
      this.tellHand();
    }
    this.outbox.drop(entry.id);
    return "done";
  }

  /** The comparison of an entry as the server shows it now; null when it shows it no more. */
  async pageOf(entry) {
    const addresses = [entry.shownAt, $("[data-label]")?.dataset.label ?? entry.label];
    for (const address of entry.kind === "submit" || entry.revision ? addresses : addresses.reverse()) {
      const outcome = address ? await ask(address) : null;
      const page = outcome?.kind === "ok" ? fragmentOf(outcome.text) : null;
      if (page?.dataset.assignment === entry.assignment) return page;
    }
    return null;
  }

  async choose(entry, other, explanation) {
    const { choose, describe } = await import("./label-conflict.js");
    const form = $("#judgment", other);
    const { categories } = JSON.parse($("#screen-data", other).textContent);
    const mine = describe(entry.fields.filter(([name]) => !OF_THE_PAGE.has(name)), form, categories);
    return choose({ explanation, mine, theirs: describe(entered(form), form, categories) });
  }

  async refresh(screen) {
    const { label, revise } = screen.element.dataset;
    const outcome = await ask("revision" in screen.element.dataset ? revise : label);
    if (outcome.kind === "ok" && this.current === screen && !screen.touched) this.showAnswer(outcome.text);
  }

  // ── The next one, ahead of time ─────────────────────────────────────────────────────

  prepareSoon() {
    clearTimeout(this.preparing);
    this.preparing = setTimeout(() => this.prepare(), PREPARE_AFTER);
  }

  async prepare() {
    const { current } = this;
    const { next } = current.element.dataset;
    if (!next || this.hand.length || document.visibilityState !== "visible") return;
    const outcome = await ask(next);
    const element = outcome.kind === "ok" && fragmentOf(outcome.text);
    if (!element || this.current !== current || this.hand.length || "waiting" in element.dataset) return;
    const prepared = this.open(element);
    prepared.isPrepared = true;
    this.hand.push(prepared);
    this.tellHand();
  }

  /** Whether a submit will show the next one at once can be seen on the screen's element. */
  tellHand() {
    this.current.element.toggleAttribute("data-next-in-hand", this.hand.length > 0);
  }

  // ── Other forms of the screen: skip, flag ───────────────────────────────────────────

  /** A form with data-replaces goes to the server, and its answer takes the place of what it names. */
  async post(form) {
    if (form.inert) return;
    form.inert = true;
    const outcome = await ask(form.getAttribute("action"), { form: [...new FormData(form)] });
    form.inert = false;
    if (outcome.kind === "ok" || outcome.kind === "refused") this.replace(outcome, form);
    else if (outcome.kind === "signed-out") this.current.say(translate("You have been signed out. Sign in again in another tab, then try once more."), "bad");
    else this.current.say(outcome.status
      ? translate("The server refused this ({status}). Nothing here is lost: try again in a moment.", outcome)
      : translate("That did not reach the server. Nothing here is lost: try again in a moment."), "bad");
  }

  replace(outcome, form) {
    const selector = outcome.headers.get("HX-Retarget") ?? form.dataset.replaces;
    const found = fragmentOf(outcome.text, selector);
    if (selector === "#screen" && found) {
      this.current.keeper?.end();
      const next = this.hand.shift();
      return next ? this.show(next) : this.showAnswer(outcome.text);
    }
    const place = $(selector, this.current.element);
    if (!found || !place) return location.reload();
    place.replaceWith(found);
    const done = $("[data-returns]", found);
    if (done) this.returnTo(done);
    else $("[role=alert], input", found)?.focus();
  }

  /** Close the menu that was done with, show its message at the top, and go on with the comparison. */
  returnTo(message) {
    const { element } = this.current;
    message.closest(".menu").open = false;
    $(".screen__bar + [data-returns]", element)?.remove();
    $(".screen__bar", element).after(message);
    $("[data-focus]", element)?.focus({ preventScroll: true });
  }

  // ── What waits ──────────────────────────────────────────────────────────────────────

  /* `entries` are those that could not be sent, or were not taken. */
  report(state, entries) {
    const why = { away: translate("offline"), "signed-out": translate("you have been signed out") }[state];
    const mine = entries.some((entry) => entry.kind === "draft" && entry.page === this.current.keeper?.page);
    if (why && mine) this.current.keeper.say(translate("not saved: {why}, kept on this device", { why }));
    const submits = entries.filter((entry) => entry.kind === "submit" && !entry.failed).length;
    const drafts = entries.filter((entry) => entry.kind === "draft" && !entry.failed).length;
    const failed = entries.find((entry) => entry.failed);
    const waits = listed([submits && translateCount("{count} answer", "{count} answers", submits), drafts && translateCount("{count} draft", "{count} drafts", drafts)].filter(Boolean));
    const lines = [
      why && waits && (state === "away"
        ? translate("{waits} kept on this device: the server cannot be reached. What waits is sent by itself when it can.", { waits })
        : translate("{waits} kept on this device: you have been signed out. Sign in again in another tab; what waits is sent then.", { waits })),
      failed && translate("An annotation was not accepted: the server returned {status}. It is kept on this device.", { status: failed.failed }),
    ].filter(Boolean);
    $("#outbox").hidden = !lines.length;
    const text = $("[data-outbox-text]");
    if (text.textContent !== lines.join(" ")) text.textContent = lines.join(" ");
    if (why && submits && this.current.parked) this.current.say(state === "away"
      ? translate("Kept on this device: the server cannot be reached. It is sent by itself when it can.")
      : translate("Kept on this device: you have been signed out. Sign in again in another tab; it is sent then."), "bad");
  }
}
