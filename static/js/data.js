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
