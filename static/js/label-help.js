/* Labelling screen, loaded in a final pass: the suggestions of a model. Their spans are drawn without a change
   to the text that positions are read from: by the CSS Custom Highlight API, or by boxes above the text where a
   browser lacks it. An accepted suggestion is taken over into the form at once; a rejected one is taken out. */
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const NAMES = ["suggestion", "suggestion-focused"];

/** Draws ranges of text under two names, by highlights of the browser. */
class Highlights {
  draw(ranges, focused) {
    CSS.highlights.set(NAMES[0], new Highlight(...ranges));
    CSS.highlights.set(NAMES[1], new Highlight(...focused));
  }

  clear() {
    for (const name of NAMES) CSS.highlights.delete(name);
  }
}

/** The same by boxes that lie above the text, outside of it. */
class Boxes {
  constructor(screen) {
    this.layer = document.createElement("div");
    this.layer.className = "help-boxes";
    this.layer.setAttribute("aria-hidden", "true");
    screen.append(this.layer);
    this.observer = new ResizeObserver(() => this.place());
    this.observer.observe(screen);
  }

  draw(ranges, focused) {
    this.drawn = [[ranges, NAMES[0]], [focused, NAMES[1]]];
    this.place();
  }

  place() {
    const origin = this.layer.getBoundingClientRect();
    const boxes = (this.drawn ?? []).flatMap(([ranges, name]) => ranges.flatMap((range) => [...range.getClientRects()].map((rect) => {
      const box = document.createElement("span");
      box.className = name;
      Object.assign(box.style, { left: `${rect.left - origin.left}px`, top: `${rect.top - origin.top}px`, width: `${rect.width}px`, height: `${rect.height}px` });
      return box;
    })));
    this.layer.replaceChildren(...boxes);
  }

  clear() {
    this.observer.disconnect();
    this.layer.remove();
  }
}

export class Help {
  constructor(screen) {
    Object.assign(this, { screen, form: screen.form, keys: screen.keys, marks: screen.marks });
    this.panel = $("#help", screen.element);
    this.suggestions = screen.data.suggestions;
    this.items = new Map($$("[data-suggestion]", this.panel).map((item) => [item.dataset.suggestion, item]));
    this.times = timesIn(this.form.elements.suggestion_times.value);
    this.applied = new Map();
    this.form.elements.suggestions_applied.value = "1";
    for (const item of this.items.values()) item.tabIndex = 0;
    this.panel.addEventListener("change", (event) => {
      const item = event.target.closest("[data-suggestion]");
      if (item) this.decided(item, event.target.value);
    });
    this.panel.addEventListener("focusin", (event) => this.focused(event.target.closest("[data-suggestion]")));
    this.panel.addEventListener("focusout", () => this.focused(null));
    // What a draft had accepted already stands in the form.
    for (const suggestion of this.suggestions) {
      if (this.decisionOf(suggestion) === "accepted") this.applied.set(suggestion.id, () => this.takeOut(suggestion));
    }
  }

  enter() {
    this.last = performance.now();
    this.painter = globalThis.Highlight && globalThis.CSS?.highlights ? new Highlights() : new Boxes(this.screen.element);
    this.draw();
    if (!$("[data-focus-first]", this.screen.element)) this.next();
  }

  leave() {
    this.painter?.clear();
    this.painter = null;
  }

  // ── Decisions ───────────────────────────────────────────────────────────────────────

  decisionOf(suggestion) {
    return $("input:checked", this.items.get(String(suggestion.id)))?.value ?? "";
  }

  left() {
    return this.suggestions.filter((suggestion) => !this.decisionOf(suggestion));
  }

  lacks() {
    const left = this.left().length;
    return left ? translateCount("Decide on the suggestion: {count} is left.", "Decide on the suggestions: {count} are left.", left) : "";
  }

