/* Steps of a trace: arrow keys walk and fold them, digits label them, long texts come in parts when a step is
   opened. Without JavaScript steps fold all the same, labels are radio buttons, and "show more" is a page. */
const $ = (selector, root) => root.querySelector(selector);
const $$ = (selector, root) => [...root.querySelectorAll(selector)];
const LABELS = { 1: "correct", 2: "wrong", 3: "unnecessary" };
const CLEARS = new Set(["0", "Backspace", "Delete"]);

export class Steps {
  constructor(root) {
    this.root = root;
    root.addEventListener("click", (event) => this.clicked(event));
    root.addEventListener("toggle", (event) => this.toggled(event.target), true);
    for (const group of $$("[data-step-label]", root)) group.dataset.chosen = $("input:checked", group)?.value ?? "";
  }

  /** Go to the first step that has no label, or to the first of all. */
  focus() {
    const steps = $$("[data-step]", this.root);
    const unlabelled = steps.find((step) => $("[data-step-label]", step) && !$("input:checked", step));
    this.go(unlabelled ?? steps[0]);
  }

  /** True if the key was meant for the step that has the focus. */
  handleKey(event) {
    const step = event.target.closest?.("[data-step]");
    if (!step || event.altKey || event.ctrlKey || event.metaKey) return false;
    const group = $("[data-step-label]", step);
    if (group && (event.key in LABELS || CLEARS.has(event.key))) return this.label(step, group, LABELS[event.key] ?? "");
    // Arrow keys belong to radio buttons, and to the text that scrolls.
    if (!event.target.closest("summary")) return false;
    const fold = $("details", step);
    const column = this.column(step);
    const place = column.indexOf(step);
    const moves = {
      ArrowDown: () => this.go(column[place + 1]),
      ArrowUp: () => this.go(column[place - 1]),
      Home: () => this.go(column[0]),
      End: () => this.go(column.at(-1)),
      ArrowRight: () => this.fold(step, fold, true),
      ArrowLeft: () => this.fold(step, fold, false),
    };
    if (!(event.key in moves)) return false;
    moves[event.key]();
    return true;
  }

  column(step) {
    return $$("[data-step]", this.root).filter(({ dataset }) => dataset.column === step.dataset.column);
  }

  go(step) {
    if (!step) return;
    const head = $("summary", step);
    head.focus({ preventScroll: true });
    head.scrollIntoView({ block: "nearest" });
  }

  /** Open or close; what is open already leads to the step beside it. */
  fold(step, fold, open) {
    if (fold.open !== open) fold.open = open;
    else this.go($$("[data-step]", step.closest("li")).find((other) => other !== step));
  }

  label(step, group, value) {
    for (const radio of $$("input", group)) radio.checked = radio.value === value;
    this.chosen(group, value);
    if (!value) return true;
    const column = this.column(step);
    this.go(column.slice(column.indexOf(step) + 1).find((next) => $("[data-step-label]", next)) ?? step);
    return true;
  }

  chosen(group, value) {
    group.dataset.chosen = value;
    group.dispatchEvent(new Event("change", { bubbles: true }));
  }

  clicked(event) {
    const radio = event.target.closest("[data-step-label] input");
    if (radio) {
      // A second click takes a label back.
      const group = radio.closest("[data-step-label]");
      if (group.dataset.chosen === radio.value) {
        radio.checked = false;
        this.chosen(group, "");
      } else group.dataset.chosen = radio.value;
      return;
    }
    const more = event.target.closest("[data-more]");
    if (!more || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    this.load(more);
  }

  /** The first part of a long text comes with opening its step. */
  toggled(fold) {
    const more = fold.open && fold.matches(".step__fold") && $("[data-more]:not([data-loaded])", fold);
    if (more) this.load(more);
  }

  async load(more) {
    if (more.hasAttribute("aria-busy")) return;
    more.setAttribute("aria-busy", "true");
    try {
      const answer = await fetch(more.href, { headers: { Accept: "application/json" } });
      if (!answer.ok || !answer.headers.get("Content-Type")?.includes("json")) throw new Error(String(answer.status));
      const { text, next, left } = await answer.json();
      $(".step__text", more.parentElement).append(text);
      more.setAttribute("data-loaded", "");
      if (next) {
        more.href = next;
        $("[data-left]", more).textContent = String(left);
      } else more.remove();
    } catch {
      // The link stays: pressed again it tries again.
      more.setAttribute("data-failed", "");
    }
    more.removeAttribute("aria-busy");
  }
}

const alone = document.querySelector("[data-steps-alone]");
if (alone) {
  const steps = new Steps(alone);
  document.addEventListener("keydown", (event) => steps.handleKey(event) && event.preventDefault());
}
