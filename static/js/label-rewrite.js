/* Labelling screen, loaded when the first text is rewritten: a stretch of a response is typed again in place,
   and the model that wrote it may continue from there. A rewritten response is a row of runs: each keeps a
   stretch [start, end) of the original, or replaced one; positions count code points. The text goes into the
   response's edit field, the edits with their origins into the field `rewrites`. Without JavaScript the edit
   field alone is there. */
import { ask } from "./label-desk.js";
import { difference } from "./label-difference.js";
import { Answer, position } from "./label-spans.js";

const PATIENCE = 90_000;
const TYPED_AFTER = 150;
const $ = (selector, root) => root.querySelector(selector);
const textOf = (runs) => runs.map(({ points }) => points.join("")).join("");
const plain = (text) => text.replace(/\r\n?/g, "\n");

/** The runs before and from a place of the rewritten text on. What has no text there comes before. */
function cut(runs, at) {
  const head = [];
  for (const [index, run] of runs.entries()) {
    if (run.points.length > at) {
      if (!at) return [head, runs.slice(index)];
      const middle = run.kept ? run.start + at : run.end;
      const before = { ...run, end: middle, points: run.points.slice(0, at) };
      const after = { ...run, start: middle, points: run.points.slice(at) };
      return [[...head, before], [after, ...runs.slice(index + 1)]];
    }
    head.push(run);
    at -= run.points.length;
  }
  return [head, []];
}

/** Replace [from, to) of the rewritten text. */
function spliced(runs, from, to, text, origin) {
  const [head, rest] = cut(runs, from);
  const [gone, tail] = cut(rest, to - from);
  const start = head.at(-1)?.end ?? 0;
  const end = gone.at(-1)?.end ?? start;
  const inherited = { continuation: null, flag: gone.find(({ flag }) => flag)?.flag ?? null };
  return [...head, { start, end, points: Array.from(text), kept: false, ...inherited, ...origin }, ...tail];
}

function kept(points, start, end) {
  return { start, end, points: points.slice(start, end), kept: true };
}

/** Where [start, end) of the original stands in the rewritten text; null where it was changed. */
function placeOf(runs, start, end) {
  let before = 0;
  for (const run of runs) {
    if (run.kept && run.start <= start && end <= run.end) return [before + start - run.start, before + end - run.start];
    before += run.points.length;
  }
  return null;
}

/** What was typed into the edit field after the rewrites, as rewrites by hand. */
function retyped(runs, value) {
  const raw = textOf(runs).match(/\r\n|[\s\S]/gu) ?? [];
  const places = [0];
  for (const part of raw) places.push(places.at(-1) + Array.from(part).length);
  const changes = [];
  let at = 0;
  for (const [kind, text] of difference(raw.map(plain).join(""), value)) {
    const length = Array.from(text).length;
    if (kind === "inserted" && changes.at(-1)?.to === at) changes.at(-1).text += text;
    else if (kind === "inserted") changes.push({ from: at, to: at, text });
    else {
      if (kind === "deleted") changes.push({ from: at, to: at + length, text: "" });
      at += length;
    }
  }
  return changes.reverse().reduce((left, { from, to, text }) => spliced(left, places[from], places[to], text, {}), runs);
}

/** The DOM ranges of [start, end) of a response. */
function rangesOf(answer, start, end) {
  return answer.leaves.filter((leaf) => leaf.start < end && leaf.start + leaf.points.length > start).map((leaf) => {
    const range = document.createRange();
    if (leaf.whole) {
      range.selectNodeContents(leaf.element);
      return range;
    }
    const unit = (point) => leaf.points.slice(0, Math.max(0, point - leaf.start)).join("").length;
    range.setStart(...position(leaf.element, unit(start)));
    range.setEnd(...position(leaf.element, unit(Math.min(end, leaf.start + leaf.points.length))));
    return range;
  });
}

export class Rewrites {
  constructor(screen, data, { marks, answers, announce, onChange }) {
    Object.assign(this, { screen, marks, answers, announce, onChange, panel: null });
    this.field = $('input[name="rewrites"]', screen);
    this.sources = new Map(data.candidates.map(({ token, source }) => [token, Array.from(source)]));
    this.letters = new Map(data.candidates.map(({ token, letter }) => [token, letter]));
    this.runs = this.stored();
    screen.addEventListener("input", ({ target }) => {
      if (target.name?.startsWith("correction-")) this.typedSoon(target.name.slice("correction-".length));
    });
    for (const token of this.runs.keys()) this.draw(token);
  }

  stored() {
    const found = new Map();
    for (const [token, edits] of Object.entries(JSON.parse(this.field.value || "{}"))) {
      const points = this.sources.get(token);
      if (!points) continue;
      const runs = [];
      let done = 0;
      for (const { start, end, text, continuation = null, span = null } of edits) {
        const flag = span && this.marks.flags.find((one) => one.candidate === token
          && one.category === span.category && one.start === span.start && one.end === span.end);
        runs.push(kept(points, done, start), { start, end, points: Array.from(text), kept: false, continuation, flag });
        done = end;
      }
      found.set(token, [...runs, kept(points, done, points.length)].filter((run) => !run.kept || run.points.length));
    }
    return found;
  }

