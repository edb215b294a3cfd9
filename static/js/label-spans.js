/* Labelling screen: marks on the answers. Text is selected by mouse, touch or keyboard; a category's
   key or button marks it. Positions count code points of the answer's source: every piece of the
   rendered text stands in an element whose data-start says where its source begins. */

const count = (text) => Array.from(text).length;
const isSpace = (character) => /^\s$/u.test(character);
const inPair = (text, index) => index > 0 && index < text.length && /[\uD800-\uDBFF]/.test(text[index - 1]) && /[\uDC00-\uDFFF]/.test(text[index]);

function* textNodes(element) {
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) yield walker.currentNode;
}

function wholeOf(leaf) {
  const fragment = document.createDocumentFragment();
  fragment.append(...leaf.whole);
  return fragment;
}

/** One answer's text: its source, and the leaves that show it. */
export class Answer {
  /* `of`: for a rewritten response, the token of the original; spans are marked in the original alone. */
  constructor(element, { token, letter, source, textHash, of }) {
    Object.assign(this, { element, token, letter, textHash, of, points: Array.from(source) });
    this.leaves = [...element.querySelectorAll("[data-start]")].map((leaf) => {
      const start = Number(leaf.dataset.start);
      const length = Number(leaf.dataset.sourceLength);
      // A formula is one unit: it shows MathML for the whole of its LaTeX.
      return length
        ? { element: leaf, start, points: this.points.slice(start, start + length), whole: [...leaf.childNodes] }
        : { element: leaf, start, points: Array.from(leaf.textContent) };
    });
  }

  quote(start, end) {
    return this.points.slice(start, end).join("");
  }

  /** [start, end) of what a range covers of this answer, without the spaces around it; null if nothing. */
  spanOf(range) {
    let start = null;
    let end = null;
    for (const leaf of this.leaves) {
      let before = leaf.start;
      for (const node of textNodes(leaf.element)) {
        if (range.intersectsNode(node)) {
          let from = node === range.startContainer ? range.startOffset : 0;
          let to = node === range.endContainer ? range.endOffset : node.length;
          if (inPair(node.data, from)) from -= 1;
          if (inPair(node.data, to)) to += 1;
          if (from < to && leaf.whole) {
            start ??= leaf.start;
            end = leaf.start + leaf.points.length;
          } else if (from < to) {
            start ??= before + count(node.data.slice(0, from));
            end = before + count(node.data.slice(0, to));
          }
        }
        before += count(node.data);
      }
    }
    if (start === null) return null;
    while (start < end && isSpace(this.points[start])) start += 1;
    while (start < end && isSpace(this.points[end - 1])) end -= 1;
    return start < end ? { start, end } : null;
  }

  /** The steps of the keyboard's selection: words, signs, emoji; as [leaf, from, to] in UTF-16. */
  words() {
    const segmenter = globalThis.Intl?.Segmenter ? new Intl.Segmenter(undefined, { granularity: "word" }) : null;
    return this.leaves.flatMap((leaf) => {
      if (leaf.whole) return [[leaf, 0, leaf.element.textContent.length]];
      const text = leaf.points.join("");
      const found = segmenter
        ? [...segmenter.segment(text)].map(({ segment, index }) => [segment, index])
        : [...text.matchAll(/\S+/g)].map((match) => [match[0], match.index]);
      return found.filter(([word]) => word.trim()).map(([word, index]) => [leaf, index, index + word.length]);
    });
  }

  /** The position in code points of a place in the rendered text; null outside of it. */
  pointAt(node, offset) {
    const leaf = this.leaves.find(({ element }) => element.contains(node));
    if (!leaf) return null;
    let before = leaf.start;
    for (const text of textNodes(leaf.element)) {
      if (text === node) return leaf.whole ? leaf.start : before + count(text.data.slice(0, offset));
      before += count(text.data);
    }
    return leaf.start;
  }

  /** Where a mark may begin ("start") or end ("end"), in order: at words, or at every character. */
  places(side, byCharacter) {
    const at = (leaf, index) => leaf.start + (leaf.whole ? (index ? leaf.points.length : 0) : count(leaf.points.join("").slice(0, index)));
    const pieces = byCharacter ? this.characters() : this.words();
    const places = pieces.map(([leaf, from, to]) => at(leaf, side === "start" ? from : to));
    return [...new Set(places)].sort((a, b) => a - b);
  }

