// Redraws the lower chart for any part of the window. Without this script the chart stays as it
// was written: everything here only adds to it.
"use strict";
(() => {
  const source = document.getElementById("zoom-data");
  const chart = document.getElementById("detail");
  const overview = document.getElementById("overview");
  if (!source || !chart || !overview) return;
  const data = JSON.parse(source.textContent);
  const FULL = 100;
  const SHORTEST_NS = Math.max(200, data.unit * 50);
  const start = { low: data.low, high: data.high };
  let view = { ...start };

  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const times = (text) => new Uint32Array(bytes(text).buffer);
  const unpack = (packed) =>
    packed && { start: times(packed.start), end: times(packed.end), state: bytes(packed.state) };
  const lanes = data.lanes.map((lane) => ({
    states: lane.states,
    segments: unpack(lane),
    critical: unpack(lane.critical),
  }));
  const rows = [...chart.querySelectorAll(".lane:not(.axis-row)")];
  const axis = chart.querySelector(".axis");
  const output = document.querySelector(".zoom output");
  const marker = overview.querySelector(".view");
  const hint = output.textContent;
  const title = document.getElementById("detail-title");
  const extent = document.getElementById("detail-extent");
  const written = { title: title.textContent, extent: extent.textContent };

  // First segment that ends after a time (in units).
  function firstAfter(segments, time) {
    let low = 0, high = segments.end.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (segments.end[middle] > time) high = middle; else low = middle + 1;
    }
    return low;
  }

  // Share of every bin that each state takes: Map of state -> Float64Array.
  function shares(segments, bins) {
    const low = view.low / data.unit, high = view.high / data.unit, width = (high - low) / bins;
    const result = new Map();
    for (let i = firstAfter(segments, low); i < segments.end.length && segments.start[i] < high; i++) {
      const from = Math.max(segments.start[i], low), upto = Math.min(segments.end[i], high);
      let share = result.get(segments.state[i]);
      if (!share) result.set(segments.state[i], (share = new Float64Array(bins)));
      const last = Math.min(bins - 1, Math.floor((upto - low) / width));
      for (let bin = Math.floor((from - low) / width); bin <= last; bin++) {
        const begin = low + bin * width;
        share[bin] += Math.max(0, Math.min(upto, begin + width) - Math.max(from, begin)) / width;
      }
    }
    return result;
  }

  function stepArea(level, present) {
    let path = `M0,${FULL}`, last = null;
    for (let bin = 0; bin < level.length; bin++) {
      const y = present[bin] > 0 ? Math.round(FULL * (1 - Math.min(1, level[bin]))) : FULL;
      if (y !== last) path += last === null ? `V${y}` : `H${bin}V${y}`;
      last = y;
    }
    return `${path}H${level.length}V${FULL}Z`;
  }

  function draw() {
    lanes.forEach((lane, index) => {
      const plot = rows[index].querySelector(".plot");
      const bins = Math.max(100, Math.min(1600, plot.clientWidth));
      const found = shares(lane.segments, bins);
      const level = new Float64Array(bins);
      const paths = [];
      for (const state of lane.states) {
        const share = found.get(state);
        if (!share) continue;
        for (let bin = 0; bin < bins; bin++) level[bin] += share[bin];
        paths.unshift(`<path class="s${state}" d="${stepArea(level, share)}"/>`);
      }
      const marks = data.marks
        .filter((mark) => mark > view.low && mark < view.high)
        .map((mark) => `M${((mark - view.low) / (view.high - view.low)) * bins},0V${FULL}`).join("");
      if (marks) paths.push(`<path class="mark" d="${marks}"/>`);
      const svg = plot.querySelector("svg.states");
      svg.setAttribute("viewBox", `0 0 ${bins} ${FULL}`);
      svg.innerHTML = paths.join("");
      const line = plot.querySelector("svg.critical");
      if (line && lane.critical) {
        const share = shares(lane.critical, bins).get(0);
        line.setAttribute("viewBox", `0 0 ${bins} ${FULL}`);
        line.innerHTML = share ? `<path d="${stepArea(share, share)}"/>` : "";
      }
    });
    drawAxis();
    marker.style.left = `${(100 * view.low) / data.makespan}%`;
    marker.style.width = `${(100 * (view.high - view.low)) / data.makespan}%`;
    const asWritten = view.low === start.low && view.high === start.high;
    title.textContent = asWritten ? written.title : `${format(view.low)} to ${format(view.high)}`;
    extent.textContent = asWritten ? written.extent : format(view.high - view.low);
  }

  function unitFor(ns) {
    return ns >= 1e11 ? [1e9, "s"] : ns >= 1e6 ? [1e6, "ms"] : ns >= 1e3 ? [1e3, "µs"] : [1, "ns"];
  }

  function drawAxis() {
    const span = view.high - view.low;
    const power = 10 ** Math.floor(Math.log10(span / 6));
    const step = power * [1, 2, 5, 10].find((multiple) => span / (power * multiple) <= 6);
    const [factor, unit] = unitFor(view.high);
    const places = Math.max(0, Math.ceil(-Math.log10(step / factor) - 1e-9));
    const labels = [];
    for (let n = Math.ceil(view.low / step); n * step < view.low + 0.93 * span; n++) {
      const left = (100 * (n * step - view.low)) / span;
      labels.push(`<span style="left:${left}%">${((n * step) / factor).toFixed(places)}\u202f${unit}</span>`);
    }
    axis.innerHTML = labels.join("");
  }

  function show(low, high) {
    const span = Math.min(data.makespan, Math.max(SHORTEST_NS, high - low));
    const middle = (low + high) / 2;
    const from = Math.min(Math.max(0, middle - span / 2), data.makespan - span);
    view = { low: from, high: from + span };
    window.requestAnimationFrame(draw);
  }

  function zoom(factor, at) {
    const pivot = at === undefined ? (view.low + view.high) / 2 : at;
    show(pivot - (pivot - view.low) * factor, pivot + (view.high - pivot) * factor);
  }

  const span = () => view.high - view.low;
  const actions = {
    in: () => zoom(0.5),
    out: () => zoom(2),
    left: () => show(view.low - span() / 2, view.high - span() / 2),
    right: () => show(view.low + span() / 2, view.high + span() / 2),
    reset: () => show(start.low, start.high),
  };
  document.querySelector(".zoom").addEventListener("click", (event) => {
    const action = actions[event.target.dataset.do];
    if (action) action();
  });

  function timeAt(event, plot, low, high) {
    const box = plot.getBoundingClientRect();
    return low + ((event.clientX - box.left) / box.width) * (high - low);
  }

  function format(ns) {
    const [factor, unit] = unitFor(ns);
    return `${(ns / factor).toFixed(unit === "ns" ? 0 : 3)}\u202f${unit}`;
  }

  function describe(event, row, lane) {
    const time = timeAt(event, row.querySelector(".plot"), view.low, view.high);
    const units = time / data.unit;
    const index = firstAfter(lane.segments, units);
    const label = row.querySelector("b").textContent;
    const inside = index < lane.segments.end.length && lane.segments.start[index] <= units;
    const length = inside ? (lane.segments.end[index] - lane.segments.start[index]) * data.unit : 0;
    const what = inside ? `${data.names[lane.segments.state[index]]} for ${format(length)}` : "nothing";
    output.textContent = `${label} at ${format(time)}: ${what}`;
  }

  let drag = null;
  rows.forEach((row, index) => {
    const plot = row.querySelector(".plot");
    plot.addEventListener("pointerdown", (event) => {
      drag = { x: event.clientX, low: view.low, width: plot.clientWidth };
      plot.setPointerCapture(event.pointerId);
    });
    plot.addEventListener("pointermove", (event) => {
      if (drag) {
        const low = drag.low - ((event.clientX - drag.x) / drag.width) * span();
        show(low, low + span());
      } else describe(event, row, lanes[index]);
    });
    for (const end of ["pointerup", "pointercancel"]) plot.addEventListener(end, () => { drag = null; });
    plot.addEventListener("pointerleave", () => { output.textContent = hint; });
    plot.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(event, plot, view.low, view.high));
    }, { passive: false });
  });
  overview.querySelectorAll(".plot").forEach((plot) =>
    plot.addEventListener("click", (event) => {
      const at = timeAt(event, plot, 0, data.makespan);
      show(at - span() / 2, at + span() / 2);
    }));

  chart.classList.add("live");
  document.documentElement.classList.add("scripted");
})();
