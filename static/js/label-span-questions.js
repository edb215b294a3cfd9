/* Labelling screen: the questions about spans, in the editor of a mark. Their answers are kept with the mark, by
   the name of the field. Loaded where a project asks them. */
import { Asked, cannotJudge, chosenIn, isWrong, nameOf, textsOf } from "./label-questions.js";

export class SpanQuestions extends Asked {
  constructor(marks) {
    super(marks.marker.querySelector("[data-span-questions]"));
    this.marks = marks;
    this.form = marks.screen.querySelector("#judgment");
    for (const name of ["input", "change"]) this.element.addEventListener(name, () => this.take());
    // Another answer of the page may show a question about a span, or hide it.
    this.form.addEventListener("change", () => this.marks.write());
    this.element.addEventListener("keydown", (event) => {
      const isRadio = event.target.matches("[type=radio]");
      if (event.key !== "Escape" && !(event.key === "Enter" && isRadio)) return;
      event.preventDefault();
      event.stopPropagation();
      if (event.key === "Escape") this.back();
      else this.goOn(event.target.closest("[data-question]"));
    });
  }

  isOpen() {
    return Boolean(this.marks.active()) && !this.marks.marker.hidden;
  }

  /** The questions that are asked of a mark, as the answers are now. */
  askedOf(flag) {
    const shown = new Map();
    for (const question of this.all) {
      const { field, shownBy, shownValues, categories } = question.dataset;
      if (categories && !JSON.parse(categories).includes(flag.category)) continue;
      const name = shownBy?.replace("{candidate}", flag.candidate);
      const chosen = shown.has(name) ? flag.answers[name] ?? [] : name ? chosenIn(this.form, name) : [];
      if (!name || JSON.parse(shownValues).some((value) => chosen.includes(value))) shown.set(field, question);
    }
    return shown;
  }

  /** The answers to what is asked of a mark; nothing else is sent. */
  answersOf(flag) {
    const asked = this.askedOf(flag);
    return Object.fromEntries(Object.entries(flag.answers).filter(([field, texts]) => texts.length && asked.has(field)));
  }

  /** The first question of a mark that lacks an answer or has one that does not fit; null for none. */
  lacking(flag) {
    const cannot = cannotJudge(this.form);
    for (const [field, question] of this.askedOf(flag)) {
      const texts = flag.answers[field] ?? [];
      if (texts.length ? isWrong(question, texts) : "required" in question.dataset && !cannot) return question;
    }
    return null;
  }

  /** Why the answer to a question of a mark does not do, in words. */
  words(question, flag, { label, letter, quote }) {
    const named = { question: nameOf(question), label, letter, quote };
    return flag.answers[question.dataset.field]?.length
      ? translate("“{question}”: {expected}. {label} in {letter}, “{quote}”.", { ...named, expected: question.dataset.expected })
      : translate("Answer “{question}”: {label} in {letter}, “{quote}”.", named);
  }

  /** The first mark without an answer to a question that is asked again. */
  repeated() {
    const again = this.all.filter((question) => "repeated" in question.dataset);
    for (const flag of this.marks.flags) {
      const asked = this.askedOf(flag);
      const question = again.find(({ dataset: { field } }) => asked.has(field) && !flag.answers[field]?.length);
      if (question) return [flag, question];
    }
    return null;
  }

  /** Show the answers of a mark. */
  show(flag) {
    this.element.hidden = !flag;
    if (!flag) return;
    for (const question of this.all) {
      const texts = flag.answers[question.dataset.field] ?? [];
      for (const field of question.querySelectorAll("input, textarea")) {
        if (field.matches("[type=radio], [type=checkbox]")) field.checked = texts.includes(field.value);
        else if (field !== document.activeElement) field.value = texts[0] ?? "";
      }
    }
    this.turnAll(flag, false);
  }

  turnAll(flag, announces) {
    const asked = this.askedOf(flag);
    for (const question of this.all) {
      const isNew = this.turn(question, !asked.has(question.dataset.field));
      if (announces && isNew) this.marks.announce(translate("New question: {question}", { question: nameOf(question) }));
    }
  }

  take() {
    const flag = this.marks.active();
    if (!flag) return;
    for (const question of this.all) flag.answers[question.dataset.field] = textsOf(question);
    this.turnAll(flag, true);
    this.marks.write();
    this.marks.onChange();
    this.marks.place();
  }

  /** Go to a question of a mark; without one to the first that has no answer. */
  go(flag, question) {
    this.marks.first(flag.id)?.focus();
    const asked = this.asked();
    this.focus(question ?? asked.find((each) => !textsOf(each).length) ?? asked[0]);
  }

  back() {
    this.marks.first(this.marks.active()?.id)?.focus();
  }

  ended() {
    this.back();
  }
}
