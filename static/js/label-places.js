/* Labelling screen: where in an answer something belongs. One points at a place by click or with the arrow
   keys; a caret ‸ stands there. Places count code points of the answer's source. */

const count = (text) => Array.from(text).length;

function* textNodes(element) {
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) yield walker.currentNode;
}

/** One answer in which a place can be pointed at. */
class Ground {
  constructor(element, source) {
    Object.assign(this, { element, points: Array.from(source) });
    this.leaves = [...element.querySelectorAll("[data-start]")];
    const words = [...source.matchAll(/\S+/g)].map((match) => count(source.slice(0, match.index)));
    this.stops = [...new Set([...words, this.points.length])];
  }

  /** The place under the pointer; null outside of the text. */
  at(x, y) {
    const found = document.caretPositionFromPoint?.(x, y);
    const range = found ? null : document.caretRangeFromPoint?.(x, y);
    const [node, offset] = found ? [found.offsetNode, found.offset] : [range?.startContainer, range?.startOffset];
    const leaf = node?.nodeType === Node.TEXT_NODE && node.parentElement.closest("[data-start]");
    if (!leaf || !this.element.contains(leaf)) return null;
    let place = Number(leaf.dataset.start);
    for (const text of textNodes(leaf)) {
      if (text === node) return place + count(text.data.slice(0, offset));
      place += count(text.data);
    }
    return null;
  }

  /** Where on the screen a place is, as a rectangle without width. */
  rectangle(place) {
    let last = null;
    for (const leaf of this.leaves) {
      let before = Number(leaf.dataset.start);
      for (const text of textNodes(leaf)) {
        const length = count(text.data);
        if (before + length >= place) {
          const offset = Array.from(text.data).slice(0, Math.max(0, place - before)).join("").length;
          const range = document.createRange();
          range.setStart(text, offset);
          return range.getClientRects()[0] ?? range.getBoundingClientRect();
        }
        before += length;
        last = text;
      }
    }
    if (!last) return null;
    const range = document.createRange();
    range.selectNodeContents(last);
    range.collapse(false);
    return range.getClientRects()[0] ?? range.getBoundingClientRect();
  }

  /** The words that follow a place. */
  words(place) {
    const words = this.points.slice(place, place + 60).join("").trim().split(/\s+/).filter(Boolean).slice(0, 4);
    return words.join(" ");
  }

  next(place, by) {
    if (by > 0) return this.stops.find((stop) => stop > place) ?? this.points.length;
    return this.stops.filter((stop) => stop < place).at(-1) ?? 0;
  }
}

export class Places {
  constructor(screen, data, { announce, onChange }) {
    Object.assign(this, { screen, announce, onChange });
    this.grounds = new Map(data.candidates.map(({ token, source }) => {
      return [token, new Ground(screen.querySelector(`[data-answer="${token}"]`), source)];
    }));
    screen.addEventListener("click", (event) => this.clicked(event));
    screen.addEventListener("keydown", (event) => this.key(event));
    this.observer = new ResizeObserver(() => this.draw());
    for (const { element } of this.grounds.values()) this.observer.observe(element);
    this.update();
  }

  groundOf(row) {
    return this.grounds.get(row.closest(".candidate").dataset.candidate);
  }

  clicked(event) {
    if (event.target.closest("[data-unplaces]")) this.put(event.target.closest(".missing__row"), "");
    else if (this.row && !event.target.closest("[data-places]")) {
      const place = this.groundOf(this.row).at(event.clientX, event.clientY);
      if (place !== null) this.end(place);
    }
  }

  begin(row) {
    this.stop();
    this.row = row;
    const ground = this.groundOf(row);
    const stored = row.querySelector('[name="missing-insert"]').value;
    this.place = stored === "" ? 0 : Number(stored);
    ground.element.dataset.placing = "";
    ground.element.focus();
    this.announce(translate("Click where it belongs, or move with the arrow keys and press Enter. Escape cancels."));
    this.draw();
  }

  end(place) {
    const { row } = this;
    this.stop();
    this.put(row, String(place));
    row.querySelector("[data-places]").focus();
  }

  stop() {
    if (!this.row) return;
    delete this.groundOf(this.row).element.dataset.placing;
    this.row = null;
    this.draw();
  }

  put(row, value) {
    row.querySelector('[name="missing-insert"]').value = value;
    this.update();
    this.onChange();
  }

  key(event) {
    if (!this.row || event.ctrlKey || event.metaKey) return;
    const ground = this.groundOf(this.row);
    if (event.target !== ground.element) return;
    const steps = { ArrowRight: 1, ArrowLeft: -1 };
    if (event.key in steps) {
      this.place = ground.next(this.place, steps[event.key]);
      this.draw();
      const words = ground.words(this.place);
      this.announce(words ? translate("Before “{words}”", { words }) : translate("At the end"));
    } else if (event.key === "Home" || event.key === "End") {
      this.place = event.key === "Home" ? 0 : ground.points.length;
      this.draw();
    } else if (event.key === "Enter" || event.key === " ") this.end(this.place);
    else if (event.key === "Escape") {
      const { row } = this;
      this.stop();
      row.querySelector("[data-places]").focus();
    } else return;
    event.preventDefault();
  }

  /** What each row says of its place, in words. */
  update() {
    for (const row of this.screen.querySelectorAll(".missing__row")) {
      const value = row.querySelector('[name="missing-insert"]').value;
      const words = value === "" ? "" : this.groundOf(row).words(Number(value));
      row.querySelector("[data-placed]").textContent = value === "" ? "" : words ? translate("before “{words}”", { words }) : translate("at the end");
      row.querySelector("[data-unplaces]").hidden = value === "";
    }
    this.draw();
  }

  /* The carets lie over the text and not in it: whoever counts its characters must not meet them. */
  draw() {
    for (const caret of this.screen.querySelectorAll(".insert-caret")) caret.remove();
    for (const row of this.screen.querySelectorAll(".missing__row")) {
      const value = row.querySelector('[name="missing-insert"]').value;
      if (value !== "" && row !== this.row) this.caret(this.groundOf(row), Number(value));
    }
    if (this.row) this.caret(this.groundOf(this.row), this.place, true);
  }

  caret(ground, place, isMoving = false) {
    const at = ground.rectangle(place);
    if (!at) return;
    const card = ground.element.closest(".candidate");
    const frame = card.getBoundingClientRect();
    const caret = document.createElement("span");
    caret.className = "insert-caret";
    caret.toggleAttribute("data-moving", isMoving);
    caret.setAttribute("aria-hidden", "true");
    caret.style.left = `${at.left - frame.left - card.clientLeft}px`;
    caret.style.top = `${at.top - frame.top - card.clientTop}px`;
    caret.style.height = `${at.height}px`;
    card.append(caret);
    if (isMoving) caret.scrollIntoView({ block: "nearest" });
  }
}
