/* Labelling screen: ratings by digits, corrections with their difference, more evidence, the place where
   missing info belongs, notices, questions before a submit. Without JavaScript all but the place
   and the live difference is there. What compares and what points at places comes when it is first needed. */
const DIFFERENCE_AFTER = 120;
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const plain = (text) => text.replace(/\r\n?/g, "\n");

export class Answers {
  constructor(screen, data, { announce, onChange }) {
    Object.assign(this, { screen, data, announce, onChange, places: null });
    this.form = $("#judgment", screen);
    this.sources = new Map(data.candidates.map(({ token, source }) => [token, plain(source)]));
    if ($$('[name="missing-insert"]', screen).some((field) => field.value)) this.openPlaces();
    screen.addEventListener("keydown", (event) => this.key(event));
    screen.addEventListener("click", (event) => this.clicked(event));
    screen.addEventListener("input", (event) => this.typed(event));
    screen.addEventListener("toggle", (event) => this.opened(event.target), true);
    for (const row of $$(".missing__row", screen)) this.showFurther(row);
  }

  /** What a part needs is there before it is asked for. */
  opened(details) {
    if (details.matches(".missing[open]")) this.openPlaces();
    else if (details.matches(".correction[open]")) import("./label-difference.js");
  }

  // ── What is still missing ───────────────────────────────────────────────────────────

  groups() {
    return $$("[data-rating]", this.form);
  }

  /** Why it cannot be submitted yet, in words; empty when it can. */
  lacks() {
    if ($('input[name="choice"][value="cannot_judge"]:checked', this.form)) return "";
    const groups = this.groups();
    const left = groups.filter((group) => !$("input:checked", group));
    const asksVerdict = Boolean($('input[name="choice"]:not([value="cannot_judge"])', this.form));
    if (left.length && left.length < groups.length) return left.length === 1
      ? translate("Still to be rated: {name}.", { name: left[0].getAttribute("aria-label") })
      : translate("Still to be rated: {left} of {all}.", { left: left.length, all: groups.length });
    if (asksVerdict || $("#order", this.form)) return "";
    if (left.length) return translate("Rate the responses, or choose “cannot judge”.");
    const own = $("#demonstration", this.form);
    return own && !groups.length && !own.value.trim() ? translate("Write your own response, or choose “cannot judge”.") : "";
  }

  /** Whether there are criteria and no response is rated, though the responses could be judged. */
  isUnrated() {
    const cannot = $('input[name="choice"][value="cannot_judge"]:checked', this.form);
    return !cannot && this.groups().length > 0 && !this.groups().some((group) => $("input:checked", group));
  }

  /** How many ratings are there, in the dock: the ratings themselves may be out of sight. */
  showLeft() {
    const button = $("[data-ratings-left]", this.form);
    if (!button) return;
    const groups = this.groups();
    const rated = groups.filter((group) => $("input:checked", group)).length;
    $("[data-rated]", button).textContent = String(rated);
    button.toggleAttribute("data-done", rated === groups.length);
  }

  focusLack() {
    const group = this.groups().find((each) => !$("input:checked", each));
    (group ? $("input", group) : $("#demonstration", this.form))?.focus();
  }

  // ── Keys of the screen ──────────────────────────────────────────────────────────────

  rate(card) {
    const groups = card ? $$("[data-rating]", card) : [];
    const candidates = groups.length ? groups : this.groups();
    const group = candidates.find((each) => !$("input:checked", each)) ?? candidates[0];
    if (group) $("input:checked, input", group).focus();
  }

  edit(card) {
    const details = $(".correction", card ?? this.screen);
    if (!details) return;
    details.open = true;
    $("textarea", details).focus();
  }

  critique(card) {
    ($(".critique textarea", card ?? this.screen) ?? $(".critique textarea", this.screen))?.focus();
  }

  demonstrate() {
    $("#demonstration", this.screen)?.focus();
  }

