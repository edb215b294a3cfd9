/* Labelling screen, three answers and more: the order as typed text, as a rank beside each answer, by
   letter keys, and by dragging letters between tiers or whole cards onto each other. Each way updates the
   others; the selects are what is submitted. */

/* "…" or dots at the end of a typed order: the rest stays below, unordered. */
const REST = /[….]/;

/** Reads "B > C = D > A" (or "BC=DA", or "B > C > …"): ranks by letter, whether the rest is left unordered,
    or what is wrong with it. */
export function parseOrder(text, letters) {
  const ranks = new Map();
  let rank = 0;
  let tied = false;
  let rest = false;
  for (const character of text.toUpperCase()) {
    if (letters.includes(character)) {
      if (rest) return { ranks, rest, error: translate("“…” is the rest, in no order: write it last.") };
      if (ranks.has(character)) return { ranks, error: translate("{character} stands there twice.", { character }) };
      rank += tied && rank > 0 ? 0 : 1;
      ranks.set(character, rank);
      tied = false;
    } else if (character === "=") {
      tied = true;
    } else if (character === ">") {
      tied = false;
    } else if (REST.test(character) && ranks.size) {
      rest = true;
    } else if (!/[\s,]/.test(character)) {
      return { ranks, error: translate("“{character}” is no response here. Write for example {order}.", { character, order: letters.join(" > ") }) };
    }
  }
  return { ranks, rest, error: "" };
}

/** The text of an order: letters by rank, ties joined by "=". */
export function formatOrder(ranks) {
  const groups = new Map();
  for (const [letter, rank] of ranks) groups.set(rank, [...(groups.get(rank) ?? []), letter]);
  return [...groups.keys()].sort((a, b) => a - b).map((rank) => groups.get(rank).sort().join(" = ")).join(" > ");
}

/** The letters of each tier, best first. */
function tiersOf(ranks) {
  const tiers = new Map();
  for (const [letter, rank] of [...ranks].sort((a, b) => a[1] - b[1])) tiers.set(rank, [...(tiers.get(rank) ?? []), letter]);
  return [...tiers.values()];
}

/** Ranks after a letter was put at a place: places count gap, tier, gap, tier … gap from the best on; -1 is none. */
export function placed(ranks, letter, place) {
  const tiers = tiersOf(ranks);
  const target = place % 2 === 1 ? tiers[(place - 1) / 2] : null;
  const after = place < 0 ? null : tiers[place / 2 - 1] ?? null;
  const rest = tiers.map((tier) => tier.filter((other) => other !== letter));
  if (target) rest[tiers.indexOf(target)].push(letter);
  else if (place >= 0) rest.splice(after ? tiers.indexOf(after) + 1 : 0, 0, [letter]);
  return new Map(rest.filter((tier) => tier.length).flatMap((tier, i) => tier.map((other) => [other, i + 1])));
}

/** Ranks after a letter was put "before" another, "after" it or in a "tie" with it. One without a rank comes last. */
export function placedBeside(ranks, letter, other, side) {
  const tiers = tiersOf(ranks).map((tier) => tier.filter((one) => one !== letter)).filter((tier) => tier.length);
  if (!ranks.has(other)) tiers.push([other]);
  const at = tiers.findIndex((tier) => tier.includes(other));
  if (side === "tie") tiers[at].push(letter);
  else tiers.splice(side === "before" ? at : at + 1, 0, [letter]);
  return new Map(tiers.flatMap((tier, i) => tier.map((one) => [one, i + 1])));
}

export class Order {
  constructor(screen, { announce, onChange, say }) {
    Object.assign(this, { announce, onChange, say });
    this.cards = new Map(
      [...screen.querySelectorAll(".candidate")].map((card) => [card.dataset.letter, card]),
    );
    this.letters = [...this.cards.keys()];
    this.selects = new Map(this.letters.map((letter) => [letter, this.cards.get(letter).querySelector(".rank__select")]));
    this.input = screen.querySelector("#order");
    this.rest = screen.querySelector('[name="partial"]');
    this.restLabel = this.rest.closest("label");
    screen.querySelector(".dock__foot").prepend(this.restLabel);
    this.noWins = [...screen.querySelectorAll('input[name="choice"]')];
    this.placed = [];
    this.tieNext = false;
    this.error = "";
    this.board = new Board(screen.querySelector("[data-tiers]"), this);
    this.dragging = new Cards(this, this.board);
    for (const letter of this.letters) this.addButtons(letter);
    this.placed = [...this.ranks().keys()];
    this.input.addEventListener("input", () => this.read());
    this.input.addEventListener("blur", () => this.show());
    this.rest.addEventListener("change", () => this.leaveRest(this.rest.checked));
    screen.querySelector("[data-clears-order]").addEventListener("click", () => this.clear());
    for (const radio of this.noWins) radio.addEventListener("change", () => radio.checked && this.set(new Map(), { keepChoice: true }));
    this.show();
  }