  characters() {
    const segmenter = globalThis.Intl?.Segmenter ? new Intl.Segmenter(undefined, { granularity: "grapheme" }) : null;
    return this.leaves.flatMap((leaf) => {
      if (leaf.whole) return [[leaf, 0, leaf.element.textContent.length]];
      const text = leaf.points.join("");
      const found = segmenter ? [...segmenter.segment(text)] : [...text].map((segment, i, all) => ({ segment, index: all.slice(0, i).join("").length }));
      return found.filter(({ segment }) => segment.trim()).map(({ segment, index }) => [leaf, index, index + segment.length]);
    });
  }

  /** The range on the page of what stands at [start, end) of the source; null where none of it is shown. */
  rangeOf(start, end) {
    const inside = this.leaves.filter((leaf) => leaf.start < end && leaf.start + leaf.points.length > start);
    if (!inside.length) return null;
    const [first, last] = [inside[0], inside.at(-1)];
    const range = document.createRange();
    if (first.whole) range.setStart(first.element, 0);
    else range.setStart(...position(first.element, first.points.slice(0, Math.max(0, start - first.start)).join("").length));
    if (last.whole) range.setEnd(last.element, last.element.childNodes.length);
    else range.setEnd(...position(last.element, last.points.slice(0, end - last.start).join("").length));
    return range;
  }

  /** Draw the marks: a leaf's text is cut where marks begin or end, and each part nested in its marks. */
  draw(flags, describe) {
    const begun = new Set();
    for (const leaf of this.leaves) {
      const last = leaf.start + leaf.points.length;
      const here = flags.filter((flag) => flag.start < last && flag.end > leaf.start);
      if (!here.length && !leaf.element.querySelector(".flag")) continue;
      const cuts = leaf.whole ? [leaf.start, last] : [...new Set([leaf.start, last, ...here.flatMap((flag) => [flag.start, flag.end])])]
        .filter((cut) => cut >= leaf.start && cut <= last).sort((a, b) => a - b);
      const parts = cuts.slice(0, -1).map((from, i) => {
        const text = leaf.points.slice(from - leaf.start, cuts[i + 1] - leaf.start).join("");
        const around = leaf.whole ? here : here.filter((flag) => flag.start <= from && flag.end >= cuts[i + 1]);
        return around.reduceRight((inner, flag) => {
          const mark = document.createElement("span");
          mark.className = "flag";
          mark.dataset.flag = flag.id;
          mark.dataset.category = flag.category;
          if (!begun.has(flag.id)) describe(mark, flag);
          begun.add(flag.id);
          mark.append(inner);
          return mark;
        }, leaf.whole ? wholeOf(leaf) : document.createTextNode(text));
      });
      leaf.element.replaceChildren(...parts);
    }
  }
}

/* The marker has no id: htmx would carry its style attribute over to the next screen, and the content
   security policy refuses style attributes. */
export class Marks {
  constructor(screen, data, { announce, onChange, onRewrite, update }) {
    Object.assign(this, { screen, announce, onChange, onRewrite, update, keys: data.keys });
    this.categories = data.categories;
    this.relates = data.relates;
    this.relations = null;
    this.field = screen.querySelector('input[name="span_flags"]');
    this.marker = screen.querySelector(".marker");
    this.answers = new Map(data.candidates.map((candidate) => {
      const element = screen.querySelector(`[data-answer="${candidate.token}"]`);
      return [candidate.token, new Answer(element, candidate)];
    }));
    this.nextId = 1;
    const asked = [...this.marker.querySelectorAll("[data-question]")];
    this.fields = new Set(asked.map(({ dataset }) => dataset.field));
    this.flags = this.stored();
    this.pending = null;
    this.bind();
    this.editor = this.questions = null;
    if (asked.length) this.loadQuestions();
    for (const answer of this.answers.values()) this.draw(answer);
    if (this.relates) this.loadRelations();
    // Asked no more: they are left out of what is submitted.
    if (!this.relates && this.field.value.includes('"relations": [{')) this.write();
  }

