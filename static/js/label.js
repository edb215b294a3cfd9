/* The labelling screen: what is still missing, the clock, the keys, missing info, and one screen after
   the other. Without JavaScript the form is a plain form: pairs and rankings can be judged, text cannot
   be marked, and nothing is kept before the submit. */
import { Answers, Doubts, doubtsOf } from "./label-answers.js";
import { Desk, Keeper, ask, fragmentOf, listed } from "./label-desk.js";
import { Order } from "./label-order.js";
import { Marks } from "./label-spans.js";

const IDLE_SECONDS = 60;
const RENEW_SECONDS = 120;
const LOOK_AGAIN = 3000;
/* Whether the prompt at the top stands open is remembered on this device. */
const PROMPT_KEY = "rondo-prompt-open";
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

let lastActivity = Date.now();
for (const name of ["pointermove", "pointerdown", "keydown", "scroll", "wheel", "touchstart"]) {
  document.addEventListener(name, () => { lastActivity = Date.now(); }, { passive: true, capture: true });
}

/** The name of a key press as people choose keys: "m", "?", "Enter", "Shift+ArrowLeft". */
export function nameOfKey(event) {
  if (event.key.length === 1) return event.key.toLowerCase();
  return `${event.shiftKey ? "Shift+" : ""}${event.altKey ? "Alt+" : ""}${event.key}`;
}

/** The prompt in short at the top once it has scrolled out of sight; it opens to the whole conversation. */
class PinnedPrompt {
  constructor(screen) {
    this.strip = screen.querySelector("[data-pinned]");
    this.box = this.strip.querySelector("details");
    this.prompt = screen.querySelector(".question__prompt");
    // Only what scrolls can be reached by Tab.
    this.size = new ResizeObserver(() => {
      if (this.prompt.scrollHeight > this.prompt.clientHeight + 1) this.prompt.tabIndex = 0;
      else this.prompt.removeAttribute("tabindex");
    });
    this.box.addEventListener("toggle", () => this.toggled());
  }

  /** Look from now on whether the last turn is in sight. */
  watch() {
    this.box.open = remembered();
    const bar = document.querySelector(".bar")?.offsetHeight ?? 0;
    this.observer = new IntersectionObserver(([entry]) => {
      // Out of sight below it comes with scrolling down anyway.
      this.strip.hidden = entry.isIntersecting || entry.boundingClientRect.top > bar;
      if (!this.strip.hidden) this.fill();
    }, { rootMargin: `-${bar + 8}px 0px 0px 0px` });
    this.observer.observe(this.prompt.lastElementChild);
    this.size.observe(this.prompt);
    // Of a conversation that has a scroll of its own, the last turn is what the responses answer.
    const last = this.prompt.lastElementChild;
    if (!this.seen && $$(".turn", this.prompt).length > 1) this.prompt.scrollTop += last.getBoundingClientRect().top - this.prompt.getBoundingClientRect().top;
    this.seen = true;
  }

  stop() {
    this.observer?.disconnect();
    this.size.disconnect();
  }

  /** The turns are copied when they are first needed: a long conversation costs nothing before. */
  fill() {
    const turns = this.box.querySelector("[data-pinned-turns]");
    if (turns.childElementCount || !this.box.open) return;
    turns.append(...[...this.prompt.querySelectorAll(".turn")].map((turn) => turn.cloneNode(true)));
    turns.scrollTop = turns.scrollHeight;
  }

  toggled() {
    this.fill();
    try {
      localStorage.setItem(PROMPT_KEY, this.box.open ? "yes" : "");
    } catch { /* storage is switched off: it opens folded again */ }
  }
}

function remembered() {
  try {
    return localStorage.getItem(PROMPT_KEY) === "yes";
  } catch {
    return false;
  }
}

