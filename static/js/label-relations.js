/* Relations of two marks: one causes the other, or contradicts it. Loaded where a project asks for them. */

export class Relations {
  constructor(marks) {
    this.marks = marks;
    // Of a relation that waits for its other span: the one it is of, and its kind.
    this.waiting = null;
  }

  name(kind) {
    return kind === "cause" ? translate("causes") : translate("contradicts");
  }

  quote(flag) {
    return this.marks.answers.get(flag.candidate).quote(flag.start, flag.end);
  }

  flag(id) {
    return this.marks.flags.find((one) => one.id === id);
  }

  /** The next mark that is pressed, or chosen by Enter, is the other one. */
  begin(flag, kind) {
    this.waiting = { flag, kind };
    this.marks.first(flag.id)?.focus({ preventScroll: true });
    this.marks.hide();
    this.say(translate("“{quote}” {relation} …: choose the other span by a click or Enter; Escape cancels.", { quote: this.quote(flag), relation: this.name(kind) }));
  }

  /** Said to who hears the page, and shown to who sees it. */
  say(words) {
    this.marks.announce(words);
    const hint = this.marks.screen.querySelector("[data-relation-hint]");
    if (hint) hint.textContent = this.waiting ? words : "";
  }

  relate(other) {
    const { flag, kind } = this.waiting;
    if (!other || other === flag) return this.say(translate("Choose another span than the one you began with."));
    this.waiting = null;
    if (!flag.relations.some((relation) => relation.kind === kind && relation.to === other.id)) flag.relations.push({ kind, to: other.id });
    this.changed(flag, translate("“{quote}” {relation} “{other}”.", { quote: this.quote(flag), relation: this.name(kind), other: this.quote(other) }));
  }

  remove(id, kind, to) {
    const flag = this.flag(id);
    flag.relations = flag.relations.filter((relation) => relation.kind !== kind || relation.to !== to);
    this.changed(flag, translate("The relation is removed."));
  }

  changed(flag, words) {
    this.marks.changed(this.marks.answers.get(flag.candidate));
    this.marks.first(flag.id)?.focus({ preventScroll: true });
    this.say(words);
  }

  /** Take a click on a relation's button, or on the mark that is waited for; true where it was one. */
  clicked(target, mark) {
    const button = target.closest("[data-removes-relation]");
    if (button) this.remove(...button.dataset.removesRelation.split(" "));
    else if (mark && this.waiting && getSelection().isCollapsed) this.relate(this.flag(this.marks.under(mark)));
    else return false;
    return true;
  }

  /** Take a key while a mark is waited for; true where it was one of these. */
  pressed(event, onMark) {
    if (this.waiting && event.key === "Escape") {
      this.waiting = null;
      this.say(translate("No relation was made."));
      if (onMark) this.marks.showFor(event.target);
      return true;
    }
    if (!this.waiting || !onMark || event.key !== "Enter") return false;
    this.relate(this.flag(event.target.dataset.flag));
    return true;
  }

  /** A line for each relation of a mark, below it. */
  items(flag) {
    return flag.relations.map(({ kind, to }) => [kind, this.flag(to)]).filter(([, other]) => other).map(([kind, other]) => {
      const line = document.createElement("span");
      line.className = "flags__relation";
      const words = document.createElement("span");
      words.textContent = translate("{relation} “{other}” in {letter}", { relation: this.name(kind), other: this.quote(other), letter: this.marks.answers.get(other.candidate).letter });
      const remove = document.createElement("button");
      remove.type = "button";
      remove.textContent = "×";
      remove.dataset.removesRelation = `${flag.id} ${kind} ${other.id}`;
      remove.setAttribute("aria-label", translate("Remove the relation: {words}", { words: words.textContent }));
      line.append(words, remove);
      return line;
    });
  }
}