  /** Into the form, as annotation/forms/judgment.py reads it. */
  write() {
    const rewrites = {};
    for (const [token, runs] of this.runs) {
      rewrites[token] = runs.filter((run) => !run.kept).map(({ start, end, points, continuation, flag }) => {
        const { category, start: from, end: to } = this.marks.flags.includes(flag) ? flag : {};
        return { start, end, text: points.join(""), continuation, span: category ? { category, start: from, end: to } : null };
      });
    }
    this.field.value = JSON.stringify(rewrites);
  }

  details(token) {
    return $(`[data-candidate="${token}"] .correction`, this.screen);
  }

  /** The runs of a response, with what was typed into its edit field since. */
  current(token) {
    const points = this.sources.get(token);
    const runs = this.runs.get(token) ?? [kept(points, 0, points.length)];
    const { value } = $("textarea", this.details(token));
    return plain(textOf(runs)) === value ? runs : retyped(runs, value);
  }

  typedSoon(token) {
    clearTimeout(this.typing);
    if (this.runs.has(token)) this.typing = setTimeout(() => this.take(token, this.current(token)), TYPED_AFTER);
  }

  /** Take over the runs of a response: into the form, its edit field and what is shown. */
  take(token, runs) {
    if (textOf(runs) === this.sources.get(token).join("")) this.runs.delete(token);
    else this.runs.set(token, runs);
    const field = $("textarea", this.details(token));
    const text = plain(textOf(runs));
    if (field.value !== text) field.value = text;
    this.draw(token);
    this.write();
    this.answers.compare(this.details(token));
    this.onChange();
  }

  // ── The rewritten text ──────────────────────────────────────────────────────────────

  draw(token) {
    const block = $(`[data-rewritten="${token}"]`, this.screen);
    const shown = $("[data-rewritten-text]", block);
    const runs = this.runs.get(token);
    block.hidden = !runs;
    let at = 0;
    shown.replaceChildren(...(runs ?? []).filter(({ points }) => points.length).map((run) => {
      const piece = document.createElement(run.kept ? "span" : "ins");
      piece.dataset.start = String(at);
      if (run.continuation) piece.dataset.byModel = "";
      piece.textContent = run.points.join("");
      at += run.points.length;
      return piece;
    }));
    const name = `rewritten-${token}`;
    if (runs) this.marks.answers.set(name, new Answer(shown, { token: name, letter: this.letters.get(token), source: textOf(runs), of: token }));
    else this.marks.answers.delete(name);
    this.highlight();
  }

  /** What was replaced is struck through, and what is being rewritten stands out, where the browser can. */
  highlight() {
    if (!globalThis.CSS?.highlights) return;
    const replaced = [...this.runs].flatMap(([token, runs]) => runs.filter((run) => !run.kept && run.end > run.start)
      .flatMap((run) => rangesOf(this.marks.answers.get(token), run.start, run.end)));
    CSS.highlights.set("replaced", new Highlight(...replaced));
    const { answer, start, end } = this.stretch ?? {};
    CSS.highlights.set("rewriting", new Highlight(...(answer ? rangesOf(answer, start, end) : [])));
  }

  // ── Rewriting a stretch ─────────────────────────────────────────────────────────────

  /** Open the field in which a stretch is typed again: below the paragraph in which it ends. */
  open(stretch) {
    this.close();
    const { answer, start, end, flag } = stretch;
    const token = answer.of ?? answer.token;
    const runs = this.current(token);
    const place = answer.of ? [start, end] : placeOf(runs, start, end);
    if (!place) return this.announce(translate("This is rewritten already. Select it in the rewritten text below."));
    this.stretch = { answer, start, end };
    this.at = { token, runs, from: place[0], to: place[1], flag, category: "" };
    this.panel = document.importNode($("[data-rewriter-template]", this.screen).content, true).firstElementChild;
    this.bind();
    let block = answer.leaves.findLast((leaf) => leaf.start < end).element;
    while (block.parentElement !== answer.element && block !== answer.element) block = block.parentElement;
    (answer.of ? answer.element : block).after(this.panel);
    const field = $("textarea", this.panel);
    field.value = plain(this.text.slice(...place).join(""));
    this.showCategories(answer, flag);
    getSelection().removeAllRanges();
    field.focus();
    field.select();
    this.highlight();
    this.askWhetherOffered();
  }

  get text() {
    return this.at.runs.flatMap(({ points }) => points);
  }

