/* A conversation between two judgments: the next message, and the responses while they are generated.
   Without it the buttons send, and responses are generated before the page opens. */
import { ask, cookie, fragmentOf } from "./label-desk.js";

const FIRST_PAUSE = 2000;
const LONGEST_PAUSE = 30_000;
const $ = (selector, root = document) => root.querySelector(selector);

/** Announce how the responses stand, and nothing of their text: a reader is not to be flooded. */
function announce(text) {
  $("#talk-status").textContent = text;
}

/** Server-sent events of a response, as objects. */
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (waiting + value).split("\n\n");
    waiting = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) yield JSON.parse(part.slice(6));
  }
}

export class Talk {
  constructor(element, desk) {
    Object.assign(this, { element, desk, pause: 0, form: $(".talk__form", element) });
    this.status = $("[data-talk-status]", element);
    element.addEventListener("click", (event) => {
      const leaves = event.target.closest("[data-leaves]");
      if (leaves) {
        event.preventDefault();
        desk.goTo(leaves.href);
      }
    });
    const { write } = element.dataset;
    if (!write) return;
    this.again = $("[data-again]", element);
    $("[data-retry]", element).addEventListener("submit", (event) => {
      event.preventDefault();
      this.write();
    });
  }

  enter() {
    if (this.element.dataset.write) this.write();
    else $("[data-focus]", this.element)?.focus({ preventScroll: true });
  }

  leave() {
    clearTimeout(this.timer);
    this.stop?.abort();
  }

  say(text, tone = "") {
    if (!this.status) return;
    this.status.textContent = text;
    this.status.dataset.tone = tone;
  }

  key(event) {
    if (event.key !== "Enter" || event.isComposing || event.defaultPrevented || !this.form) return;
    const isMessage = event.target === this.form.elements.text;
    const sends = isMessage ? !event.shiftKey && !event.altKey : (event.ctrlKey || event.metaKey);
    if (!sends || event.repeat) return;
    if (event.target.closest(".talk__end")) return;
    event.preventDefault();
    this.form.requestSubmit();
  }

  /** Have the responses generated, and show them as they come; after a failure once more, by itself. */
  async write() {
    clearTimeout(this.timer);
    this.stop?.abort();
    this.stop = new AbortController();
    const { signal } = this.stop;
    this.again.hidden = true;
    this.say(translate("Responses are being written…"));
    announce(translate("Responses are being written."));
    const places = new Map([...this.element.querySelectorAll("[data-coming]")].map((place) => [Number(place.dataset.coming), place]));
    for (const place of places.values()) place.replaceChildren();
    try {
      if (await this.read(places, signal)) return await this.finish();
    } catch {
      if (signal.aborted) return undefined;
    }
    return this.broken();
  }

  /** True once all responses are there. */
  async read(places, signal) {
    const response = await fetch(this.element.dataset.write, {
      method: "POST", signal, headers: { "HX-Request": "true", "X-CSRFToken": cookie("csrftoken") ?? "" },
    });
    if (response.status === 204) return true;
    if (!response.ok || !response.headers.get("Content-Type").startsWith("text/event-stream")) return false;
    for await (const data of eventsOf(response)) {
      for (const [position, text] of data.pieces ?? []) places.get(position)?.append(text);
      if (data.error) this.trouble = data.error;
      if (data.done) return true;
    }
    return false;
  }

  async finish() {
    const outcome = await ask(this.element.dataset.label);
    if (this.desk.current !== this) return undefined;
    if (outcome.kind !== "ok" || !fragmentOf(outcome.text)) return this.broken();
    announce(translate("Responses complete."));
    return this.desk.showAnswer(outcome.text);
  }

  broken() {
    if (this.desk.current !== this) return;
    this.pause = Math.min(LONGEST_PAUSE, this.pause * 2 || FIRST_PAUSE);
    const text = this.trouble ?? translate("The server cannot be reached.");
    this.trouble = null;
    this.say(`${text} ${translate("Trying again…")}`, "bad");
    announce(text);
    this.again.classList.remove("without-script");
    this.again.hidden = false;
    this.timer = setTimeout(() => this.write(), this.pause);
  }
}
