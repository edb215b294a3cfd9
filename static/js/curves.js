/* Charts of runs, drawn by uPlot (static/vendor/uplot), on the pages of a run and of a round, also in the admin:
   templates/training/curve_charts.html. Asks for new points while a run goes on.

   Without JavaScript a table has the last values. Spikes are never lost: behind the mean of a bucket of steps lies
   a band from its least to its greatest value. Smoothing is an exponential mean, unbiased at the beginning. */
(() => {
  "use strict";
  const EVERY = 2000, AT_ONCE = 50, HEIGHT = 190;
  const LOW_STEP = 0, LOW = 1, HIGH_STEP = 2, HIGH = 3, MEAN = 4;
  const started = new WeakSet();

  const isGap = (point) => point.length === 1;
  const firstStep = (point) => isGap(point) ? point[0] : Math.min(point[LOW_STEP], point[HIGH_STEP]);
  const lastStep = (point) => isGap(point) ? point[0] : Math.max(point[LOW_STEP], point[HIGH_STEP]);
  const figure = (value) => {
    if (Math.abs(value) >= 1000 && Math.abs(value) < 1e7) return String(Math.round(value));
    const text = value.toPrecision(4);
    if (text.includes("e")) return text.replace(/\.?0+e/, "e");
    return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
  };
  const valueText = (point) => {
    if (!point) return "–";
    return point[LOW] === point[HIGH] ? figure(point[MEAN]) : `${figure(point[MEAN])} (${figure(point[LOW])} – ${figure(point[HIGH])})`;
  };

  /** [steps, highest, lowest, mean, smoothed mean] of the buckets of one line; null where it is broken. */
  const columnsOf = (points, weight) => {
    const columns = [[], [], [], [], []];
    let mean = 0, share = 0;
    for (const point of points) {
      let row = [point[0], null, null, null, null];
      if (!isGap(point)) {
        mean = weight * mean + (1 - weight) * point[MEAN];
        share = weight * share + (1 - weight);
        row = [Math.floor((point[LOW_STEP] + point[HIGH_STEP]) / 2), point[HIGH], point[LOW], point[MEAN], mean / share];
      }
      row.forEach((value, column) => columns[column].push(value));
    }
    return columns;
  };

  /** The point of the bucket that holds a step, else of the one before it. */
  const pointAt = (points, step, width) => {
    const point = points.findLast((one) => Math.floor(firstStep(one) / width) <= Math.floor(step / width));
    return point && !isGap(point) ? point : null;
  };

  const start = (root) => {
    const runs = [], charts = new Map(), sync = { key: root.id };
    const [logScale, smoothing, template] = ["[data-log]", "[data-smoothing]", "[data-chart-template]"].map((name) => root.querySelector(name));
    const marks = [...root.querySelectorAll(".curve-legend .curve-mark")];
    let whole = [0, 1], zoom = null, cursor = null;

    // ── Data ────────────────────────────────────────────────────────────────────────

    const take = (news) => {
      news.runs.forEach((run, number) => {
        const known = runs[number] ??= { metrics: new Map(), mark: "" };
        const since = Number(known.mark.split("-").at(-1) || 0);
        if (run.all) known.metrics.clear();
        for (const [name, points] of Object.entries(run.metrics)) {
          const before = known.metrics.get(name) ?? [];
          // The bucket of the last known step comes again, fuller.
          while (before.length && firstStep(before.at(-1)) >= Math.floor(since / run.width) * run.width) before.pop();
          known.metrics.set(name, before.concat(points));
        }
        Object.assign(known, { mark: run.mark, total: run.total_steps, goesOn: run.goes_on, behind: run.is_behind, width: run.width, latest: run.latest, name: run.run });
      });
      const lines = runs.flatMap((run) => [...run.metrics.values()]).filter((points) => points.length);
      const first = lines.reduce((least, points) => Math.min(least, firstStep(points[0])), Infinity);
      const last = lines.reduce((most, points) => Math.max(most, lastStep(points.at(-1))), 0);
      whole = [first, Math.max(last, first + 1, ...runs.map((run) => run.total ?? 0))];
      for (const metric of news.metrics) {
        if (metric.first || !("firstOnly" in root.dataset)) addChart(metric);
      }
    };

    const ask = async () => {
      if (!root.isConnected) return;
      const url = new URL(root.dataset.curves, location.href);
      for (const run of runs) url.searchParams.append("since", run.mark);
      try {
        const response = await fetch(url, { headers: { Accept: "application/json" } });
        if (response.ok) {
          const marks = runs.map((run) => run.mark).join();
          take(await response.json());
          if (marks !== runs.map((run) => run.mark).join()) update();
        } else if (response.status < 500) return;
      } catch { /* The network is away for a moment: the next turn asks again. */ }
      const behind = runs.some((run) => run.behind);
      if (runs.length && !behind) document.querySelector("[data-until-read]")?.remove();
      if (behind || !runs.length || runs.some((run) => run.goesOn)) {
        setTimeout(ask, behind ? AT_ONCE : document.hidden ? 5 * EVERY : EVERY);
      }
    };

    // ── Charts ──────────────────────────────────────────────────────────────────────

    /** The place of a chart: on the page from the start, or added for a metric that has come since. */
    const placeOf = (metric) => {
      const place = root.querySelector(`[data-metric="${CSS.escape(metric.name)}"]`);
      if (place) return place;
      const added = template.content.firstElementChild.cloneNode(true);
      root.querySelector(metric.first ? `[data-group="${metric.group}"] [data-charts]` : "[data-more] [data-charts]").append(added);
      return added;
    };

    const addChart = (metric) => {
      if (charts.has(metric.name)) return;
      const element = placeOf(metric);
      const [title, stepText, values] = element.querySelectorAll("figcaption > span");
      const chart = { ...metric, element, stepText, values, box: element.querySelector(".curve__plot"), hint: element.querySelector("p"), plot: null, isLog: false };
      element.dataset.metric = metric.name;
      title.textContent = metric.title;
      chart.box.setAttribute("aria-label", metric.unit ? `${metric.title}, ${metric.unit}` : metric.title);
      charts.set(metric.name, chart);
      for (const one of root.querySelectorAll("[data-tools], :is([data-group], [data-more]):has(figure)")) one.hidden = false;
      for (const one of document.querySelectorAll("[data-until-drawn]")) one.remove();
      chart.box.addEventListener("keydown", (event) => press(event, chart));
      chart.box.addEventListener("blur", () => chart.plot?.setCursor({ left: -10, top: -10 }, true, true));
      // A chart in a closed fold has no width; it is drawn as soon as it has one.
      new ResizeObserver(() => {
        if (chart.plot && chart.box.clientWidth) chart.plot.setSize({ width: chart.box.clientWidth, height: HEIGHT });
        else draw(chart);
      }).observe(chart.box);
    };

    const pointsOf = (run, chart) => run.metrics.get(chart.name) ?? [];
    const dataOf = (chart) => uPlot.join(runs.map((run) => columnsOf(pointsOf(run, chart), Number(smoothing.value))));

    const canBeLog = (chart) => logScale.checked && runs.every((run) => pointsOf(run, chart).every((point) => isGap(point) || point[LOW] > 0));

    const pale = (colour) => colour.replace("rgb(", "rgba(").replace(")", ", 0.25)");
    const draw = (chart) => {
      const width = chart.box.clientWidth;
      if (!width) return;
      chart.plot?.destroy();
      chart.isLog = canBeLog(chart);
      chart.hint.hidden = chart.isLog || !logScale.checked;
      const style = getComputedStyle(chart.element);
      const series = runs.flatMap((run, kind) => {
        const mark = getComputedStyle(marks[kind].querySelector("path"));
        const smooth = Number(smoothing.value) > 0;
        const line = { stroke: mark.stroke, width: 1.75, dash: mark.strokeDasharray.match(/[\d.]+/g)?.map(Number), points: { size: 4 } };
        const edge = { stroke: pale(mark.stroke), points: { show: false } };
        return [edge, edge, { ...line, alpha: smooth ? 0.3 : 1 }, { ...line, show: smooth }];
      });
      const bands = runs.map((run, kind) => ({ series: [4 * kind + 1, 4 * kind + 2], fill: pale(series[4 * kind + 2].stroke) }));
      const axis = { stroke: style.color, font: `12px ${style.fontFamily}`, labelFont: `12px ${style.fontFamily}`, labelSize: 18, grid: { stroke: style.borderTopColor, width: 1 }, ticks: { show: false }, gap: 4 };
      chart.plot = new uPlot({
        width, height: HEIGHT,
        padding: [8, 20, 0, 0],
        legend: { show: false },
        scales: { x: { time: false, range: () => zoom ?? whole }, y: { distr: chart.isLog ? 3 : 1 } },
        series: [{}, ...series],
        bands,
        axes: [
          { ...axis, size: 22, space: 60, label: root.dataset.step, values: (plot, splits) => splits.map((step) => Number.isInteger(step) ? String(step) : "") },
          {
            ...axis, space: 28, ...(chart.unit && { label: chart.unit }),
            values: (plot, splits) => splits.map((value) => value === null ? "" : figure(value)),
            size: (plot, values) => 10 + 7 * Math.max(2, ...(values ?? []).map((value) => value.length)),
          },
        ],
        cursor: { sync, y: false, drag: { setScale: false }, bind: { dblclick: () => () => zoomTo(null) } },
        hooks: {
          setCursor: [(plot) => {
            cursor = plot.cursor.idx === null ? null : plot.data[0][plot.cursor.idx];
            tell(chart, cursor);
          }],
          setSelect: [(plot) => {
            const { left, width } = plot.select;
            if (!width) return;
            plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
            zoomTo([plot.posToVal(left, "x"), plot.posToVal(left + width, "x")]);
          }],
        },
      }, dataOf(chart), chart.box);
      tell(chart, null);
    };

    const update = () => {
      for (const chart of charts.values()) {
        if (!chart.plot || chart.isLog !== canBeLog(chart)) draw(chart);
        else {
          chart.plot.setData(dataOf(chart));
          if (cursor === null) tell(chart, null);
        }
      }
    };
    const drawAll = () => charts.forEach(draw);

    const zoomTo = (range) => {
      zoom = range && range[1] - range[0] < whole[1] - whole[0] ? [Math.max(range[0], whole[0]), Math.min(range[1], whole[1])] : null;
      if (zoom && zoom[1] - zoom[0] < 1) zoom = [zoom[0], zoom[0] + 1];
      for (const chart of charts.values()) chart.plot?.setData(chart.plot.data);
    };
    const zoomBy = (factor) => {
      const [from, to] = zoom ?? whole;
      const centre = cursor ?? (from + to) / 2;
      zoomTo([centre - (centre - from) * factor, centre + (to - centre) * factor]);
    };

    // ── Values ──────────────────────────────────────────────────────────────────────

    /** Write the values of a chart at a step, or the last ones. */
    const tell = (chart, step) => {
      const texts = runs.map((run) => {
        if (step !== null) return valueText(pointAt(pointsOf(run, chart), step, run.width));
        return chart.name in run.latest ? figure(run.latest[chart.name]) : "–";
      });
      chart.stepText.textContent = step === null ? "" : `${root.dataset.step} ${step}`;
      chart.values.replaceChildren(...texts.map((text, kind) => {
        const value = document.createElement("strong");
        // With several runs the range of a bucket would not fit: it stands in the title.
        value.textContent = runs.length > 1 ? text.replace(/ \(.*/, "") : text;
        value.title = text;
        const item = document.createElement("span");
        item.append(...(runs.length > 1 ? [marks[kind].cloneNode(true)] : []), value);
        return item;
      }));
      const now = step ?? whole[1];
      const words = runs.map((run, kind) => runs.length > 1 ? `${run.name} ${texts[kind]}` : texts[kind]);
      for (const [name, value] of Object.entries({ valuemin: whole[0], valuemax: whole[1], valuenow: now, valuetext: [`${root.dataset.step} ${now}`, ...words].join("; ") })) {
        chart.box.setAttribute(`aria-${name}`, value);
      }
    };

    const press = (event, chart) => {
      const moves = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10, Home: -Infinity, End: Infinity };
      const { plot } = chart;
      if (!plot || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key in moves) {
        const [first, last] = plot.series[0].idxs;
        const index = plot.cursor.idx ?? last + 1;
        const step = plot.data[0][Math.max(first, Math.min(last, index + moves[event.key]))];
        plot.setCursor({ left: plot.valToPos(step, "x"), top: 10 }, true, true);
      } else if (event.key === "+" || event.key === "-") zoomBy(event.key === "+" ? 0.5 : 2);
      else if (event.key === "Escape") {
        plot.setCursor({ left: -10, top: -10 }, true, true);
        zoomTo(null);
      } else return;
      event.preventDefault();
    };

    logScale.addEventListener("change", drawAll);
    smoothing.addEventListener("change", drawAll);
    root.addEventListener("click", (event) => {
      const factor = event.target.closest("[data-zoom]")?.dataset.zoom;
      if (factor) zoomBy(Number(factor));
    });
    // Colours stand in the canvas: another theme draws it again.
    new MutationObserver(drawAll).observe(document.documentElement, { attributeFilter: ["data-theme"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
    for (const table of root.querySelectorAll(".without-script")) table.remove();
    ask();
  };

  const startAll = () => {
    for (const log of document.querySelectorAll("[data-follow]")) log.scrollTop = log.scrollHeight;
    for (const root of document.querySelectorAll("[data-curves]")) {
      if (!started.has(root)) start(root);
      started.add(root);
    }
  };
  document.addEventListener("htmx:afterSettle", startAll);
  startAll();
})();
