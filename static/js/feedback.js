// Feedback from another site's page. Works under a strict policy: script-src and connect-src name Rondo.
// <script src="https://rondo.example.org/static/js/feedback.js" data-key="rondo_pk_…" defer></script>
// <button data-rondo-completion="chatcmpl-…" data-rondo-thumb="up" aria-pressed="false">👍</button>
// Or: rondoFeedback("chatcmpl-…", { rating: 4 }, "pseudonym of the user") resolves to true once it is stored.
(() => {
  const { src, dataset } = document.currentScript;
  const address = new URL("../../api/v1/feedback/", src);

  const visitor = () => {
    try {
      return (localStorage.rondoVisitor ||= crypto.randomUUID());
    } catch {
      return (window.rondoVisitor ||= `${Math.random()}`);
    }
  };

  window.rondoFeedback = async (completion, feedback, user = dataset.user || visitor(), again = 3) => {
    const answer = await fetch(address, {
      method: "POST",
      credentials: "omit",
      keepalive: true,
      headers: { Authorization: "Bearer " + dataset.key, "Content-Type": "application/json" },
      body: JSON.stringify({ completion, user, ...feedback }),
    }).catch(() => ({ status: 503 }));
    // The completion may be a moment from being stored.
    if (again > 0 && [404, 429, 503].includes(answer.status)) {
      await new Promise((resolve) => setTimeout(resolve, 4000 / 2 ** again));
      return window.rondoFeedback(completion, feedback, user, again - 1);
    }
    return Boolean(answer.ok);
  };

  document.addEventListener("click", async ({ target }) => {
    const button = target.closest?.("[data-rondo-thumb]");
    if (!button) return;
    const { rondoCompletion: id, rondoThumb: thumb } = button.dataset;
    if (!(await window.rondoFeedback(id, { thumb }))) return;
    for (const other of document.querySelectorAll("[data-rondo-thumb]")) {
      if (other.dataset.rondoCompletion === id) other.setAttribute("aria-pressed", other === button);
    }
  });
})();
