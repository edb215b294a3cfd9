/* Every page, loaded before the first paint: the theme that this browser chose, and the switch for it.
   Without JavaScript the system's theme holds and the switch stays hidden.

   And for all scripts `translate("Rank {letters} too.", { letters })` and, where a number decides the form,
   `translateCount("{count} draft", "{count} drafts", count)`, in the language of the page: its words stand in
   the page (webapp/templatetags/words.py); .ci/messages.py collects them from the scripts. */
(() => {
  "use strict";
  // What a string may become, where the browser asks (Trusted Types); static/js/trusted-types.js tells why.
  globalThis.trustedTypes?.createPolicy("default", {
    createHTML: (html) => html,
    createScriptURL: (address) => new URL(address, document.baseURI).origin === location.origin ? address : null,
  });
  let words = null;
  const found = (message) => {
    words ??= JSON.parse(document.getElementById("words")?.textContent ?? "{}");
    return words[message];
  };
  const filled = (text, values) => text.replace(/\{(\w+)\}/g, (whole, name) => name in values ? String(values[name]) : whole);
  globalThis.translate = (message, values = {}) => filled(found(message) ?? message, values);
  // Two forms, one for 1 and one for the rest: so it is in English and in German.
  globalThis.translateCount = (one, many, count, values = {}) => {
    const forms = found(one) ?? [one, many];
    return filled(forms[count === 1 ? 0 : 1], { count, ...values });
  };

  const root = document.documentElement;
  const names = ["system", "light", "dark"];
  const read = () => {
    try { return localStorage.getItem("rondo-theme") || "system"; } catch { return "system"; }
  };
  const apply = (theme) => {
    if (theme === "system") delete root.dataset.theme;
    else root.dataset.theme = theme;
    for (const button of document.querySelectorAll("[data-theme-choice]")) {
      button.setAttribute("aria-pressed", String(button.dataset.themeChoice === theme));
    }
  };
  root.dataset.script = "";
  apply(read());
  document.addEventListener("DOMContentLoaded", () => apply(read()));
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-theme-choice]");
    if (button && names.includes(button.dataset.themeChoice)) {
      try { localStorage.setItem("rondo-theme", button.dataset.themeChoice); } catch { /* private mode: this page only */ }
      apply(button.dataset.themeChoice);
    }
    for (const menu of document.querySelectorAll("details.menu[open]")) {
      if (!menu.contains(event.target)) menu.open = false;
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const menu of document.querySelectorAll("details.menu[open]")) {
      menu.open = false;
      menu.querySelector("summary").focus();
    }
  });
})();
