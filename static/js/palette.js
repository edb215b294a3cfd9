/* The command palette: Ctrl K or ⌘K opens it, typing searches (htmx), arrows move over the results, Enter opens. */
(() => {
  "use strict";
  const palette = document.getElementById("palette");
  if (!palette) return;
  const field = palette.querySelector("input[type=search]");
  const results = document.getElementById("palette-results");

  const links = () => [...results.querySelectorAll("a")];
  const move = (step) => {
    const places = [field, ...links()];
    const at = places.indexOf(document.activeElement);
    places[(at + step + places.length) % places.length].focus();
  };
  const open = () => {
    if (palette.open) return;
    palette.showModal();
    field.select();
    htmx.trigger(field, "palette:open");
  };

  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && !event.altKey && event.key.toLowerCase() === "k") {
      event.preventDefault();
      open();
    }
  });
  document.addEventListener("click", (event) => {
    if (event.target === palette) palette.close();
    if (!event.target.closest("[data-opens-palette]") || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    open();
  });
  palette.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      move(step);
    } else if (event.target !== field && event.key.length === 1 && !event.ctrlKey && !event.metaKey) {
      field.focus();
    }
  });
  // Enter in the field opens the first result; without one the form opens the page of results.
  field.form.addEventListener("submit", (event) => {
    const first = links()[0];
    if (!first) return;
    event.preventDefault();
    first.click();
  });
})();