/** One comparison on the screen. It may be put aside and come back as it was. */
class Screen {
  constructor(element, desk) {
    Object.assign(this, { element, desk, touched: false, parked: false });
    this.assignment = element.dataset.assignment;
    this.form = $("#judgment", element);
    this.button = $(".dock__submit button", element);
    this.status = $("#submit-status", element);
    this.keeper = new Keeper(element, this.form, desk.outbox);
    // A preview holds no assignment: there is nothing to keep or to send.
    this.isPreview = "preview" in element.dataset;
    // Nor does an arena keep drafts of who has no account.
    this.isUnkept = this.isPreview || "unkept" in element.dataset;
    if (this.isUnkept) this.keeper.ended = true;
    const announce = (text) => { $("#announcer", element).textContent = text; };
    const onChange = () => this.changed();
    this.data = JSON.parse($("#screen-data", element).textContent);
    this.keys = this.data.keys;
    const onRewrite = () => this.rewrite();
    this.marks = this.data.categories.length || this.data.rewrites ? new Marks(element, this.data, { announce, onChange, onRewrite, update: () => this.update() }) : null;
    this.answers = new Answers(element, this.data, { announce, onChange });
    this.announce = announce;
    if (this.data.rewrites && this.form.elements.rewrites.value !== "{}") this.openRewrites();
    this.order = $("#order", element) ? new Order(element, { announce, onChange, say: (text) => this.say(text) }) : null;
    this.steps = null;
    if ($("[data-step]", element)) this.loadSteps();
    this.prompt = new PinnedPrompt(element);
    this.doubts = new Doubts(element, this.form);
    this.dock = new ResizeObserver((entries) => {
      // What gets the focus is not to lie under the dock, nor the dock under the outbox.
      for (const { target } of entries) {
        const name = target.id === "outbox" ? "--outbox" : "--dock";
        document.documentElement.style.setProperty(name, `${Math.ceil(target.offsetHeight)}px`);
      }
    });
    this.help = null;
    if ($("#help", element)) this.loadHelp();
    this.questions = null;
    if ($("#questions", element)) this.loadQuestions();
    if (element.dataset.pastes) this.loadPastes();
    this.seconds = Number(this.form.elements.active_seconds.value) || 0;
    this.sinceRenewal = 0;
    this.form.addEventListener("input", onChange);
    this.form.addEventListener("change", onChange);
    this.form.addEventListener("focusin", (event) => {
      this.card = event.target.closest(".candidate") ?? this.card;
    });
    element.addEventListener("click", (event) => this.clicked(event));
    this.update();
  }

  /** Few screens have suggestions, and do without the part that draws them and takes them over. */
  async loadHelp() {
    const { Help } = await import("./label-help.js");
    this.help = new Help(this);
    if (this.timer) this.help.enter();
    this.update();
  }

  /** Few projects have questions of their own. */
  async loadQuestions() {
    const { Questions } = await import("./label-questions.js");
    this.questions = new Questions(this);
    this.update();
  }

  /** Few projects record what is pasted. */
  async loadPastes() {
    const { Pastes } = await import("./label-pastes.js");
    this.pastes = new Pastes(this);
  }

  /** Few screens show traces. */
  async loadSteps() {
    const { Steps } = await import("./steps.js");
    this.steps = new Steps(this.element);
  }

  enter() {
    this.timer = setInterval(() => this.tick(), 1000);
    this.help?.enter();
    this.marks?.listen();
    this.prompt.watch();
    this.dock.observe($(".dock", this.element));
    const outbox = $("#outbox", document);
    if (outbox) this.dock.observe(outbox);
    this.tick(0);
  }

  leave() {
    clearInterval(this.timer);
    this.marks?.close();
    this.help?.leave();
    this.prompt.stop();
    this.dock.disconnect();
    this.keeper.keep();
  }

  changed() {
    this.touched = true;
    // An edit names its span as it is now.
    this.rewrites?.write();
    this.rewrites?.highlight();
    this.update();
    this.keeper.changed();
  }

  // ── What is still missing ───────────────────────────────────────────────────────────

  /** Why it cannot be submitted yet, in words; empty when it can. */
  lacks() {
    return this.lacksVerdict() || this.answers.lacks() || this.questions?.lacks() || this.marks?.lacks() || this.help?.lacks() || "";
  }

