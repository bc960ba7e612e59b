// Draws the charts of a page from its table, which has the same values and which live.js keeps up to
// date. Without this script, readers have the table.
"use strict";
(() => {
  if (!window.uPlot) return;
  const height = 240, clients = ["first", "median", "last"];
  const charts = new Map(); // by the id of the place
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const digits = (v) => String(v >= 100 ? Math.round(v) : +v.toPrecision(2));
  const words = (v) => {
    if (v == null) return "–";
    if (v < 0.001) return digits(v * 1e6) + " µs";
    if (v < 1) return digits(v * 1e3) + " ms";
    return v < 120 ? digits(v) + " s" : digits(v / 60) + " min";
  };

  // read returns the values of a table, for each stage and client, at each step.
  const read = (table) => {
    const step = +table.dataset.step, steps = +table.dataset.steps, until = +table.dataset.until;
    const at = Array.from({ length: steps }, (_, i) => until - (steps - i) * step);
    const of = {}, all = [];
    for (const cell of table.querySelectorAll("td[data-of]")) {
      const i = at.indexOf(+cell.closest("tr").dataset.at), v = +cell.dataset.seconds;
      const values = of[cell.dataset.of] ??= Array(steps).fill(null);
      if (i >= 0) { values[i] = v; all.push(v); }
    }
    // Both charts have one scale, of whole powers of ten.
    const power = (v, round) => 10 ** round(Math.log10(v) + (round === Math.floor ? -1e-9 : 1e-9));
    const range = all.length ? [power(Math.min(...all), Math.floor), power(Math.max(...all), Math.ceil)] : [0.001, 1];
    return { at, of, range, from: until - steps * step, until, empty: !all.length, offset: +table.dataset.offset };
  };
  const rows = (data, stage) => [data.at, ...clients.map((c) => data.of[stage + "-" + c] ?? Array(data.at.length).fill(null))];

  const make = (place) => {
    const stage = place.dataset.chart, now = { data: null };
    const local = (t) => { const d = new Date(t * 1000); return new Date((t + now.data.offset + d.getTimezoneOffset() * 60) * 1000); };
    const clock = uPlot.fmtDate("{HH}:{mm}"), exact = uPlot.fmtDate("{HH}:{mm}:{ss}");
    const line = (label, name, dash, width) => ({
      label: label + " client", stroke: colour(name), width, dash, spanGaps: false,
      points: { show: true, size: 5, fill: colour(name) }, value: (_, v) => words(v),
    });
    const powers = (_, all) => all.map((v) => (Math.abs(Math.log10(v) % 1) < 1e-6 ? v : null));
    const axis = (more) => {
      const of = { stroke: colour("--line"), width: 1, ...more };
      return { stroke: colour("--soft"), grid: of, ticks: of };
    };
    const draw = (data) => {
      now.data = data;
      now.plot = new uPlot({
        width: Math.max(place.clientWidth, 200), height,
        cursor: { sync: { key: "times" }, drag: { x: false, y: false } },
        legend: { markers: { width: 2, dash: (_, i) => ["solid", "dotted", "dashed", "solid"][i] } },
        scales: { x: { range: () => [now.data.from, now.data.until] }, y: { distr: 3, range: () => now.data.range } },
        series: [
          { label: "Received", value: (_, t) => (t == null ? "–" : exact(local(t))) },
          line("first", "--good", [2, 3], 2), line("median", "--bar", [8, 3], 2), line("last", "--bad", [], 2),
        ],
        axes: [
          { ...axis(), values: (_, all) => all.map((t) => clock(local(t))) },
          { ...axis({ filter: powers }), size: 66, values: (_, all) => all.map((v) => (v == null ? "" : words(v))) },
        ],
      }, rows(data, stage), place);
    };
    return {
      show: (data) => {
        if (!now.plot) return draw(data);
        now.data = data;
        now.plot.setData(rows(data, stage));
      },
      again: () => { now.plot.destroy(); draw(now.data); },
      fit: () => { if (place.clientWidth && place.clientWidth !== now.plot.width) now.plot.setSize({ width: place.clientWidth, height }); },
    };
  };

  const show = () => {
    for (const place of document.querySelectorAll("[data-chart]")) {
      const table = document.getElementById(place.dataset.table);
      const data = table && read(table);
      if (!data || data.empty && !charts.has(place.id)) continue;
      if (!charts.has(place.id)) {
        const chart = make(place);
        charts.set(place.id, chart);
        place.classList.add("drawn");
        chart.show(data);
        new ResizeObserver(chart.fit).observe(place);
      } else charts.get(place.id).show(data);
    }
  };
  document.addEventListener("updated", show);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((c) => c.again()));
  show();
})();
