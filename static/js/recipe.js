// The recipe page: choosing another method shows its settings at once.
// Without this script the button beside the choice does it.
"use strict";

const choice = document.querySelector("#policy-choice");
const show = document.querySelector('#recipe-form button[name="show"]');
if (choice && show) {
  choice.addEventListener("change", () => choice.form.requestSubmit(show));
}