  showCategories(answer, flag) {
    const row = $("[data-rewrite-categories]", this.panel);
    const mended = $("[data-mends]", this.panel);
    mended.hidden = !flag;
    if (flag) mended.textContent = translate("Mends the span: {label}", { label: this.marks.label(flag.category) });
    row.hidden = Boolean(flag || answer.of || !this.marks.categories.length);
    if (row.hidden) return;
    row.append(...this.marks.categories.map(({ key, label }) => {
      const button = document.createElement("button");
      Object.assign(button, { type: "button", className: "chip chip--button" });
      button.dataset.category = key;
      button.setAttribute("aria-pressed", "false");
      const dot = document.createElement("span");
      dot.className = "dot";
      button.append(dot, label);
      return button;
    }));
  }

  bind() {
    this.panel.addEventListener("click", (event) => {
      const { dataset } = event.target.closest("button") ?? { dataset: {} };
      if (dataset.category) this.choose(dataset.category);
      else if (dataset.rewrite) this[dataset.rewrite]();
    });
    this.panel.addEventListener("input", () => this.drop());
    this.panel.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      // Keys of the screen do not count in here.
      event.stopPropagation();
      const inField = event.target.matches("textarea");
      if (event.key === "Escape") event.preventDefault();
      if (event.key === "Escape") return this.proposal ? this.drop() : this.cancel();
      if (event.key !== "Enter" || event.shiftKey) return;
      if (event.ctrlKey || event.metaKey) this.proceed();
      else if (inField) this.apply();
      else return;
      event.preventDefault();
    });
  }

  choose(category) {
    this.at.category = this.at.category === category ? "" : category;
    for (const button of this.panel.querySelectorAll("[data-category]")) {
      button.setAttribute("aria-pressed", String(button.dataset.category === this.at.category));
    }
  }

  close() {
    this.panel?.remove();
    this.panel = this.stretch = this.proposal = null;
  }

  cancel() {
    const { answer } = this.stretch;
    this.close();
    this.highlight();
    answer.element.focus({ preventScroll: true });
  }

  /** The stretch is what was typed; with a proposal, what follows is the model's. */
  apply() {
    const { token, runs, from, to, category } = this.at;
    const { answer, start, end } = this.stretch;
    const typed = $("textarea", this.panel).value;
    const { proposal } = this;
    const isSame = plain(this.text.slice(from, to).join("")) === typed;
    this.close();
    const flag = category ? this.marks.add(answer, category, start, end) : this.at.flag;
    let changed = isSame ? runs : spliced(runs, from, to, typed, flag ? { flag } : {});
    if (proposal) {
      const place = isSame ? to : from + Array.from(typed).length;
      changed = spliced(changed, place, Array.from(textOf(changed)).length, proposal.text, { continuation: proposal.id, flag: null });
    }
    this.take(token, changed);
    (this.marks.answers.get(`rewritten-${token}`) ?? answer).element.focus();
    this.announce(translate("Rewritten in {letter}", { letter: this.letters.get(token) }));
  }

  // ── The model continues ─────────────────────────────────────────────────────────────

  note(text) {
    $("[data-rewrite-note]", this.panel).textContent = text;
  }

  async askWhetherOffered() {
    const { panel } = this;
    const { continues } = this.screen.dataset;
    this.offered ??= continues ? ask(continues).then(({ kind, text }) => kind === "ok" ? JSON.parse(text) : { offered: false, message: "" }) : Promise.resolve({ offered: false, message: "" });
    const { offered, message } = await this.offered;
    if (!offered) this.offered = null;
    if (panel !== this.panel) return;
    $('[data-rewrite="proceed"]', panel).hidden = !offered;
    this.note(message);
  }

  /** Have the model go on from the end of the rewrite; again, with another seed. */
  async proceed() {
    const { panel, at } = this;
    const button = $('[data-rewrite="proceed"]', panel);
    if (button.hidden || panel.ariaBusy === "true") return;
    const typed = $("textarea", panel).value;
    const prefix = this.text.slice(0, at.from).join("") + typed;
    panel.ariaBusy = "true";
    this.note(translate("The model is writing…"));
    const outcome = await ask(this.screen.dataset.continues, { form: [["candidate", at.token], ["prefix", prefix]], patience: PATIENCE });
    if (panel !== this.panel) return;
    panel.ariaBusy = "false";
    if ($("textarea", panel).value !== typed) return this.note("");
    if (outcome.kind === "ok") return this.propose(JSON.parse(outcome.text));
    const refused = outcome.kind === "refused" ? JSON.parse(outcome.text).message : "";
    this.note(refused || translate("The model could not be reached. Try again, or write the rest yourself."));
  }

  propose(proposal) {
    this.proposal = proposal;
    const text = proposal.text || translate("The response ends here.");
    $("[data-proposed]", this.panel).textContent = text;
    this.showProposal(true);
    this.note("");
    $('[data-rewrite="apply"]', $("[data-proposal]", this.panel)).focus();
    this.announce(translate("The model proposes: {text}", { text }));
  }

  drop() {
    if (!this.proposal) return;
    this.proposal = null;
    this.showProposal(false);
    $("textarea", this.panel).focus();
  }

  showProposal(isShown) {
    $("[data-proposal]", this.panel).hidden = !isShown;
    $("[data-rewrite-actions]", this.panel).hidden = isShown;
  }
}