  lacksVerdict() {
    if ($('input[name="choice"]:checked', this.form) || !$("#verdict", this.form)) return "";
    if (!this.order) return this.element.dataset.size === "1" || $("#verdict[data-not-asked]", this.form) 
      ? translate("Confirm that you reviewed it, or choose “cannot judge”.")
      : translate("Choose the better response, or a no-preference option.");
    if (this.order.error) return this.order.error;
    const missing = this.order.missing();
    if (!missing.length) return "";
    return missing.length === this.order.letters.length
      ? translate("Rank the responses, or choose a no-preference option.")
      : missing.length === 1
        ? translate("Rank {letters} too.", { letters: listed(missing) })
        : translate("Rank {letters}, or leave them unordered.", { letters: listed(missing) });
  }

  update() {
    const lack = this.lacks();
    this.button.setAttribute("aria-disabled", String(Boolean(lack)));
    const chosen = $('input[name="choice"]:checked', this.form)?.dataset.label;
    const doubts = this.raised();
    this.doubts.changed(doubts);
    this.help?.draw();
    const warning = lack || this.doubts.isOpen ? "" : doubts.find(({ key }) => key.startsWith("against-marks"))?.message ?? "";
    const entered = chosen ? `${chosen}.` : this.order?.words() ?? "";
    this.say(lack || warning || entered, warning ? "warn" : "");
    this.answers.showLeft();
    for (const details of $$(".missing", this.element)) {
      const rows = $$(".missing__row", details).filter((row) => !isEmpty(row)).length;
      const badge = $("[data-missing-count]", details);
      badge.textContent = String(rows);
      badge.hidden = !rows;
    }
    const cited = new Set($$('[name="missing-evidence"]', this.form).map((field) => field.value).concat($$('[name="missing-further"]', this.form).flatMap((field) => field.value.split(" "))));
    for (const sentence of $$(".sentence", this.element)) sentence.toggleAttribute("data-cited", cited.has(sentence.dataset.evidence));
  }

  say(text, tone = "") {
    if (this.status.textContent !== text) this.status.textContent = text;
    this.status.dataset.tone = tone;
  }

  /** The questions that the annotation raises as it is now. */
  raised() {
    const letters = this.data.candidates.map(({ letter }) => letter);
    const letterOf = new Map(this.data.candidates.map(({ token, letter }) => [token, letter]));
    const [, winner] = /^win:([^:]+)/.exec($('input[name="choice"]:checked', this.form)?.value ?? "") ?? [];
    const ranks = winner ? new Map(letters.map((letter) => [letter, letter === letterOf.get(winner) ? 1 : 2])) : new Map(this.order?.ranks());
    // Below all ranked ones, and not below one another.
    for (const letter of this.order?.unordered() ?? []) ranks.set(letter, Infinity);
    const polarities = new Map(this.data.categories.map(({ key, polarity }) => [key, polarity]));
    const spans = (this.marks?.flags ?? []).map(({ candidate, category, severity }) => ({ letter: letterOf.get(candidate), polarity: polarities.get(category), severity }));
    return doubtsOf({ letters, ranks, spans, isUnrated: this.answers.isUnrated() });
  }

  /** Say what is missing, else ask once what the annotation raises, else send it. */
  submit() {
    if (this.parked || this.isPreview) return;
    const lack = this.lacks();
    if (!lack) {
      if (!this.doubts.settled(this.raised())) return this.update();
      this.writeTime();
      // A review is a page of its own: nothing comes after it by itself.
      if ("plain" in this.element.dataset) return this.form.submit();
      this.desk.submit(this);
      return;
    }
    this.say(lack, "bad");
    if (this.lacksVerdict()) (this.order?.input ?? $('input[name="choice"]', this.form))?.focus();
    else if (this.answers.lacks()) this.answers.focusLack();
    else if (this.questions?.lacks()) this.questions.focusLack();
    else if (this.marks?.lacks()) this.marks.focusLack();
    else this.help?.next();
  }

