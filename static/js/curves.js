/* A run's page: draws its curves, asks for what is new in them, and tells the values at a step.

   The server drew them once, so without JavaScript they are there as they were; then the log scale, smoothing,
   the read-out and the growth are missing. Spikes are never lost: a bucket of steps is drawn from its least to
   its greatest value. Smoothing is an exponential mean of the buckets' means, without bias at the beginning. */
(() => {
  "use strict";
  const WIDTH = 320, HEIGHT = 96, EVERY = 2000, AT_ONCE = 50;
  const LOW_STEP = 0, LOW = 1, HIGH_STEP = 2, HIGH = 3, MEAN = 4;
  const root = document.getElementById("curves");
  if (!root) return;
  const runs = [];
  const slider = root.querySelector("#curve-step");
  const logScale = root.querySelector("[data-log]");
  const smoothing = root.querySelector("#curve-smoothing");
  let chosenStep = null;

  const isGap = (point) => point.length === 1;
  const beginOf = (point) => isGap(point) ? point[0] : Math.min(point[LOW_STEP], point[HIGH_STEP]);
  const figure = (value) => {
    if (value === null || value === undefined || !Number.isFinite(value)) return "–";
    const text = value.toPrecision(4);
    if (text.includes("e")) return text.replace(/\.?0+e/, "e");
    return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
  };

  // ── What is known ─────────────────────────────────────────────────────────────────

  const take = (news) => {
    let grew = false;
    news.runs.forEach((told, number) => {
      const known = runs[number] ??= { metrics: new Map(), mark: "" };
      const since = Number(known.mark.split("-").at(-1) || 0);
      if (told.all) known.metrics.clear();
      for (const [name, points] of Object.entries(told.metrics)) {
        const kept = known.metrics.get(name) ?? [];
        // The bucket of the last step that was known comes again, fuller.
        const from = Math.floor(since / told.width);
        while (kept.length && Math.floor(beginOf(kept.at(-1)) / told.width) >= from) kept.pop();
        known.metrics.set(name, kept.concat(points));
        grew = true;
      }
      Object.assign(known, { mark: told.mark, total: told.total_steps, goesOn: told.goes_on, behind: told.is_behind, width: told.width, name: told.run });
    });
    return grew;
  };

  const ask = async () => {
    const url = new URL(root.dataset.url, location.href);
    for (const name of new URLSearchParams(location.search).getAll("with")) url.searchParams.append("with", name);
    for (const run of runs) url.searchParams.append("since", run.mark);
    try {
      const answer = await fetch(url, { headers: { Accept: "application/json" } });
      if (answer.ok) {
        if (take(await answer.json())) draw();
      } else if (answer.status < 500) return;
    } catch { /* The network is away for a moment: the next turn asks again. */ }
    const behind = runs.some((run) => run.behind);
    const reading = root.querySelector("[data-reading]");
    if (reading && !behind) reading.remove();
    if (behind || !runs.length || runs.some((run) => run.goesOn)) {
      setTimeout(ask, behind ? AT_ONCE : document.hidden ? 5 * EVERY : EVERY);
    }
  };

  // ── Drawing ───────────────────────────────────────────────────────────────────────

  /** The corners of a line in order, [step, value] each, null where it is broken. */
  const cornersOf = (points, weight) => {
    const corners = [];
    let mean = 0, share = 0;
    for (const point of points) {
      if (isGap(point)) corners.push(null);
      else if (weight > 0) {
        mean = weight * mean + (1 - weight) * point[MEAN];
        share = weight * share + (1 - weight);
        corners.push([(point[LOW_STEP] + point[HIGH_STEP]) / 2, mean / share]);
      } else {
        const two = [[point[LOW_STEP], point[LOW]], [point[HIGH_STEP], point[HIGH]]].sort((a, b) => a[0] - b[0]);
        corners.push(two[0]);
        if (two[0][0] !== two[1][0]) corners.push(two[1]);
      }
    }
    return corners;
  };

  const draw = () => {
    const names = new Set(runs.flatMap((run) => [...run.metrics.keys()]));
    if (!root.querySelector("[data-metric]") && names.size) {
      // The first step was taken since the page came: the server draws the frames.
      location.reload();
      return;
    }
    let first = Infinity, last = 0;
    for (const figureOf of root.querySelectorAll("[data-metric]")) {
      const box = drawOne(figureOf);
      if (!box) continue;
      first = Math.min(first, box.first);
      last = Math.max(last, box.lastTaken);
    }
    if (slider && Number.isFinite(first)) {
      slider.min = String(first);
      slider.max = String(last);
      if (chosenStep === null) slider.value = String(last);
    }
    tell(chosenStep);
  };

  const drawOne = (element) => {
    const name = element.dataset.metric;
    const lines = runs.map((run, kind) => ({ kind, run, points: run.metrics.get(name) ?? [] })).filter((line) => line.points.some((point) => !isGap(point)));
    if (!lines.length) return null;
    const filled = lines.flatMap((line) => line.points.filter((point) => !isGap(point)));
    const least = filled.reduce((found, point) => Math.min(found, point[LOW]), Infinity);
    const most = filled.reduce((found, point) => Math.max(found, point[HIGH]), -Infinity);
    const first = filled.reduce((found, point) => Math.min(found, beginOf(point)), Infinity);
    const lastTaken = filled.reduce((found, point) => Math.max(found, point[LOW_STEP], point[HIGH_STEP]), 0);
    const end = Math.max(lastTaken, first + 1, ...lines.map((line) => line.run.total ?? 0));
    const logarithmic = Boolean(logScale?.checked) && least > 0;
    const scale = logarithmic ? Math.log10 : (value) => value;
    const low = scale(least), high = scale(most);
    const box = { first, end, lastTaken, x: (step) => (step - first) / (end - first) * WIDTH };
    box.y = (value) => high > low ? HEIGHT - (scale(value) / 2 - low / 2) / (high / 2 - low / 2) * HEIGHT : HEIGHT / 2;
    element.box = box;
    element.toggleAttribute("data-linear", Boolean(logScale?.checked) && !logarithmic);
    const weight = Number(smoothing?.value ?? 0);
    const svg = element.querySelector('svg[role="img"]');
    for (const old of svg.querySelectorAll(".curve__drawn")) old.remove();
    for (const line of lines) {
      const group = svgElement("g", { class: "curve__drawn" });
      if (weight > 0) path(group, cornersOf(line.points, 0), box, `curve__line curve__line--${line.kind} curve__line--faint`);
      path(group, cornersOf(line.points, weight), box, `curve__line curve__line--${line.kind}`);
      svg.insertBefore(group, svg.querySelector(".curve__cross"));
    }
    element.querySelector("[data-highest]").textContent = figure(most);
    element.querySelector("[data-lowest]").textContent = figure(least);
    return box;
  };

  const svgElement = (kind, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", kind);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  };

  const path = (group, corners, box, kind) => {
    let text = "", pen = "M", alone = true;
    for (const corner of corners) {
      if (!corner) {
        // A lone point between two gaps is a dot, not nothing.
        if (pen === "L" && alone) text += "h0";
        pen = "M";
        continue;
      }
      alone = pen === "M";
      text += `${pen}${box.x(corner[0]).toFixed(1)},${box.y(corner[1]).toFixed(1)}`;
      pen = "L";
    }
    if (pen === "L" && alone) text += "h0";
    group.append(svgElement("path", { class: kind, d: text, "vector-effect": "non-scaling-stroke" }));
  };

  // ── The read-out ──────────────────────────────────────────────────────────────────

  /** The bucket that holds a step, else the one before it. */
  const pointAt = (points, step, width) => {
    let found = null;
    for (const point of points) {
      if (Math.floor(beginOf(point) / width) > Math.floor(step / width)) break;
      found = point;
    }
    return found && !isGap(found) ? found : null;
  };

  const said = (point) => {
    if (!point) return "–";
    return point[LOW] === point[HIGH] ? figure(point[MEAN]) : `${figure(point[MEAN])} (${figure(point[LOW])} – ${figure(point[HIGH])})`;
  };

  const tell = (step) => {
    const spoken = [];
    for (const element of root.querySelectorAll("[data-metric]")) {
      const name = element.dataset.metric;
      for (const value of element.querySelectorAll("[data-line]")) {
        const run = runs[Number(value.dataset.line)];
        const points = run?.metrics.get(name);
        if (!points?.length) continue;
        const shown = step ?? Infinity;
        const point = step === null ? points.findLast((one) => !isGap(one)) : pointAt(points, shown, run.width);
        value.querySelector("strong").textContent = step === null && point && run.width === 1 ? figure(point[MEAN]) : said(point);
        // Aloud the run itself is enough: six values, not those of every run beside it.
        if (step !== null && value.dataset.line === "0" && spoken.length < 6) spoken.push(`${element.querySelector("figcaption > span").textContent} ${said(point)}`);
      }
      const cross = element.querySelector(".curve__cross");
      const inside = step !== null && element.box && step >= element.box.first && step <= element.box.end;
      cross.setAttribute("d", inside ? `M${element.box.x(step).toFixed(1)},0V${HEIGHT}` : "");
    }
    const shownStep = root.querySelector("[data-step]");
    if (shownStep) shownStep.textContent = step === null ? "" : String(step);
    if (slider && step !== null) slider.setAttribute("aria-valuetext", [translate("Step {step}", { step }), ...spoken].join("; "));
  };

  const choose = (step) => {
    chosenStep = step;
    if (slider && step !== null) slider.value = String(step);
    tell(step);
  };

  slider?.addEventListener("input", () => choose(Number(slider.value)));
  logScale?.addEventListener("change", draw);
  smoothing?.addEventListener("change", draw);
  root.addEventListener("pointermove", (event) => {
    const svg = event.target.closest?.('[data-metric] svg[role="img"]');
    const element = svg?.closest("[data-metric]");
    if (!element?.box) return;
    const place = svg.getBoundingClientRect();
    // The plot stands 4 units inside a box of 328.
    const x = ((event.clientX - place.left) / place.width * 328 - 4) / WIDTH;
    const step = Math.round(element.box.first + x * (element.box.end - element.box.first));
    choose(Math.max(element.box.first, Math.min(element.box.lastTaken, step)));
  });
  root.addEventListener("pointerleave", () => { if (document.activeElement !== slider) choose(null); });
  slider?.addEventListener("blur", () => choose(null));

  const follow = () => {
    for (const log of document.querySelectorAll("[data-follow]")) log.scrollTop = log.scrollHeight;
  };
  document.addEventListener("htmx:afterSwap", follow);
  follow();
  ask();
})();