  /** Ranks by letter, of those that have one. */
  ranks() {
    return new Map(
      this.letters.filter((letter) => this.selects.get(letter).value)
        .map((letter) => [letter, Number(this.selects.get(letter).value)]),
    );
  }

  /** The letters without a rank. */
  unranked() {
    const ranks = this.ranks();
    return this.letters.filter((letter) => !ranks.has(letter));
  }

  /** The letters that still need a rank: none where the rest is left unordered. */
  missing() {
    return this.unordered().length ? [] : this.unranked();
  }

  /** The letters that are left unordered, below all ranked ones. */
  unordered() {
    return this.rest.checked && !this.rest.disabled ? this.unranked() : [];
  }

  /** The order in words, with what it leaves unordered. */
  words() {
    const rest = this.unordered();
    const order = formatOrder(this.ranks());
    return rest.length ? translate("{order}; not ordered: {rest}", { order, rest: rest.join(", ") }) : this.input.value;
  }

  /** Leave the rest unordered, or do not. One that is left is simply the last. */
  leaveRest(leave) {
    const rest = this.unranked();
    if (leave && rest.length === 1) return this.append(rest[0]);
    this.rest.checked = leave;
    this.tieNext = false;
    this.show({ changed: true });
    if (leave) this.announce(this.words());
  }