  /** Sent, not yet taken by the server: a change now would be an answer under the same name. */
  park() {
    this.parked = true;
    this.form.inert = true;
    this.say(translate("Sending…"));
  }

  unpark(text) {
    this.parked = false;
    this.form.inert = false;
    this.say(text, "bad");
  }

  // ── Time at work ────────────────────────────────────────────────────────────────────

  writeTime() {
    this.form.elements.active_seconds.value = String(Math.round(this.seconds));
  }

  tick(by = 1) {
    this.keeper.show();
    const atWork = document.visibilityState === "visible" && Date.now() - lastActivity < IDLE_SECONDS * 1000;
    if (!atWork) return;
    this.seconds += by;
    this.sinceRenewal += by;
    this.writeTime();
    const minutes = Math.floor(this.seconds / 60);
    $("[data-clock]", this.element).textContent = `${String(minutes).padStart(2, "0")}:${String(this.seconds % 60).padStart(2, "0")}`;
    if (this.sinceRenewal >= RENEW_SECONDS && !this.isUnkept) this.renew();
  }

  /** Say that one is still at work on it. True unless it is someone else's now. */
  async renew() {
    this.sinceRenewal = 0;
    const outcome = await ask(this.element.dataset.renew, { form: [] });
    if (outcome.kind === "conflict") this.say(outcome.text, "bad");
    return outcome.kind !== "conflict";
  }

  // ── Clicks ──────────────────────────────────────────────────────────────────────────

  clicked(event) {
    const target = event.target.closest("[data-opens], [data-leaves], [data-adds-missing], [data-removes-missing], [data-picks-evidence], .sentence[role]");
    if (!target) {
      if (event.target.matches("dialog")) event.target.close();
      return;
    }
    if (target.dataset.opens) {
      event.preventDefault();
      $(`#${target.dataset.opens}`, this.element).showModal();
    } else if ("leaves" in target.dataset) {
      event.preventDefault();
      this.desk.goTo(target.href);
    } else if ("addsMissing" in target.dataset) {
      this.addMissing(target.closest(".missing"));
    } else if ("removesMissing" in target.dataset) {
      this.removeMissing(target.closest(".missing__row"));
    } else if ("picksEvidence" in target.dataset) {
      this.pick(target.closest(".missing__row"));
    } else {
      this.picked(target.dataset.evidence);
    }
  }

  // ── Rewrites ────────────────────────────────────────────────────────────────────────

  /** Most screens have no rewrite, and do without the part that makes them. */
  openRewrites() {
    const { marks, answers, announce } = this;
    return this.opening ??= import("./label-rewrite.js").then(({ Rewrites }) => {
      this.rewrites = new Rewrites(this.element, this.data, { marks, answers, announce, onChange: () => this.changed() });
      return this.rewrites;
    });
  }

  async rewrite() {
    if (!this.data.rewrites) return;
    const stretch = this.marks.stretch();
    if (stretch) (await this.openRewrites()).open(stretch);
    else this.say(translate("Select the text to rewrite."));
  }

  // ── Missing info ────────────────────────────────────────────────────────────────────

  openMissing() {
    const details = $(".missing", this.card ?? this.element);
    if (!details) return;
    details.open = true;
    const rows = $$(".missing__row", details);
    $("textarea", rows.find(isEmpty) ?? this.addMissing(details)).focus();
  }

  addMissing(details) {
    const row = $(".missing__row", details).cloneNode(true);
    empty(row);
    $(".missing__rows", details).append(row);
    this.answers.emptied(row);
    $("textarea", row).focus();
    return row;
  }

  removeMissing(row) {
    const details = row.closest(".missing");
    if ($$(".missing__row", details).length > 1) row.remove();
    else {
      empty(row);
      this.answers.emptied(row);
    }
    $("summary", details).focus();
    this.changed();
  }

  /** Each sentence of the context becomes a button until one is chosen. */
  pick(row) {
    this.stopPicking();
    this.picking = row;
    const passages = $("#passages", this.element);
    passages.open = true;
    $(".passages__picking", passages).hidden = false;
    for (const sentence of $$(".sentence", passages)) {
      sentence.tabIndex = 0;
      sentence.setAttribute("role", "button");
    }
    passages.scrollIntoView({ block: "nearest" });
    $(".sentence", passages).focus();
  }

