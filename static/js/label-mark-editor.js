/* Labelling screen, loaded when the first text is selected or marked: what is changed of a mark besides
   its category, by its handles, by keys and by buttons. */

/** What is changed of a mark besides its category: where it begins and ends, how severe it is, a note. */
export class MarkEditor {
  constructor(marks) {
    this.marks = marks;
    const { marker, screen } = marks;
    this.part = marker.querySelector("[data-edits-mark]");
    this.severity = marker.querySelector("[data-severity]");
    this.note = marker.querySelector("[data-note]");
    this.relations = marker.querySelector("[data-relations]");
    this.notePlaceholder = this.note.placeholder;
    this.handles = [...screen.querySelectorAll("[data-handle]")];
    for (const handle of this.handles) this.bindHandle(handle);
    this.note.addEventListener("change", () => this.writeNote());
    marker.addEventListener("click", (event) => {
      const { step, moves, relates } = event.target.closest("button")?.dataset ?? {};
      if (relates) this.marks.relations.begin(this.marks.active(), relates);
      if (step) this.rate(Number(step));
      if (moves) this.move(...moves.split(" "), false);
    });
  }

  show(flag) {
    this.part.hidden = !flag;
    if (this.relations) this.relations.hidden = !flag || !this.marks.relations || this.marks.flags.length < 2;
    for (const handle of this.handles) handle.hidden = !flag;
    if (!flag) return;
    const steps = this.marks.severitySteps(flag);
    this.severity.hidden = !steps;
    this.severity.querySelector("[data-steps]").replaceChildren(...Array.from({ length: steps }, (_, i) => {
      const button = document.createElement("button");
      Object.assign(button, { type: "button", className: "chip chip--button", textContent: String(i + 1) });
      button.dataset.step = String(i + 1);
      button.setAttribute("aria-label", translate("Severity {step} of {steps}", { step: i + 1, steps }));
      button.setAttribute("aria-pressed", String(flag.severity === i + 1));
      return button;
    }));
    this.note.required = Boolean(this.marks.category(flag).needsNote);
    this.note.placeholder = this.note.required ? translate("Note (required)") : this.notePlaceholder;
    if (document.activeElement !== this.note) this.note.value = flag.note;
  }

  /** The handles stand at both ends of the mark. */
  place() {
    const flag = this.marks.active();
    if (!flag) return;
    const pieces = [...this.marks.screen.querySelectorAll(`.flag[data-flag="${flag.id}"]`)];
    const first = pieces[0]?.getClientRects()[0];
    const last = [...(pieces.at(-1)?.getClientRects() ?? [])].at(-1);
    if (!first || !last) return;
    for (const handle of this.handles) {
      const [x, box] = handle.dataset.handle === "start" ? [first.left, first] : [last.right, last];
      handle.style.left = `${x}px`;
      handle.style.top = `${box.top + box.height / 2}px`;
    }
  }

  bindHandle(handle) {
    handle.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      handle.setPointerCapture(event.pointerId);
      this.dragged = this.marks.active();
    });
    handle.addEventListener("pointermove", (event) => {
      if (this.dragged) this.drag(handle.dataset.handle, event);
    });
    const stop = () => {
      const flag = this.dragged;
      this.dragged = null;
      if (flag) this.tell(flag);
    };
    handle.addEventListener("pointerup", stop);
    handle.addEventListener("pointercancel", stop);
  }

  drag(side, { clientX, clientY }) {
    const flag = this.dragged;
    const answer = this.marks.answers.get(flag.candidate);
    // The handle lies under the pointer; the text below it is meant.
    for (const handle of this.handles) handle.toggleAttribute("data-dragged", true);
    const caret = document.caretPositionFromPoint?.(clientX, clientY) ?? document.caretRangeFromPoint?.(clientX, clientY);
    for (const handle of this.handles) handle.toggleAttribute("data-dragged", false);
    const point = caret && answer.pointAt(caret.offsetNode ?? caret.startContainer, caret.offset ?? caret.startOffset);
    if (point === null || point === undefined) return;
    const places = answer.places(side, true).filter((place) => side === "start" ? place < flag.end : place > flag.start);
    const nearest = places.reduce((best, place) => Math.abs(place - point) < Math.abs(best - point) ? place : best, flag[side]);
    if (nearest === flag[side]) return;
    flag[side] = nearest;
    this.marks.changed(answer);
    this.place();
  }

  handleKey(event, name) {
    const { keys } = this.marks;
    const flag = this.marks.active();
    const plain = name.replace("Alt+", "");
    for (const [action, side, by] of [["mark_end_later", "end", "1"], ["mark_end_earlier", "end", "-1"], ["mark_start_later", "start", "1"], ["mark_start_earlier", "start", "-1"]]) {
      if (plain === keys[action]) {
        this.move(side, by, event.altKey);
        return true;
      }
    }
    if (name === keys.mark_note) {
      this.note.focus();
      return true;
    }
    if (/^[1-9]$/.test(name) && Number(name) <= this.marks.severitySteps(flag)) {
      this.rate(Number(name));
      return true;
    }
    return false;
  }

  /** Move one end of the mark to the next place: by a word, or by a character. */
  move(side, by, byCharacter) {
    const flag = this.marks.active();
    const answer = this.marks.answers.get(flag.candidate);
    const fits = (place) => side === "start" ? place < flag.end : place > flag.start;
    const places = answer.places(side, byCharacter).filter(fits);
    const next = Number(by) > 0 ? places.find((place) => place > flag[side]) : places.findLast((place) => place < flag[side]);
    if (next === undefined) return;
    flag[side] = next;
    this.tell(flag);
  }

  tell(flag) {
    const answer = this.marks.answers.get(flag.candidate);
    this.marks.revised(flag, translate("Now marked: {quote}", { quote: answer.quote(flag.start, flag.end) }));
  }

  rate(step) {
    const flag = this.marks.active();
    flag.severity = flag.severity === step ? null : step;
    this.marks.revised(flag, flag.severity ? translate("Severity {step}", { step }) : translate("No severity"));
  }

  writeNote() {
    const flag = this.marks.active();
    if (!flag || flag.note === this.note.value.trim()) return;
    flag.note = this.note.value.trim();
    this.marks.changed(this.marks.answers.get(flag.candidate));
  }

  /** Enter leads from the note to the questions about the mark, and back where there is none. */
  leaveNote(event) {
    if (event.key !== "Enter" && event.key !== "Escape") return false;
    if (event.key === "Enter" && event.target.matches("textarea")) return false;
    this.writeNote();
    const { questions } = this.marks;
    if (event.key === "Enter" && event.target === this.note && questions) questions.go(this.marks.active());
    else this.marks.first(this.marks.active()?.id)?.focus();
    return true;
  }
}
