// Side by side and arenas: responses appear while they are generated, and each vote has a key.
// Without this script responses are generated before the page opens, and the buttons vote.
"use strict";

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  if (event.target.closest("input, select, textarea, summary")) return;
  const key = CSS.escape(event.key.length === 1 ? event.key.toLowerCase() : event.key);
  const button = document.querySelector(`.votes :is([data-key="${key}"], [data-letter="${key}"])`);
  if (button) {
    event.preventDefault();
    button.click();
  }
});

// A form that asks announces that its page has the responses generated.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (!form.matches("[data-ask]")) return;
  const stream = document.createElement("input");
  Object.assign(stream, { type: "hidden", name: "stream", value: "1" });
  form.append(stream);
  form.classList.add("is-writing");
});

// The browser may bring this page back as it was when it was left.
window.addEventListener("pageshow", () => {
  for (const form of document.querySelectorAll("form[data-ask]")) {
    form.classList.remove("is-writing");
    for (const field of form.querySelectorAll("input[name=stream]")) field.remove();
  }
});

const say = (text) => {
  const status = document.querySelector("[data-status]");
  if (status) status.textContent = text;
};

async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (waiting + value).split("\n\n");
    waiting = parts.pop();
    for (const part of parts) {
      if (part.startsWith("data: ")) yield JSON.parse(part.slice(6));
    }
  }
}

const post = (form, position) => {
  const body = new FormData(form);
  if (position) body.append("position", position);
  return fetch(form.action, { method: "POST", body, headers: { "X-Requested-With": "fetch" } });
};

/* Where the response would stand, which keeps room for it: nothing else moves. */
function showReason(reason, places) {
  for (const place of places) {
    const trouble = document.createElement("span");
    trouble.className = "message message--error";
    trouble.textContent = reason;
    place.replaceChildren(trouble);
  }
  say(reason);
}

async function write(form, place) {
  const response = await post(form, place.dataset.position);
  if (!response.ok) throw new Error(String(response.status));
  for await (const data of eventsOf(response)) {
    if (data.text) place.append(data.text);
    if (data.error) {
      showReason(data.error, [place]);
      return false;
    }
    if (data.done) return true;
  }
  return false;
}

async function showAll() {
  const response = await fetch(`${window.location.pathname}?part=answers`);
  if (!response.ok) return;
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  const answers = page.querySelector("#answers");
  if (answers) document.querySelector("#answers").replaceWith(answers);
}

/* The page to which a request was sent on says why a response is missing. */
async function reasonIn(response) {
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  return page.querySelector(".messages")?.textContent.trim() ?? "";
}

async function writeMissing() {
  const answers = document.querySelector("#answers[data-pending=yes]");
  const form = answers?.querySelector("form[data-write]");
  if (!form) return;
  form.classList.add("is-writing");
  const places = [...answers.querySelectorAll("[data-position]")];
  let written = [];
  try {
    if (answers.dataset.hidden) {
      // All at once: the speed of each would identify its model.
      const response = await post(form, "");
      const reason = response.ok ? await reasonIn(response) : "";
      if (reason) showReason(reason, places);
      written = [response.ok && !reason];
    } else {
      written = await Promise.all(places.map((place) => write(form, place)));
    }
  } catch {
    written = [false];
  }
  form.classList.remove("is-writing");
  if (written.every(Boolean)) {
    await showAll();
    say("");
  }
}

if (document.querySelector("#answers")) writeMissing();
