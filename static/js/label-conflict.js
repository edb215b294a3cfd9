/* Loaded when two pages hold different versions of one comparison: both are shown in words, and the
   person says which stays. */
import { formatOrder } from "./label-order.js";

const VERDICT = translate("Preference");
const ORDER = translate("Order");
const NAMED = { choice: VERDICT, span_flags: translate("Spans"), comment: translate("Comment") };
const SILENT = new Set(["active_seconds", "stands_on", "confirmed", "partial", "missing-candidate", "missing-category"]);

const letterOf = (form, token) => form.querySelector(`[data-candidate="${token}"]`)?.dataset.letter ?? "?";

function nameOf(field) {
  const label = field.getAttribute("aria-label") ?? field.labels?.[0]?.textContent ?? field.placeholder ?? "";
  return label.replace(/\s+/g, " ").trim() || field.name;
}

/** The words of one field's value: what a choice is called, what is selected, what was written. */
function wordsOf(form, name, value) {
  const fields = [...form.querySelectorAll(`[name="${CSS.escape(name)}"]`)];
  const field = fields.find((one) => one.type === "radio" && one.value === value) ?? fields[0];
  if (!field) return [name, value];
  if (field.type === "hidden") return null;
  if (field.type === "radio") {
    const rating = field.closest("[data-rating]")?.getAttribute("aria-label");
    const legend = rating ?? field.closest("fieldset")?.querySelector("legend")?.textContent.trim();
    return [NAMED[name] ?? legend ?? name, field.dataset.label ?? nameOf(field)];
  }
  if (field.tagName === "SELECT") return [nameOf(field), [...field.options].find((option) => option.value === value)?.textContent.trim() ?? value];
  return [NAMED[name] ?? nameOf(field), value];
}

/** Pairs of a part's name and what was said in it. `form` is a page that shows the same comparison. */
export function describe(fields, form, categories) {
  let said = [];
  const ranks = new Map();
  for (const [name, value] of fields) {
    if (!value || SILENT.has(name)) continue;
    if (name.startsWith("rank-")) {
      ranks.set(letterOf(form, name.slice(5)), Number(value));
    } else if (name === "span_flags") {
      for (const { candidate, category, quote, severity, note } of JSON.parse(value)) {
        const label = categories.find(({ key }) => key === category)?.label ?? category;
        const where = translate("{label} in {letter}", { label, letter: letterOf(form, candidate) });
        const how = severity ? translate(", severity {severity}", { severity }) : "";
        said.push([NAMED.span_flags, translate("{mark}: “{quote}”", { mark: where + how, quote }) + (note ? ` (${note})` : "")]);
      }
    } else {
      said.push(wordsOf(form, name, value));
    }
  }
  said = said.filter(Boolean);
  const rest = fields.some(([name, value]) => name === "partial" && value) ? " > …" : "";
  if (ranks.size) said.unshift([ORDER, formatOrder(ranks) + rest]);
  return said;
}

/** What both say alike needs no choice; the verdict is shown always. */
function apart(mine, theirs) {
  const told = new Set(theirs.map((pair) => pair.join("\n")));
  return mine.filter((pair) => [VERDICT, ORDER].includes(pair[0]) || !told.has(pair.join("\n")));
}

function version(title, said) {
  const section = document.createElement("section");
  const heading = document.createElement("h3");
  heading.textContent = title;
  const list = document.createElement("dl");
  for (const [name, words] of said.length ? said : [[translate("Nothing"), translate("nothing that the other lacks")]]) {
    const row = document.createElement("div");
    const term = document.createElement("dt");
    const detail = document.createElement("dd");
    term.textContent = name;
    detail.textContent = words;
    row.append(term, detail);
    list.append(row);
  }
  section.append(heading, list);
  return section;
}

function button(text, value) {
  const made = document.createElement("button");
  Object.assign(made, { type: "submit", value, textContent: text, className: "button" });
  return made;
}

/** Asks which version stays: "mine" or "theirs". `explanation` says how it came to be. */
export function choose({ mine, theirs, explanation }) {
  const dialog = document.createElement("dialog");
  dialog.className = "sheet conflict";
  dialog.setAttribute("aria-labelledby", "conflict-heading");
  const heading = document.createElement("h2");
  heading.id = "conflict-heading";
  heading.textContent = translate("Two versions of one annotation");
  const told = document.createElement("p");
  told.textContent = explanation;
  const both = document.createElement("div");
  both.className = "conflict__versions";
  both.append(version(translate("Mine, from this page"), apart(mine, theirs)), version(translate("The other"), apart(theirs, mine)));
  const form = document.createElement("form");
  form.method = "dialog";
  form.className = "row";
  form.append(button(translate("Keep mine"), "mine"), button(translate("Take the other"), "theirs"));
  dialog.append(heading, told, both, form);
  document.body.append(dialog);
  return new Promise((resolve) => {
    // Closing it is no answer: one of both would be lost by chance.
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    dialog.addEventListener("close", () => {
      if (!dialog.returnValue) return dialog.showModal();
      dialog.remove();
      resolve(dialog.returnValue);
    });
    dialog.showModal();
  });
}