  /** Few projects ask for relations. */
  async loadRelations() {
    const { Relations } = await import("./label-relations.js");
    this.relations = new Relations(this);
    for (const answer of this.answers.values()) this.draw(answer);
  }

  /** Few projects ask something of a span. */
  async loadQuestions() {
    const [{ SpanQuestions }] = await Promise.all([import("./label-span-questions.js"), this.loadEditor()]);
    this.questions = new SpanQuestions(this);
    this.questions.show(this.active());
    const again = this.questions.repeated();
    if (again) this.questions.go(...again);
    this.update();
  }

  stored() {
    try {
      const sent = JSON.parse(this.field.value || "[]");
      const flags = sent.map(({ candidate, category, start, end, severity = null, note = "", answers = {} }) => ({ id: String(this.nextId++), candidate, category, start, end, severity, note, relations: [],
        // Answers to what is asked no more are left out.
        answers: Object.fromEntries(Object.entries(answers).filter(([field]) => this.fields.has(field))) }));
      sent.forEach(({ relations = [] }, index) => {
        if (this.relates) flags[index].relations = relations.filter(({ to }) => flags[to]).map(({ kind, to }) => ({ kind, to: flags[to].id }));
      });
      return flags.filter((flag) => this.answers.has(flag.candidate));
    } catch {
      return [];
    }
  }