  decide(item, value) {
    const radio = $(`input[value="${value}"]`, item);
    if (radio.checked && value !== "changed") return this.next();
    radio.checked = true;
    radio.dispatchEvent(new Event("change", { bubbles: true }));
    if (value !== "changed") this.next();
    return null;
  }

  decided(item, value) {
    const suggestion = this.suggestions.find(({ id }) => String(id) === item.dataset.suggestion);
    const now = performance.now();
    this.times[suggestion.id] = [Math.round(now - this.last) / 1000, Date.now()];
    this.last = now;
    this.form.elements.suggestion_times.value = JSON.stringify(this.times);
    if (value === "rejected") {
      this.applied.get(suggestion.id)?.();
      this.applied.delete(suggestion.id);
    } else if (!this.applied.has(suggestion.id)) this.applied.set(suggestion.id, this.apply(suggestion));
    this.screen.changed();
    const words = { accepted: translate("Accepted"), changed: translate("Accepted, to be changed"), rejected: translate("Rejected") };
    $("#announcer", this.screen.element).textContent = `${words[value]}. ${this.lacks() || translate("All suggestions are decided.")}`;
    if (value === "changed") this.edit(suggestion);
  }

  // ── Taking over ─────────────────────────────────────────────────────────────────────

  /** Put a suggestion into the form; returns what takes it out again. */
  apply(suggestion) {
    return { span: () => this.addSpan(suggestion), missing: () => this.addMissing(suggestion), critique: () => this.addCritique(suggestion), preference: () => this.prefer(suggestion) }[suggestion.kind]();
  }

  takeOut(suggestion) {
    if (suggestion.kind === "span") this.removeSpan(suggestion);
    else if (suggestion.kind === "missing") this.rowOf(suggestion)?.querySelector("[data-removes-missing]").click();
    else if (suggestion.kind === "critique") this.dropCritique(suggestion);
  }

  same(suggestion) {
    return (flag) => flag.candidate === suggestion.candidate && flag.category === suggestion.category && flag.start === suggestion.start && flag.end === suggestion.end;
  }

  addSpan(suggestion) {
    const { marks } = this;
    // One's own mark stays whatever is decided about a suggestion that says the same.
    if (!marks || marks.flags.some(this.same(suggestion))) return () => {};
    const { candidate, category, start, end, severity } = suggestion;
    marks.flags.push({ id: String(marks.nextId++), candidate, category, start, end, severity, note: "", relations: [] });
    marks.changed(marks.answers.get(candidate));
    return () => this.removeSpan(suggestion);
  }

  removeSpan(suggestion) {
    this.marks.flags = this.marks.flags.filter((flag) => !this.same(suggestion)(flag));
    this.marks.changed(this.marks.answers.get(suggestion.candidate));
  }

  card(suggestion) {
    return $(`[data-candidate="${suggestion.candidate}"]`, this.screen.element);
  }

  addMissing(suggestion) {
    const details = $(".missing", this.card(suggestion));
    const rows = $$(".missing__row", details);
    details.open = true;
    const row = rows.find((each) => !$("textarea", each).value.trim()) ?? this.screen.addMissing(details);
    $('[name="missing-category"]', row).value = suggestion.category;
    $("textarea", row).value = suggestion.text;
    return () => this.takeOut(suggestion);
  }

  rowOf(suggestion) {
    return $$(".missing__row", this.card(suggestion)).find((row) => $("textarea", row).value === suggestion.text);
  }

  critiqueOf(suggestion) {
    return $(`#critique-${suggestion.candidate}`, this.form);
  }

  addCritique(suggestion) {
    const field = this.critiqueOf(suggestion);
    if (field.value.includes(suggestion.text)) return () => {};
    field.value = [field.value.trimEnd(), suggestion.text].filter(Boolean).join("\n\n");
    return () => this.dropCritique(suggestion);
  }

  dropCritique(suggestion) {
    const field = this.critiqueOf(suggestion);
    field.value = field.value.replace(suggestion.text, "").trim();
  }

