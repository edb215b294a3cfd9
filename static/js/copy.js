/* A copy button on every code block of rendered text. Without JavaScript the code is selected by hand. */
(() => {
  const { copies, copied } = document.currentScript.dataset;
  const SHOWN_FOR = 2000;
  const BLOCKS = ":is(.prose, .answer-text) pre:not(:has(> .copies))";

  /** The button has no text, so that the text of a response stays as it is. */
  function button() {
    const element = document.createElement("button");
    Object.assign(element, { type: "button", className: "copies", title: copies });
    element.setAttribute("aria-label", copies);
    return element;
  }

  function addTo(root) {
    for (const block of root.querySelectorAll(BLOCKS)) block.append(button());
  }

  /** Without a secure connection browsers have no clipboard, but still copy what is selected. */
  async function copy(code) {
    if (navigator.clipboard) return navigator.clipboard.writeText(code.textContent);
    getSelection().selectAllChildren(code);
    if (!document.execCommand("copy")) throw new Error("not copied");
    return getSelection().removeAllRanges();
  }

  document.addEventListener("click", async (event) => {
    const element = event.target.closest(".copies");
    if (!element) return;
    try {
      await copy(element.parentElement.querySelector("code"));
    } catch {
      return;
    }
    element.dataset.done = "";
    element.setAttribute("aria-label", copied);
    setTimeout(() => {
      delete element.dataset.done;
      element.setAttribute("aria-label", copies);
    }, SHOWN_FOR);
  });
  addTo(document);
  // Screens, rows and responses come later, too.
  new MutationObserver((changes) => {
    for (const node of changes.flatMap(({ addedNodes }) => [...addedNodes])) {
      if (node.nodeType !== Node.ELEMENT_NODE) continue;
      if (node.matches(BLOCKS)) node.append(button());
      else addTo(node);
    }
  }).observe(document.body, { childList: true, subtree: true });
})();