  /** While its screen is shown, the whole document is listened to. */
  listen() {
    this.timer = 0;
    this.onSelection = () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.look(), 60);
    };
    this.onScroll = () => { if (!this.marker.hidden) this.place(); };
    document.addEventListener("selectionchange", this.onSelection);
    document.addEventListener("scroll", this.onScroll, { passive: true, capture: true });
  }

  bind() {
    const { marker, screen } = this;
    // A press on a button must not end the selection it is about.
    const keepSelection = (event) => { if (!event.target.closest("input, textarea, label")) event.preventDefault(); };
    marker.addEventListener("pointerdown", keepSelection);
    marker.addEventListener("mousedown", keepSelection);
    marker.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button?.dataset.marks) this.apply(button.dataset.marks);
      else if (button && "unmarks" in button.dataset) this.remove(this.active());
      else if (button && "rewrites" in button.dataset) this.onRewrite();
    });
    screen.addEventListener("focusin", (event) => {
      // The marker would lie over the span that is looked for.
      if (event.target.matches(".flag") && this.relations?.waiting) return;
      if (event.target.matches(".flag")) this.showFor(event.target);
      else if (!marker.contains(event.target) && !this.pending) this.hide();
    });
    // The press takes the focus off the mark before the click asks which one had it.
    screen.addEventListener("pointerdown", () => { this.pressedOn = marker.dataset.flag; }, true);
    screen.addEventListener("click", (event) => {
      const mark = event.target.closest(".flag");
      if (this.relations?.clicked(event.target, mark)) return;
      if (mark && getSelection().isCollapsed) this.first(this.under(mark))?.focus();
      const remove = event.target.closest("[data-removes-flag]");
      if (remove) this.remove(this.flags.find((flag) => flag.id === remove.dataset.removesFlag));
    });
  }

  /** Which mark a click on this piece is about: where marks overlap, the next one at every click. */
  under(piece) {
    const ids = [];
    for (let mark = piece; mark; mark = mark.parentElement.closest(".flag")) ids.push(mark.dataset.flag);
    return ids[(ids.indexOf(this.pressedOn) + 1) % ids.length];
  }

  close() {
    clearTimeout(this.timer);
    document.removeEventListener("selectionchange", this.onSelection);
    document.removeEventListener("scroll", this.onScroll, { capture: true });
  }

  // ── What is selected ────────────────────────────────────────────────────────────────

  /* What is asked of a selection is about the selection as it is now, not as it was 60 ms ago. A button
     may take the selection away by taking the focus; a key elsewhere shows that it was given up. */
  settle(key) {
    const isGivenUp = key && this.pending && !this.marker.contains(key.target);
    if (!getSelection().isCollapsed || isGivenUp) this.look();
  }

  look() {
    clearTimeout(this.timer);
    const selection = getSelection();
    this.pending = null;
    if (selection.rangeCount && !selection.isCollapsed) {
      const range = selection.getRangeAt(0);
      for (const answer of this.answers.values()) {
        const span = range.intersectsNode(answer.element) && answer.spanOf(range);
        if (span) {
          this.pending = { answer, ...span };
          break;
        }
      }
    }
    if (this.pending) this.show(null);
    else if (!document.activeElement?.matches?.(".flag") && !this.marker.contains(document.activeElement)) this.hide();
  }

  active() {
    return this.flags.find((flag) => flag.id === this.marker.dataset.flag);
  }

  first(id) {
    return this.screen.querySelector(`.flag[data-flag="${id}"][tabindex]`);
  }

  showFor(mark) {
    const selection = getSelection();
    if (!selection.isCollapsed) selection.removeAllRanges();
    this.pending = null;
    this.show(this.flags.find((flag) => flag.id === mark.dataset.flag));
  }

  show(flag) {
    this.marker.dataset.flag = flag?.id ?? "";
    this.marker.querySelector("[data-unmarks]").hidden = !flag;
    for (const button of this.marker.querySelectorAll("[data-marks]")) {
      button.hidden = Boolean(!flag && this.pending?.answer.of);
      if (flag) button.setAttribute("aria-pressed", String(button.dataset.marks === flag.category));
      else button.removeAttribute("aria-pressed");
    }
    this.marker.hidden = false;
    this.editor?.show(flag);
    this.questions?.show(flag);
    this.loadEditor();
    this.place();
  }

  /** Most screens have no mark, and do without the part that changes them. */
  async loadEditor() {
    if (this.editor || this.loading) return;
    this.loading = true;
    const { MarkEditor } = await import("./label-mark-editor.js");
    this.editor = new MarkEditor(this);
    this.editor.show(this.active());
    this.place();
  }

  hide() {
    this.marker.hidden = true;
    this.marker.dataset.flag = "";
    this.editor?.show(null);
  }

  /** Below what it is about, above where there is no room. */
  place() {
    const flag = this.active();
    const selection = getSelection();
    const about = flag ? this.first(flag.id) : selection.rangeCount ? selection.getRangeAt(0) : null;
    if (!about) return;
    const boxes = about.getClientRects();
    const box = boxes[boxes.length - 1] ?? about.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = this.marker;
    const below = box.bottom + 8;
    const top = below + height < innerHeight ? below : about.getBoundingClientRect().top - height - 8;
    this.marker.style.top = `${Math.max(4, top)}px`;
    this.marker.style.left = `${Math.max(4, Math.min(box.left, document.documentElement.clientWidth - width - 8))}px`;
    this.editor?.place();
  }

  // ── Marks ───────────────────────────────────────────────────────────────────────────

  label(key) {
    return this.categories.find((category) => category.key === key)?.label ?? key;
  }

  apply(category) {
    this.settle();
    const flag = this.active();
    if (flag) this.recategorise(flag, category);
    else if (this.pending) this.create(category);
  }

  /** In words what a sign says; empty where all spans are errors. */
  meaning(flag) {
    const { sign, polarity } = this.category(flag);
    if (!sign) return "";
    return polarity === "merit" ? translate("A merit: ") : polarity === "neutral" ? translate("Neither: ") : translate("An error: ");
  }

  /** The mark of a stretch: a new one, or the one that is there. */
  add(answer, category, start, end) {
    const same = (flag) => flag.candidate === answer.token && flag.category === category && flag.start === start && flag.end === end;
    if (!this.flags.some(same)) this.flags.push({ id: String(this.nextId++), candidate: answer.token, category, start, end, severity: null, note: "", relations: [], answers: {} });
    this.changed(answer);
    return this.flags.find(same);
  }

  /** What is selected, or the mark that has the focus; null for neither. */
  stretch() {
    this.settle();
    const flag = this.active();
    return flag ? { answer: this.answers.get(flag.candidate), start: flag.start, end: flag.end, flag } : this.pending;
  }

  create(category) {
    const { answer, start, end } = this.pending;
    if (answer.of) return this.announce(translate("Mark spans in the original response."));
    this.add(answer, category, start, end);
    getSelection().removeAllRanges();
    this.pending = null;
    this.hide();
    this.announce(translate("Marked in {letter} as {label}: {quote}", { letter: answer.letter, label: this.label(category), quote: answer.quote(start, end) }));
  }

  recategorise(flag, category) {
    flag.category = category;
    if (flag.severity > this.severitySteps(flag)) flag.severity = null;
    this.revised(flag, translate("Now {label}", { label: this.label(category) }));
  }

  /** Take over what was changed of a mark. One that has become the same as it is the same mark. */
  revised(flag, announcement) {
    this.flags = this.flags.filter((other) => other === flag || other.candidate !== flag.candidate
      || other.category !== flag.category || other.start !== flag.start || other.end !== flag.end);
    this.changed(this.answers.get(flag.candidate));
    this.first(flag.id)?.focus({ preventScroll: true });
    this.announce(announcement);
  }

  severitySteps(flag) {
    return this.category(flag).severitySteps ?? 0;
  }

  category(flag) {
    return this.categories.find(({ key }) => key === flag.category) ?? {};
  }

  /** What the first incomplete mark lacks: [the mark, "part", "severity", "note" or a question]; null for nothing. */
  lack() {
    for (const flag of this.flags) {
      const { isSplit, severitySteps, needsNote } = this.category(flag);
      if (isSplit) return [flag, "part"];
      if (severitySteps && !flag.severity) return [flag, "severity"];
      if (needsNote && !flag.note.trim()) return [flag, "note"];
      const question = this.questions?.lacking(flag);
      if (question) return [flag, question];
    }
    return null;
  }

  /** Why the marks cannot be submitted yet, in words; empty when they can. */
  lacks() {
    const [flag, what] = this.lack() ?? [];
    if (!flag) return "";
    const answer = this.answers.get(flag.candidate);
    const values = { steps: this.severitySteps(flag), label: this.label(flag.category), letter: answer.letter, quote: answer.quote(flag.start, flag.end) };
    if (what === "part") return translate("Choose a sub-category: {label} in {letter}, “{quote}”.", values);
    if (what === "note") return translate("Write a note: {label} in {letter}, “{quote}”.", values);
    if (what.dataset) return this.questions.words(what, flag, values);
    return translate("Say how severe it is, 1 to {steps}: {label} in {letter}, “{quote}”.", values);
  }

  focusLack() {
    const [flag, what] = this.lack() ?? [];
    if (what?.dataset) this.questions.go(flag, what);
    else if (flag) this.first(flag.id)?.focus();
  }

  remove(flag) {
    if (!flag) return;
    this.flags = this.flags.filter((other) => other !== flag);
    const answer = this.answers.get(flag.candidate);
    this.hide();
    this.changed(answer);
    answer.element.focus({ preventScroll: true });
    this.announce(translate("Mark removed: {quote}", { quote: answer.quote(flag.start, flag.end) }));
  }

  changed(answer) {
    // What a relation was to may be gone.
    const ids = new Set(this.flags.map(({ id }) => id));
    for (const flag of this.flags) flag.relations = flag.relations.filter(({ to }) => ids.has(to));
    if (this.relates) for (const each of this.answers.values()) this.draw(each);
    else this.draw(answer);
    this.write();
    this.onChange();
  }

  /** Write the marks into the form. */
  write() {
    const places = new Map(this.flags.map(({ id }, place) => [id, place]));
    this.field.value = JSON.stringify(this.flags.map((flag) => {
      const { candidate, category, start, end, severity, note, relations } = flag;
      const said = this.questions ? { answers: this.questions.answersOf(flag) } : {};
      const marked = this.answers.get(candidate);
      const related = relations.length ? { relations: relations.map(({ kind, to }) => ({ kind, to: places.get(to) })) } : {};
      return { candidate, category, start, end, severity, note, ...related, ...said, quote: marked.quote(start, end), text_hash: marked.textHash };
    }));
  }

  draw(answer) {
    const flags = this.flags.filter((flag) => flag.candidate === answer.token)
      .sort((a, b) => a.start - b.start || b.end - a.end);
    answer.draw(flags, (mark, flag) => {
      mark.tabIndex = 0;
      mark.setAttribute("role", "group");
      const how = flag.severity ? translate(", severity {severity}", flag) : "";
      const { sign } = this.category(flag);
      if (sign) mark.dataset.sign = sign;
      mark.setAttribute("aria-label", `${this.meaning(flag)}${this.label(flag.category)}${how}: ${answer.quote(flag.start, flag.end)}${flag.note ? `. ${flag.note}` : ""}`);
    });
    const list = this.screen.querySelector(`[data-flags="${answer.token}"]`);
    list?.replaceChildren(...flags.map((flag) => this.item(answer, flag)));
  }

  item(answer, flag) {
    const item = document.createElement("li");
    item.dataset.category = flag.category;
    const dot = document.createElement("span");
    dot.className = "dot";
    const label = document.createElement("span");
    const { sign } = this.category(flag);
    label.textContent = `${sign ? `${sign} ` : ""}${this.label(flag.category)}${flag.severity ? ` ${flag.severity}` : ""}`;
    const quote = document.createElement("q");
    quote.textContent = answer.quote(flag.start, flag.end);
    const remove = document.createElement("button");
    remove.type = "button";
    remove.textContent = "×";
    remove.dataset.removesFlag = flag.id;
    remove.setAttribute("aria-label", translate("Remove the mark {label}: {quote}", { label: label.textContent, quote: quote.textContent }));
    item.append(dot, label, quote, remove);
    if (this.relations) item.append(...this.relations.items(flag));
    return item;
  }

  // ── Keys ────────────────────────────────────────────────────────────────────────────

  /** In the note of a mark: Enter and Escape lead back to the mark. */
  handleFieldKey(event) {
    return this.marker.contains(event.target) && Boolean(this.editor?.leaveNote(event));
  }

  handleKey(event, name) {
    this.settle(event);
    const category = this.categories.find(({ shortcut }) => shortcut && shortcut === event.key.toLowerCase());
    const onMark = event.target.matches?.(".flag");
    if (this.relations?.pressed(event, onMark)) return true;
    if (onMark && !this.relations?.waiting) this.showFor(event.target);
    if (category && (onMark || this.pending) && !event.altKey) {
      this.apply(category.key);
      return true;
    }
    if (onMark && (name === this.keys.mark_remove || name === "Backspace")) {
      this.remove(this.active());
      return true;
    }
    if (onMark && this.editor?.handleKey(event, name)) return true;
    if (event.key === "Enter" && (onMark || this.pending)) {
      this.marker.querySelector("button")?.focus();
      return true;
    }
    if (event.key === "Escape" && (this.pending || !this.marker.hidden)) {
      getSelection().removeAllRanges();
      this.hide();
      return true;
    }
    const answer = [...this.answers.values()].find(({ element }) => element === event.target);
    return Boolean(answer) && (event.key === "ArrowLeft" || event.key === "ArrowRight") && this.step(answer, event);
  }

  /** Arrow keys inside an answer: one word on or back; with Shift more or fewer; with Alt characters. */
  step(answer, event) {
    const by = event.key === "ArrowRight" ? 1 : -1;
    const selection = getSelection();
    if (event.altKey) {
      if (!event.shiftKey || selection.isCollapsed) return false;
      selection.modify("extend", by > 0 ? "forward" : "backward", "character");
      return true;
    }
    const words = answer.words();
    if (!words.length) return false;
    const known = this.stepping?.answer === answer ? this.stepping : null;
    const clamp = (index) => Math.max(0, Math.min(words.length - 1, index));
    const focus = known ? clamp(known.focus + by) : by > 0 ? 0 : words.length - 1;
    const anchor = known && event.shiftKey ? clamp(known.anchor) : focus;
    this.stepping = { answer, anchor, focus };
    const [low, high] = anchor <= focus ? [words[anchor], words[focus]] : [words[focus], words[anchor]];
    const from = position(low[0].element, low[1]);
    const to = position(high[0].element, high[2]);
    selection.setBaseAndExtent(...from, ...to);
    from[0].parentElement.scrollIntoView({ block: "nearest" });
    this.look();
    return true;
  }
}

/** The text node and offset at a UTF-16 offset of an element's text. */
export function position(element, offset) {
  let left = offset;
  let last = null;
  for (const node of textNodes(element)) {
    if (left <= node.length) return [node, left];
    left -= node.length;
    last = node;
  }
  return [last ?? element, last ? last.length : 0];
}