  addButtons(letter) {
    const select = this.selects.get(letter);
    select.addEventListener("change", () => this.show({ changed: true }));
    // Beyond five a row of buttons is slower to hit than the list.
    if (this.letters.length > 5) return;
    const buttons = document.createElement("span");
    buttons.className = "rank__buttons";
    for (let rank = 1; rank <= this.letters.length; rank += 1) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = String(rank);
      button.setAttribute("aria-pressed", "false");
      button.setAttribute("aria-label", translate("Rank response {letter} {rank}", { letter, rank }));
      button.addEventListener("click", () => this.setRank(letter, rank));
      buttons.append(button);
    }
    select.after(buttons);
    select.hidden = true;
  }

  setRank(letter, rank) {
    const ranks = this.ranks();
    if (ranks.get(letter) === rank) ranks.delete(letter);
    else ranks.set(letter, rank);
    this.placed = [...this.placed.filter((other) => other !== letter), ...(ranks.has(letter) ? [letter] : [])];
    this.set(ranks);
  }

  /** The letter comes next: after the worst so far, or tied with it after "=". */
  append(letter) {
    const ranks = this.ranks();
    ranks.delete(letter);
    const worst = Math.max(0, ...ranks.values());
    const distinct = [...new Set(ranks.values())].sort((a, b) => a - b);
    for (const [other, rank] of ranks) ranks.set(other, distinct.indexOf(rank) + 1);
    ranks.set(letter, this.tieNext && worst ? distinct.length : distinct.length + 1);
    this.tieNext = false;
    this.placed = [...this.placed.filter((other) => other !== letter), letter];
    this.set(ranks);
  }

  /** One is worst and all others tie. */
  worst(letter) {
    this.placed = [...this.letters.filter((other) => other !== letter), letter];
    this.set(new Map(this.letters.map((other) => [other, other === letter ? 2 : 1])));
  }

  tie() {
    if (!this.placed.length) return false;
    this.tieNext = true;
    this.show();
    return true;
  }

  takeBack() {
    if (this.tieNext) {
      this.tieNext = false;
      this.show();
      return;
    }
    const ranks = this.ranks();
    ranks.delete(this.placed.pop());
    this.set(ranks);
  }

  clear() {
    this.placed = [];
    this.tieNext = false;
    this.set(new Map());
  }

  /** Put an answer at a place of the board; see `placed`. */
  put(letter, place) {
    this.move(letter, placed(this.ranks(), letter, place));
  }

  /** Put a response before or after another, or in a tie with it; see `placedBeside`. */
  putBeside(letter, other, side) {
    this.move(letter, placedBeside(this.ranks(), letter, other, side));
  }

  /** Take ranks in which a letter has moved, and say where it is. */
  move(letter, ranks) {
    this.placed = [...this.placed.filter((other) => other !== letter && ranks.has(other)), ...[...ranks.keys()].filter((other) => other !== letter && !this.placed.includes(other)), ...(ranks.has(letter) ? [letter] : [])];
    this.set(ranks);
    const tied = [...ranks].filter(([other, rank]) => other !== letter && rank === ranks.get(letter)).map(([other]) => other);
    const said = { letter, rank: ranks.get(letter), others: tied.join(", ") };
    if (!ranks.has(letter)) this.announce(translate("{letter} has no rank", said));
    else this.announce(tied.length ? translate("{letter} has rank {rank}, tied with {others}", said) : translate("{letter} has rank {rank}", said));
  }

  read() {
    const { ranks, rest, error } = parseOrder(this.input.value, this.letters);
    const left = this.letters.filter((letter) => !ranks.has(letter));
    if (rest && left.length === 1) ranks.set(left[0], Math.max(...ranks.values()) + 1);
    this.error = error;
    this.placed = [...ranks.keys()];
    this.set(ranks, { rest: Boolean(rest) });
  }

  set(ranks, { keepChoice = false, rest = this.rest.checked } = {}) {
    for (const [letter, select] of this.selects) select.value = String(ranks.get(letter) ?? "");
    this.rest.checked = rest;
    if (!keepChoice && ranks.size) for (const radio of this.noWins) radio.checked = false;
    if (keepChoice) this.placed = [];
    this.show({ changed: true });
  }

  show({ changed = false } = {}) {
    const ranks = this.ranks();
    const distinct = [...new Set(ranks.values())].sort((a, b) => a - b);
    // Of all or none nothing is the rest; what was said of it does not outlast that.
    this.rest.disabled = !ranks.size || ranks.size === this.letters.length;
    this.restLabel.hidden = this.rest.disabled;
    if (this.rest.disabled) this.rest.checked = false;
    for (const [letter, card] of this.cards) {
      const rank = ranks.get(letter);
      for (const button of card.querySelectorAll(".rank__buttons button")) {
        button.setAttribute("aria-pressed", String(Number(button.textContent) === rank));
      }
      if (rank) card.dataset.place = String(distinct.indexOf(rank) + 1);
      else delete card.dataset.place;
    }
    this.board.draw(ranks);
    if (document.activeElement !== this.input) {
      this.input.value = formatOrder(ranks) + (this.unordered().length ? " > …" : this.tieNext ? " =" : "");
      this.error = "";
    }
    this.input.setAttribute("aria-invalid", String(Boolean(this.error)));
    if (changed) {
      if (ranks.size) for (const radio of this.noWins) radio.checked = false;
      this.onChange();
    }
  }

  /** On a letter of the board: arrows move it, Delete takes its rank. True when the key meant something. */
  handleChipKey(event) {
    const chip = event.target.closest?.("[data-chip]");
    return Boolean(chip) && !event.altKey && this.board.moveByKey(chip.dataset.chip, event.key);
  }

  /** Letters, the rank of the response that has the focus, the keys for a tie, to take back, to type. True when
      it meant something. A digit is a rank and nothing else: by number a response has no name on the screen. */
  handleKey(event, name, keys) {
    const letter = event.key.length === 1 ? event.key.toUpperCase() : "";
    if (this.letters.includes(letter)) {
      if (event.shiftKey) this.worst(letter);
      else this.append(letter);
      return true;
    }
    if (/^[1-9]$/.test(event.key) && Number(event.key) <= this.letters.length) {
      const card = event.target.closest?.(".candidate");
      if (card) this.setRank(card.dataset.letter, Number(event.key));
      else this.say(translate("Focus a response (Tab or click), then press its rank."));
      return true;
    }
    if (name === keys.equal) return this.tie();
    if (name === keys.rest && !this.rest.disabled) {
      this.leaveRest(!this.rest.checked);
      return true;
    }
    if (name === keys.take_back) {
      this.takeBack();
      return true;
    }
    if (name === keys.type_order) {
      this.input.focus();
      this.input.select();
      return true;
    }
    return false;
  }
}