  /** Prefer as suggested; who prefers the same already keeps the strength that they chose. */
  prefer(suggestion) {
    const before = $('input[name="choice"]:checked', this.form);
    const { order } = this.screen;
    if (suggestion.choice) {
      const [, winner] = suggestion.choice.split(":");
      if (winner && before?.value.startsWith(`win:${winner}`)) return () => {};
      this.screen.choose($$('input[name="choice"]', this.form).find((radio) => radio.value === suggestion.choice));
      return () => before && this.screen.choose(before);
    }
    const ranks = order.ranks();
    const rest = order.rest.checked;
    const suggested = new Map(Object.entries(suggestion.ranks));
    order.set(suggested, { rest: suggested.size < order.letters.length });
    return () => before ? this.screen.choose(before) : order.set(ranks, { rest });
  }

  /** Where an accepted suggestion is changed: its mark, its field, or the preference. */
  edit(suggestion) {
    const flag = this.marks?.flags.find(this.same(suggestion));
    const place = {
      span: () => flag && this.marks.first(flag.id),
      missing: () => this.rowOf(suggestion)?.querySelector("textarea"),
      critique: () => this.critiqueOf(suggestion),
      preference: () => this.screen.order?.input ?? $('input[name="choice"]:checked', this.form),
    }[suggestion.kind]();
    place?.focus();
  }

  // ── Walking and drawing ─────────────────────────────────────────────────────────────

  focused(item) {
    this.current = item && this.suggestions.find(({ id }) => String(id) === item.dataset.suggestion);
    this.draw();
    // Below one another, a scroll to the text would take the suggestion out of sight; its quote is there.
    const isBeside = this.panel.getBoundingClientRect().left > $(".candidates", this.screen.element).getBoundingClientRect().left;
    if (!isBeside) return;
    const range = this.current && this.rangeOf(this.current);
    const place = range?.startContainer.parentElement ?? (this.current?.candidate ? this.card(this.current) : null);
    place?.scrollIntoView({ block: "nearest" });
  }

  /** Go to the next suggestion without a decision; to the button once there is none. */
  next() {
    const left = this.left();
    const at = this.suggestions.indexOf(this.current);
    const wanted = left.find((suggestion) => this.suggestions.indexOf(suggestion) > at) ?? left[0];
    if (wanted) this.items.get(String(wanted.id)).focus();
    else this.screen.button.focus();
  }

  walk(item, by) {
    const items = [...this.items.values()];
    items[items.indexOf(item) + by]?.focus();
  }

  handleKey(event, name) {
    const item = event.target.closest?.("[data-suggestion]");
    if (!item || event.altKey) return false;
    const { keys } = this;
    if (name === keys.suggestion_accept) this.decide(item, "accepted");
    else if (name === keys.suggestion_change) this.decide(item, "changed");
    else if (name === keys.suggestion_reject) this.decide(item, "rejected");
    else if (name === keys.suggestion_next) this.walk(item, 1);
    else if (name === keys.suggestion_previous) this.walk(item, -1);
    else return false;
    return true;
  }

  rangeOf(suggestion) {
    if (suggestion.kind !== "span") return null;
    return this.marks?.answers.get(suggestion.candidate)?.rangeOf(suggestion.start, suggestion.end) ?? null;
  }

  /** The spans without a decision, and the one that has the focus. Marks cut texts anew: so do the ranges. */
  draw() {
    const left = this.left();
    $("[data-help-left]", this.panel).textContent = String(left.length);
    for (const suggestion of this.suggestions) this.items.get(String(suggestion.id)).dataset.decision = this.decisionOf(suggestion);
    if (!this.painter) return;
    const ranges = left.map((suggestion) => this.rangeOf(suggestion)).filter(Boolean);
    const focused = this.current ? [this.rangeOf(this.current)].filter(Boolean) : [];
    this.painter.draw(ranges, focused);
  }
}

function timesIn(text) {
  try {
    return JSON.parse(text) ?? {};
  } catch {
    return {};
  }
}
