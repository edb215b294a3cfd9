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