  picked(value) {
    const row = this.picking;
    $('[name="missing-evidence"]', row).value = value;
    this.stopPicking();
    this.changed();
    $("textarea", row).focus();
  }

  stopPicking() {
    if (!this.picking) return false;
    $("[data-picks-evidence]", this.picking).focus();
    this.picking = null;
    $(".passages__picking", this.element).hidden = true;
    for (const sentence of $$(".sentence", this.element)) {
      sentence.removeAttribute("tabindex");
      sentence.removeAttribute("role");
    }
    return true;
  }

  // ── Keys ────────────────────────────────────────────────────────────────────────────

  key(event) {
    if ($("dialog[open]") || event.isComposing || event.defaultPrevented || this.parked) return;
    if ((event.ctrlKey || event.metaKey) && event.key === "Enter") return this.take(event, () => event.repeat || this.submitFrom(event.target));
    if (event.ctrlKey || event.metaKey) return;
    if (event.target.closest('input:not([type="radio"]), textarea, select')) {
      if (this.marks?.handleFieldKey(event)) return event.preventDefault();
      if (event.key === "Escape" && !this.stopPicking()) event.target.blur();
      return;
    }
    if (event.target.matches(".sentence[role]") && ["Enter", " "].includes(event.key)) return this.take(event, () => this.picked(event.target.dataset.evidence));
    if (event.key === "Escape" && this.stopPicking()) return;
    const vote = event.altKey && /^Digit[1-9]$/.test(event.code) && $(`[data-${event.shiftKey ? "part" : "vote"}="${event.code.at(-1)}"]`, this.element);
    if (vote) return this.take(event, () => vote.click());
    const name = nameOfKey(event);
    // A key held down is one press: it must not confirm the question that it raised.
    if (event.repeat && name === this.keys.submit && this.action(event, name)) return event.preventDefault();
    if (this.help?.handleKey(event, name)) return event.preventDefault();
    if (this.questions?.handleKey(event, name, this.keys)) return event.preventDefault();
    if (this.steps?.handleKey(event)) return event.preventDefault();
    if (this.marks?.handleKey(event, name)) return event.preventDefault();
    if (this.order?.handleChipKey(event)) return event.preventDefault();
    if (event.altKey || event.target.closest(".menu[open]")) return;
    const action = this.action(event, name);
    if (action) this.take(event, action);
    else if (this.order?.handleKey(event, name, this.keys)) event.preventDefault();
  }

  /** In Ask, Skip or Flag it is their form that is sent; anywhere else the annotation. */
  submitFrom(element) {
    const form = $("form", element.closest(".menu[open]") ?? document.createElement("div"));
    if (form) form.requestSubmit();
    else this.submit();
  }

  take(event, action) {
    event.preventDefault();
    action();
  }

  action(event, name) {
    const choice = $$('input[name="choice"]', this.form).find(({ dataset: { key, letter } }) => key === name || letter === name);
    const waitsForLetter = name === this.keys.equal && this.order?.placed.length;
    const equal = name === "5" && !this.order && this.element.dataset.size === "2" ? $('input[value="equal"]', this.form) : null;
    if ((choice || equal) && !waitsForLetter) return () => this.choose(choice ?? equal);
    // For a moment after a dialog closed, its button still has the focus; the key is not the button's.
    const onControl = !event.target.closest("dialog") && event.target.closest("a, button, summary");
    const wanted = Object.keys(ACTIONS).find((action) => this.keys[action] === name);
    if (!wanted || (["Enter", " "].includes(event.key) && onControl)) return null;
    return () => ACTIONS[wanted](this);
  }

  choose(radio) {
    radio.checked = radio.type === "radio" || !radio.checked;
    radio.dispatchEvent(new Event("change", { bubbles: true }));
  }
}

