/* The tables of a project's data: one box selects all rows of a page. Without JavaScript each row is selected by
   itself, or all matching rows at once. */
const rowsIn = (form) => [...form.querySelectorAll('input[name="chosen"]')];

document.addEventListener("change", ({ target }) => {
  const form = target.closest("#rows");
  if (!form) return;
  const all = form.querySelector("[data-selects-all]");
  if (target === all) for (const row of rowsIn(form)) row.checked = all.checked;
  else if (target.name === "chosen") {
    const selected = rowsIn(form).filter((row) => row.checked).length;
    all.checked = selected === rowsIn(form).length;
    all.indeterminate = selected > 0 && !all.checked;
  }
});

/* A further condition: an empty copy of the last one. Without JavaScript each filtering adds one. */
document.addEventListener("click", ({ target }) => {
  const button = target.closest("[data-adds-condition]");
  if (!button) return;
  const conditions = [...document.querySelectorAll("[data-condition]")];
  const copy = conditions.at(-1).cloneNode(true);
  for (const field of copy.querySelectorAll("[id]")) {
    const id = `${field.name}-${conditions.length + 1}`;
    copy.querySelector(`label[for="${field.id}"]`).htmlFor = id;
    field.id = id;
    if (field.tagName === "SELECT") field.selectedIndex = 0;
    else field.value = "";
  }
  conditions.at(-1).after(copy);
  copy.querySelector('[name="column"]').focus();
});

/* A comparison opens in the panel beside the table where there is room for both. Elsewhere, and with a modifier key, its page
   opens. Esc closes the panel and goes back to the row; the arrow keys are those of way.js. */
const panel = document.querySelector("#comparison-panel");
const hasRoom = window.matchMedia("(width >= 80rem)");
let opener = null;
let shown = "";

const markShown = () => {
  for (const link of document.querySelectorAll("#rows [data-opens-panel]")) {
    if (!panel.hidden && link.pathname === shown) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
};

const closePanel = () => {
  panel.hidden = true;
  panel.replaceChildren();
  markShown();
  (opener?.isConnected ? opener : document.querySelector("#rows [data-opens-panel]"))?.focus();
};

if (panel) {
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-closes-panel]")) closePanel();
    const link = event.target.closest("[data-opens-panel]");
    if (!link || !hasRoom.matches || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    if (!panel.contains(link)) opener = link;
    shown = link.pathname;
    window.htmx.ajax("GET", link.href, { target: panel, swap: "innerHTML" });
  });
  panel.addEventListener("htmx:afterSettle", () => {
    panel.hidden = false;
    panel.scrollTop = 0;
    markShown();
    panel.querySelector("#panel-title")?.focus({ preventScroll: true });
  });
  document.addEventListener("htmx:afterSettle", markShown);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !panel.hidden && (event.target === document.body || panel.contains(event.target))) closePanel();
  });
}