  /** In a row of ratings a digit rates and goes on to the next; Backspace takes the rating back. */
  key(event) {
    const group = event.target.closest?.("[data-rating]");
    if (!group || event.ctrlKey || event.metaKey || event.altKey) return;
    const thumbs = { "-": "0", "+": "1" };
    const value = thumbs[event.key] ?? event.key;
    if (event.key === "Backspace" || event.key === "Delete") {
      for (const radio of $$("input", group)) radio.checked = false;
      $("input", group).focus();
    } else {
      const radio = $$("input", group).find((each) => each.value === value);
      if (!radio) return;
      radio.checked = true;
      radio.focus();
      const groups = this.groups();
      const next = groups[groups.indexOf(group) + 1];
      if (next) $("input:checked, input", next).focus();
    }
    event.preventDefault();
    group.dispatchEvent(new Event("change", { bubbles: true }));
  }

  // ── Corrections ─────────────────────────────────────────────────────────────────────

  typed(event) {
    const details = event.target.closest(".correction");
    if (!details) return;
    clearTimeout(this.comparing);
    this.comparing = setTimeout(() => this.compare(details), DIFFERENCE_AFTER);
  }

  async compare(details) {
    const { difference } = await import("./label-difference.js");
    const field = $("textarea", details);
    const source = this.sources.get(details.closest(".candidate").dataset.candidate);
    const pieces = field.value === source ? [] : difference(source, field.value);
    const shown = $("[data-changes]", details);
    shown.replaceChildren(...pieces.map(([kind, text]) => {
      if (kind === "same") return document.createTextNode(text);
      const element = document.createElement(kind === "inserted" ? "ins" : "del");
      element.textContent = text;
      return element;
    }));
    for (const element of [shown, $("[data-restores]", details), $("[data-edited]", details)]) element.hidden = !pieces.length;
  }

  restore(details) {
    const field = $("textarea", details);
    field.value = this.sources.get(details.closest(".candidate").dataset.candidate);
    field.dispatchEvent(new Event("input", { bubbles: true }));
    this.compare(details);
    field.focus();
  }

  // ── Missing info ────────────────────────────────────────────────────────────────────

  async openPlaces() {
    this.places ??= import("./label-places.js").then(({ Places }) => new Places(this.screen, this.data, this));
    return this.places;
  }

  clicked(event) {
    const target = event.target.closest("[data-ratings-left], [data-places], [data-restores], [data-adds-evidence], [data-removes-evidence], [data-dismisses]");
    if (!target) return;
    const row = target.closest(".missing__row");
    if ("ratingsLeft" in target.dataset) this.focusLack();
    else if ("places" in target.dataset) this.openPlaces().then((places) => places.begin(row));
    else if ("restores" in target.dataset) this.restore(target.closest(".correction"));
    else if ("addsEvidence" in target.dataset) this.addEvidence(row);
    else if ("removesEvidence" in target.dataset) this.removeEvidence(row, target.dataset.removesEvidence);
    else {
      $(target.dataset.dismisses, this.screen)?.remove();
      $("[data-focus]", this.screen)?.focus({ preventScroll: true });
    }
  }

  further(row) {
    return $('[name="missing-further"]', row).value.split(" ").filter(Boolean);
  }

  /** What is chosen stays as one more piece of evidence, and another can be chosen. */
  addEvidence(row) {
    const field = $('[name="missing-evidence"]', row);
    if (field.value) {
      this.keepFurther(row, [...new Set([...this.further(row), field.value])]);
      field.value = "";
    }
    field.focus();
  }

  removeEvidence(row, value) {
    this.keepFurther(row, this.further(row).filter((each) => each !== value));
    $('[name="missing-evidence"]', row).focus();
  }

  keepFurther(row, values) {
    $('[name="missing-further"]', row).value = values.join(" ");
    this.showFurther(row);
    this.onChange();
  }

  showFurther(row) {
    const list = $("[data-further]", row);
    if (!list) return;
    const options = $$('[name="missing-evidence"] option', row);
    list.replaceChildren(...this.further(row).map((value) => {
      const text = options.find((option) => option.value === value)?.textContent ?? value;
      const item = document.createElement("li");
      const button = document.createElement("button");
      Object.assign(button, { type: "button", textContent: "×" });
      button.dataset.removesEvidence = value;
      button.setAttribute("aria-label", translate("Remove the evidence “{text}”", { text }));
      const name = document.createElement("span");
      name.textContent = text;
      item.append(name, button);
      return item;
    }));
  }

