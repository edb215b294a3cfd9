/* Pastes into texts, where the project records them: how long, into which text, and whether the screen
   shows that text. The text itself is not sent. */
import { ask } from "./label-desk.js";

const AGAIN = 15000;
const flat = (text) => text.replaceAll(/\s+/g, " ").trim();

/** A random UUID; `crypto.randomUUID` is missing where the page came without TLS. */
function drawn() {
  const hex = [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}

/** The text that a field is a part of, and the response that it is about. */
function placeOf(field) {
  if (field.closest(".rewriter")) return ["correction", ""];
  const [, kind, token] = /^(critique|correction)-(.+)$/.exec(field.name) ?? [];
  if (kind) return [kind, token];
  if (field.name === "demonstration" || field.name === "comment") return [field.name, ""];
  return [field.closest("#questions") ? "answer" : "other", ""];
}

export class Pastes {
  constructor(screen) {
    Object.assign(this, { element: screen.element, address: screen.element.dataset.pastes, waiting: [], sending: false });
    this.element.addEventListener("paste", (event) => this.noted(event, event.clipboardData));
    this.element.addEventListener("drop", (event) => this.noted(event, event.dataTransfer));
  }

  noted(event, data) {
    const field = event.target.closest("textarea, input[type=text]");
    const text = data?.getData("text/plain") ?? "";
    if (!field || !text) return;
    const [kind, response] = placeOf(field);
    const shown = [...this.element.querySelectorAll(".question__prompt, [data-answer]")].map((part) => flat(part.textContent));
    const isOnScreen = shown.some((part) => part.includes(flat(text))) ? "on" : "";
    this.waiting.push({ key: drawn(), field: kind, response, characters: text.length, is_on_screen: isOnScreen });
    this.send();
  }

  /** One after another; what could not be sent is sent again. */
  async send() {
    if (this.sending) return;
    this.sending = true;
    while (this.waiting.length) {
      const { kind } = await ask(this.address, { form: this.waiting[0] });
      if (kind === "away" || kind === "signed-out") {
        setTimeout(() => this.send(), AGAIN);
        break;
      }
      this.waiting.shift();
    }
    this.sending = false;
  }
}