/** The tiers with their letters, between them gaps; a letter is dropped on a tier (a tie) or in a gap. */
class Board {
  constructor(element, order) {
    Object.assign(this, { element, order });
    this.chips = new Map(order.letters.map((letter) => [letter, this.chip(letter)]));
    element.addEventListener("pointermove", (event) => this.drag(event));
    element.addEventListener("pointerup", (event) => this.drop(event));
    element.addEventListener("pointercancel", () => this.stop());
  }

  chip(letter) {
    const chip = document.createElement("button");
    Object.assign(chip, { type: "button", className: "tier__chip", textContent: letter });
    chip.dataset.chip = letter;
    chip.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      this.dragged = { letter, chip, x: event.clientX, y: event.clientY, moved: false };
      this.element.setPointerCapture(event.pointerId);
      chip.focus();
      event.preventDefault();
    });
    chip.addEventListener("click", () => this.order.ranks().has(letter) || this.order.append(letter));
    return chip;
  }

  zone(place, letters = []) {
    const zone = document.createElement("span");
    zone.className = place < 0 ? "tier tier--none" : place % 2 ? "tier" : "tier-gap";
    zone.dataset.place = String(place);
    zone.append(...letters.map((letter) => this.chips.get(letter)));
    return zone;
  }

  draw(ranks) {
    const focused = [...this.chips.values()].find((chip) => chip === document.activeElement);
    const tiers = tiersOf(ranks);
    const zones = [this.zone(0), ...tiers.flatMap((letters, i) => [this.zone(2 * i + 1, [...letters].sort()), this.zone(2 * i + 2)])];
    const unranked = this.order.unranked();
    const isRest = this.order.unordered().length > 0;
    this.element.replaceChildren(...zones, this.zone(-1, unranked));
    for (const [letter, chip] of this.chips) {
      chip.setAttribute("aria-label", ranks.has(letter)
        ? translate("Response {letter}, rank {rank}", { letter, rank: ranks.get(letter) })
        : isRest ? translate("Response {letter}, not ordered", { letter }) : translate("Response {letter}, not ranked", { letter }));
    }
    focused?.focus({ preventScroll: true });
  }

  drag(event) {
    const { dragged } = this;
    if (!dragged) return;
    const [x, y] = [event.clientX - dragged.x, event.clientY - dragged.y];
    // A finger that only taps trembles a little.
    if (!dragged.moved && Math.hypot(x, y) < 5) return;
    dragged.moved = true;
    dragged.chip.classList.add("tier__chip--dragged");
    dragged.chip.style.translate = `${x}px ${y}px`;
    const zone = this.nearest(event);
    this.aim(zone);
  }

  /** Show the zone on which a letter would be dropped now. */
  aim(zone) {
    for (const other of this.element.children) other.toggleAttribute("data-target", other === zone);
  }

  /** The zone that is nearest to the pointer. */
  nearest({ clientX, clientY }) {
    const distance = (zone) => {
      const box = zone.getBoundingClientRect();
      const away = (low, high, at) => Math.max(low - at, 0, at - high);
      return Math.hypot(away(box.left, box.right, clientX), 2 * away(box.top, box.bottom, clientY));
    };
    return [...this.element.children].reduce((best, zone) => distance(zone) < distance(best) ? zone : best);
  }

  drop(event) {
    const { dragged } = this;
    const zone = dragged?.moved && this.nearest(event);
    this.stop();
    if (zone) this.order.put(dragged.letter, Number(zone.dataset.place));
    else if (dragged) dragged.chip.click();
  }

  stop() {
    const { dragged } = this;
    this.dragged = null;
    if (!dragged) return;
    dragged.chip.classList.remove("tier__chip--dragged");
    dragged.chip.style.translate = "";
    this.aim();
  }

  moveByKey(letter, key) {
    const by = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[key];
    const ranks = this.order.ranks();
    if (key === "Delete" && ranks.has(letter)) {
      this.order.put(letter, -1);
    } else if (by) {
      const tiers = tiersOf(ranks);
      const tier = tiers.findIndex((letters) => letters.includes(letter));
      // From a tier of its own the neighbouring gaps change nothing: the next tier is meant.
      const step = tier >= 0 && tiers[tier].length === 1 ? 2 : 1;
      const place = tier < 0 ? 2 * tiers.length : 2 * tier + 1 + by * step;
      if (place < 0 || place > 2 * tiers.length) return true;
      this.order.put(letter, place);
    } else {
      return false;
    }
    this.chips.get(letter).focus({ preventScroll: true });
    return true;
  }
}