  /** A row that was copied or cleared says nothing yet: no further evidence, no place. */
  emptied(row) {
    $('[name="missing-further"]', row).value = "";
    $('[name="missing-insert"]', row).value = "";
    this.showFurther(row);
    this.places?.then((places) => places.update());
  }
}

// ── Questions before a submit ───────────────────────────────────────────────────────────

/* The questions that annotation/services/judgments/submission.py asks before it stores an annotation, asked on the item's own
   screen before the next one is shown. The server asks again what is not confirmed: a rule that only one of
   both sides has costs a return to the item, never an annotation. */
const WEIGHT = { error: 1, neutral: 0, merit: -1 };

/** Of all pairs that are ranked against their spans, the pair with the largest difference: [better, worse]. */
function againstSpans(ranks, letters, spans) {
  const badness = new Map(letters.map((letter) => [letter, 0]));
  for (const { letter, polarity, severity } of spans) badness.set(letter, badness.get(letter) + WEIGHT[polarity] * (severity || 1));
  let found = null;
  let largest = 0;
  for (const better of letters) {
    for (const worse of letters) {
      const difference = badness.get(better) - badness.get(worse);
      if (ranks.get(better) < ranks.get(worse) && difference > largest) [found, largest] = [[better, worse], difference];
    }
  }
  return found;
}

/** The questions that an annotation raises, as { key, message }.

    `letters` in displayed order; `ranks` by letter, empty when none wins; `spans` as { letter, polarity,
    severity }; `isUnrated` when there are criteria and nothing is rated. */
export function doubtsOf({ letters, ranks, spans, isUnrated }) {
  const doubts = [];
  if (ranks.size > 1) {
    if (letters.length > 2 && letters.every((letter, i) => ranks.get(letter) === i + 1)) {
      doubts.push({ key: "as-shown", message: translate("This is exactly the order shown.") });
    }
    const [winner, loser] = againstSpans(ranks, letters, spans) ?? [];
    if (winner) {
      doubts.push({
        key: `against-marks-${winner}-${loser}`,
        message: translate("{winner} is ranked above {loser}, but has more or more severe error spans.", { winner, loser }),
      });
    }
  }
  if (isUnrated) doubts.push({ key: "unrated", message: translate("No response is rated.") });
  return doubts;
}

/** The panel that asks. What was asked once, here or by the server, is not asked again. */
export class Doubts {
  constructor(screen, form) {
    this.panel = screen.querySelector("#doubts");
    this.list = this.panel.querySelector("ul");
    this.confirmed = form.elements.confirmed;
  }

  get isOpen() {
    return !this.panel.hidden;
  }

  /** Ask what was not asked yet. True when nothing is left to ask. */
  settled(doubts) {
    const asked = this.confirmed.value.split(" ").filter(Boolean);
    if (doubts.every(({ key }) => asked.includes(key))) return true;
    this.confirmed.value = [...new Set([...asked, ...doubts.map(({ key }) => key)])].join(" ");
    this.list.replaceChildren(...doubts.map(({ key, message }) => {
      const item = document.createElement("li");
      item.dataset.doubt = key;
      item.textContent = message;
      return item;
    }));
    this.panel.hidden = false;
    // The dock sticks to the window where there is room: what one judges by stays where it is.
    this.panel.focus({ preventScroll: true });
    const { top, bottom } = this.panel.getBoundingClientRect();
    if (top < 0 || bottom > innerHeight) this.panel.scrollIntoView({ block: "center" });
    return false;
  }

  /** Close the panel when the annotation no longer raises all that it asks. */
  changed(doubts) {
    const keys = new Set(doubts.map(({ key }) => key));
    if (this.isOpen) this.panel.hidden = [...this.list.children].some((item) => !keys.has(item.dataset.doubt));
  }
}