/* What a key can do; the keys themselves are each person's: annotation/services/people/shortcuts.py. */
const ACTIONS = {
  submit: (screen) => screen.submit(),
  help: (screen) => $("#keys", screen.element).showModal(),
  missing: (screen) => screen.openMissing(),
  comment: (screen) => $("#comment", screen.element)?.focus(),
  guidelines: (screen) => $("#guidelines", screen.element).showModal(),
  passages: (screen) => { const passages = $("#passages", screen.element); if (passages) passages.open = !passages.open; },
  skip: (screen) => openMenu($('[data-menu="skip"]', screen.element)),
  flag: (screen) => openMenu($('[data-menu="flag"]', screen.element)),
  rate: (screen) => screen.answers.rate(screen.card),
  edit: (screen) => screen.answers.edit(screen.card),
  rewrite: (screen) => screen.rewrite(),
  critique: (screen) => screen.answers.critique(screen.card),
  questions: (screen) => screen.questions?.next(),
  steps: (screen) => screen.steps?.focus(),
  demonstrate: (screen) => screen.answers.demonstrate(),
  undo: (screen) => $('[data-key-action="undo"]', screen.element)?.click(),
  ask: (screen) => openMenu($('[data-menu="ask"]', screen.element)),
  suggestion: (screen) => screen.help?.next(),
};

/** The menu that a key opened, by name, and what had the focus before. A sent form may replace the menu's element. */
let openedByKey = null;

function openMenu(menu) {
  if (!menu) return;
  openedByKey = { name: menu.dataset.menu, before: document.activeElement };
  menu.open = true;
  $("input[type=radio], textarea", menu)?.focus();
}

// Esc puts the focus on the menu's button, where the next Enter would open it again.
document.addEventListener("toggle", ({ target: menu }) => {
  if (!openedByKey || menu.open || menu.dataset?.menu !== openedByKey.name) return;
  const { before } = openedByKey;
  openedByKey = null;
  const isOnButton = () => document.activeElement === $("summary", menu);
  if (isOnButton() && before?.isConnected && before !== document.body) before.focus({ preventScroll: true });
  if (isOnButton()) $("[data-focus]")?.focus({ preventScroll: true });
}, true);

const isEmpty = (row) => !$("textarea", row).value.trim() && !$$('[name="missing-evidence"], [name="missing-further"], [name="missing-insert"]', row).some((field) => field.value);

function empty(row) {
  $("textarea", row).value = "";
  $('[name="missing-evidence"]', row).value = "";
}

/** Nothing to label right now: looks again by itself. */
class Waiting {
  constructor(element, desk) {
    Object.assign(this, { element, desk, isWaiting: true });
  }

  enter() {
    this.timer = setInterval(() => this.look(), LOOK_AGAIN);
  }

  leave() {
    clearInterval(this.timer);
  }

  async look() {
    if (this.looking) return;
    this.looking = true;
    const outcome = await ask(this.element.dataset.waiting);
    this.looking = false;
    const next = outcome.kind === "ok" && this.desk.current === this && fragmentOf(outcome.text);
    if (next) this.desk.show(this.desk.open(next));
  }

  key() {}
}

/* A page of a conversation has two more screens: the next message, and the responses on their way. */
const { Talk } = $("#screen").dataset.conversation === undefined ? {} : await import("./label-talk.js");

function open(element, its) {
  if ("waiting" in element.dataset) return new Waiting(element, its);
  return "talk" in element.dataset ? new Talk(element, its) : new Screen(element, its);
}

const desk = new Desk(open);
document.addEventListener("keydown", (event) => desk.current.key(event));
document.addEventListener("submit", (event) => {
  const form = event.target;
  if ((form.id !== "judgment" && !form.dataset.replaces) || event.submitter?.name === "take") return;
  event.preventDefault();
  if (form.id === "judgment") desk.current.submit();
  else desk.post(form);
});
// Whoever goes away may not come back: what stands in the fields is written down at once.
addEventListener("pagehide", () => desk.current.keeper?.keep());
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "hidden") desk.current.keeper?.keep();
  else desk.prepareSoon();
});
