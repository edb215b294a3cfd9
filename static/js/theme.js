/* Every page, loaded before the first paint: the theme and density that this browser chose, and their switches.
   Without JavaScript the system's theme holds and the switches stay hidden.

   And for all scripts `translate("Rank {letters} too.", { letters })` and, where a number decides the form,
   `translateCount("{count} draft", "{count} drafts", count)`, in the language of the page: its words stand in
   the page (webapp/templatetags/rondo.py); .ci/messages.py collects them from the scripts. */
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
  // The first of each is how the page is without a choice.
  const choices = { theme: ["system", "light", "dark"], density: ["comfortable", "compact"] };
  const read = (name) => {
    try { return localStorage.getItem(`rondo-${name}`) ?? choices[name][0]; } catch { return choices[name][0]; }
  };
  const apply = (name, chosen) => {
    if (chosen === choices[name][0] || !choices[name].includes(chosen)) delete root.dataset[name];
    else root.dataset[name] = chosen;
    for (const button of document.querySelectorAll(`[data-${name}-choice]`)) {
      button.setAttribute("aria-pressed", String(button.dataset[`${name}Choice`] === (root.dataset[name] ?? choices[name][0])));
    }
  };
  const applyAll = () => { for (const name of Object.keys(choices)) apply(name, read(name)); };
  root.dataset.script = "";
  applyAll();
  document.addEventListener("DOMContentLoaded", applyAll);
  document.addEventListener("click", (event) => {
    for (const name of Object.keys(choices)) {
      const chosen = event.target.closest(`[data-${name}-choice]`)?.dataset[`${name}Choice`];
      if (!choices[name].includes(chosen)) continue;
      try { localStorage.setItem(`rondo-${name}`, chosen); } catch { /* private mode: this page only */ }
      apply(name, chosen);
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