/* A whole card is dragged onto another: its first third puts it before, its last third behind, the middle ties
   both. By keyboard letters, digits and arrows do the same. In one file with the order: a request less. */
const EDGE = 72;
const STEP = 14;

class Cards {
  constructor(order, board) {
    Object.assign(this, { order, board });
    for (const [letter, card] of order.cards) this.listen(letter, card);
    this.onKey = (event) => event.key === "Escape" && this.stop();
  }

  listen(letter, card) {
    const head = card.querySelector(".candidate__head");
    head.addEventListener("pointerdown", (event) => this.begin(event, letter, card, head));
    head.addEventListener("pointermove", (event) => this.drag(event));
    head.addEventListener("pointerup", (event) => this.drop(event));
    head.addEventListener("pointercancel", () => this.stop());
  }

  begin(event, letter, card, head) {
    if (event.button || event.target.closest("button, select, a")) return;
    // A finger on the head of a card scrolls; on its grip it drags.
    if (event.pointerType !== "mouse" && !event.target.closest("[data-grip]")) return;
    event.preventDefault();
    head.setPointerCapture(event.pointerId);
    document.addEventListener("keydown", this.onKey);
    this.dragged = { letter, card, x: event.clientX, y: event.clientY + scrollY, moved: false };
  }

  drag(event) {
    const { dragged } = this;
    if (!dragged) return;
    const [x, y] = [event.clientX - dragged.x, event.clientY + scrollY - dragged.y];
    if (!dragged.moved && Math.hypot(x, y) < 5) return;
    dragged.moved = true;
    dragged.card.classList.add("candidate--dragged");
    dragged.card.style.translate = `${x}px ${y}px`;
    if (event.clientY < EDGE) scrollBy(0, -STEP);
    else if (event.clientY > innerHeight - EDGE) scrollBy(0, STEP);
    this.show(this.target(event));
  }

  /** What lies under the pointer: another card and the side of it, a zone of the board, or nothing. */
  target(event) {
    const under = document.elementFromPoint(event.clientX, event.clientY);
    const zone = under?.closest("[data-tiers]") && this.board.nearest(event);
    if (zone) return { zone };
    const card = under?.closest(".candidate");
    if (!card || card === this.dragged.card) return {};
    const box = card.getBoundingClientRect();
    const isColumn = box.width > 0.6 * card.parentElement.clientWidth;
    const part = isColumn ? (event.clientY - box.top) / box.height : (event.clientX - box.left) / box.width;
    return { card, side: part < 1 / 3 ? "before" : part > 2 / 3 ? "after" : "tie", isColumn };
  }

  show({ card, side, isColumn, zone } = {}) {
    for (const other of this.order.cards.values()) {
      if (other === card) other.dataset.drop = isColumn ? `${side}-below` : side;
      else delete other.dataset.drop;
    }
    this.board.aim(zone);
  }

  drop(event) {
    const { dragged } = this;
    if (!dragged) return;
    const { card, side, zone } = dragged.moved ? this.target(event) : {};
    this.stop();
    if (zone) this.order.put(dragged.letter, Number(zone.dataset.place));
    else if (card) this.order.putBeside(dragged.letter, card.dataset.letter, side);
    // A click gives the card the focus: a digit is its rank then.
    else if (!dragged.moved) dragged.card.querySelector("[data-answer]").focus({ preventScroll: true });
  }

  stop() {
    const { dragged } = this;
    this.dragged = null;
    if (!dragged) return;
    document.removeEventListener("keydown", this.onKey);
    dragged.card.classList.remove("candidate--dragged");
    dragged.card.style.translate = "";
    this.show();
  }
}
