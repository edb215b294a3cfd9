/* Labelling screen: the questions of the project. Shows those that another answer shows, takes digits and the
   keys of choices, and tells what is missing. Loaded where a project has questions. Without JavaScript all are
   there, and the server refuses an answer where none is asked. */
const $ = (selector, root) => root.querySelector(selector);
const $$ = (selector, root) => [...root.querySelectorAll(selector)];

/** The questions below an element, and the keys that answer them. */
export class Asked {
  constructor(element) {
    this.element = element;
    // A question stands after the one that shows it in their order, not always on the page.
    this.all = $$("[data-question]", element).sort((one, other) => one.dataset.order - other.dataset.order);
    element.addEventListener("keydown", (event) => this.typed(event));
  }

  /** The questions that are asked as the answers are now, in the order of the page. */
  asked() {
    return $$("[data-question]:not([data-off])", this.element);
  }

  /** Show or hide a question. True where it is new on the page. */
  turn(question, isOff) {
    const wasOff = "off" in question.dataset;
    question.toggleAttribute("data-off", isOff);
    // What is not asked is not sent; it is there again when the answer that shows it comes back.
    question.disabled = isOff;
    return wasOff && !isOff;
  }

  focus(question) {
    const field = question && ($("input:checked", question) ?? $("input, textarea", question));
    field?.focus();
    question?.scrollIntoView({ block: "nearest" });
  }

  /** In a question a digit chooses; one choice goes on to the next. Backspace takes it back. */
  typed(event) {
    const question = event.target.closest("[data-question]");
    if (!question || event.ctrlKey || event.metaKey || event.altKey) return;
    const { kind } = question.dataset;
    if (event.key === "Enter" && ["number", "date", "choices"].includes(kind)) {
      event.preventDefault();
      return this.goOn(question);
    }
    if (!event.target.matches("[type=radio], [type=checkbox]")) return;
    const inputs = $$("input", question);
    if (["Backspace", "Delete"].includes(event.key)) {
      for (const input of inputs) input.checked = false;
      changed(inputs[0]);
    } else {
      const input = kind === "scale" ? inputs.find(({ value }) => value === event.key) : inputs[Number(event.key) - 1];
      if (!input || !/^[0-9]$/.test(event.key)) return;
      this.choose(input);
    }
    event.preventDefault();
  }

  choose(input) {
    const question = input.closest("[data-question]");
    input.checked = input.type === "radio" || !input.checked;
    input.focus();
    changed(input);
    if (input.type === "radio") this.goOn(question);
  }

  /** On to the question after this one; after the last one the focus stays. */
  goOn(question) {
    const asked = this.asked();
    const next = asked[asked.indexOf(question) + 1];
    if (next) this.focus(next);
    else this.ended(question);
  }

  ended(question) {
    if (!question.matches("[data-kind=choice], [data-kind=scale]")) document.activeElement.blur();
  }
}

/** The questions about the comparison, about each response and about each step of a trace. */
export class Questions extends Asked {
  constructor(screen) {
    super(screen.form);
    this.screen = screen;
    this.form = screen.form;
    for (const name of ["input", "change"]) this.form.addEventListener(name, () => this.show(true));
    this.show(false);
    const again = $("[data-repeated]:not([data-off])", this.element);
    if (again) this.focus(again);
  }

  // ── Questions that another answer shows ─────────────────────────────────────────────

  show(announces) {
    for (const question of this.all) {
      const { shownBy, shownValues } = question.dataset;
      if (!shownBy) continue;
      const chosen = chosenIn(this.form, shownBy);
      const isNew = this.turn(question, !JSON.parse(shownValues).some((value) => chosen.includes(value)));
      if (announces && isNew) this.screen.announce(translate("New question: {question}", { question: nameOf(question) }));
    }
  }

  // ── What is still missing ───────────────────────────────────────────────────────────

  /** Why it cannot be submitted yet, in words; empty when it can. */
  lacks() {
    const lacking = this.lacking();
    if (!lacking) return "";
    const question = nameOf(lacking);
    return isFilled(lacking)
      ? translate("“{question}”: {expected}.", { question, expected: lacking.dataset.expected })
      : translate("Answer “{question}”.", { question });
  }

  lacking() {
    const cannot = cannotJudge(this.form);
    return this.asked().find((question) => isFilled(question) ? isWrong(question, textsOf(question)) : "required" in question.dataset && !cannot);
  }

  focusLack() {
    this.focus(this.lacking());
  }

  /** To the first question without an answer after the one that has the focus, else to the first of all. */
  next() {
    const asked = this.asked();
    const active = document.activeElement;
    // From the head of a step to its own questions.
    const before = active?.closest?.("[data-question]") ?? null;
    const isAfter = (question) => before ? asked.indexOf(question) > asked.indexOf(before)
      : Boolean(active?.closest?.("[data-step]") && active.compareDocumentPosition(question) & Node.DOCUMENT_POSITION_FOLLOWING);
    const open = asked.filter((question) => !isFilled(question));
    this.focus(open.find(isAfter) ?? open[0] ?? asked[0]);
  }

  // ── Keys ────────────────────────────────────────────────────────────────────────────

  /** The key of a choice, anywhere on the screen. True if there is one. A capital letter is its own key. */
  handleKey(event, name, keys) {
    if (event.altKey || event.ctrlKey || event.metaKey || event.key.length !== 1) return false;
    const isCapital = event.shiftKey && /^\p{Lu}$/u.test(event.key);
    if (!isCapital && Object.values(keys).includes(name)) return false;
    const wanted = isCapital ? event.key : name;
    const selector = `[data-shortcut="${CSS.escape(wanted)}"]:enabled`;
    // Of a mark that has the focus or is edited, its own question.
    const ofSpans = this.screen.marks?.questions;
    const ofMark = ofSpans?.isOpen() && $(selector, ofSpans.element);
    if (ofMark) {
      ofSpans.choose(ofMark);
      return true;
    }
    const inputs = $$(selector, this.element);
    // Of one for each response or step: that at work, else the first that is open.
    const step = event.target.closest?.("[data-step]");
    const card = this.screen.card?.dataset.candidate;
    const input = inputs.find((each) => step?.contains(each))
      ?? inputs.find((each) => !each.closest("[data-step]") && each.closest("[data-of]")?.dataset.of === card)
      ?? inputs.find((each) => !isFilled(each.closest("[data-question]"))) ?? inputs[0];
    if (!input) return false;
    this.choose(input);
    return true;
  }
}

export const nameOf = (question) => $("legend", question).firstChild.textContent.trim();
export const chosenIn = (form, name) => $$(`[name="${CSS.escape(name)}"]:checked:enabled`, form).map((input) => input.value);
export const cannotJudge = (form) => Boolean($('input[name="choice"][value="cannot_judge"]:checked', form));
const changed = (input) => input.dispatchEvent(new Event("change", { bubbles: true }));
const isFilled = (question) => textsOf(question).length > 0;

/** The texts that answer a question as its fields stand. */
export function textsOf(question) {
  if ($("[type=radio], [type=checkbox]", question)) return $$("input:checked", question).map(({ value }) => value);
  const text = $("input, textarea", question).value.trim();
  return text ? [text] : [];
}

/** A number that is none, or beyond its bounds. */
export function isWrong(question, [text]) {
  if (question.dataset.kind !== "number") return false;
  const { least, most } = question.dataset;
  const number = Number(text.replace(",", "."));
  return !Number.isFinite(number) || (least !== undefined && number < Number(least)) || (most !== undefined && number > Number(most));
}
