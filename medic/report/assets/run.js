"use strict";
// The report of one run. Everything that depends on the threshold is computed here, from sorted confidences.

const run = data();
const parts = run.parts.map((part) => ({ ...part, values: floats(part.confidence) }));
const state = { threshold: run.threshold, part: 0, kind: 0, label: "" };
const listeners = [];

// The number of confidences of a group that are at least the threshold.
function accepted(part, group, threshold) {
  const [, , start, count] = group;
  let [low, high] = [start, start + count];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (part.values[middle] >= threshold) high = middle; else low = middle + 1;
  }
  return start + count - low;
}

// Counts by true class and decision; the last column is "unknown".
function confusion(part, threshold) {
  const rows = run.classes.map(() => new Array(run.known + 1).fill(0));
  for (const group of part.groups) {
    const kept = accepted(part, group, threshold);
    rows[group[0]][group[1]] += kept;
    rows[group[0]][run.known] += group[3] - kept;
  }
  return rows;
}

function measure(part, threshold) {
  const rows = confusion(part, threshold);
  const sum = (values) => values.reduce((a, b) => a + b, 0);
  let [right, known, rejected, unknown] = [0, 0, 0, 0];
  rows.forEach((row, label) => {
    if (label < run.known) { right += row[label]; known += sum(row); } else { rejected += row[run.known]; unknown += sum(row); }
  });
  const accK = known ? right / known : NaN;
  const accU = unknown ? rejected / unknown : NaN;
  const h = accK + accU > 0 ? (2 * accK * accU) / (accK + accU) : 0;
  return { rows, right, known, rejected, unknown, accK, accU, h };
}

function shown(value) {
  if (!run.probability) return value.toPrecision(4);
  const p = 1 / (1 + Math.exp(-value));
  return p > 0.999 ? (1 - p < 1e-12 ? "1 − 1e-12" : `1 − ${(1 - p).toPrecision(2)}`) : p.toPrecision(3);
}

function numbers(part) {
  const found = measure(part, state.threshold);
  const set = (id, text) => { document.getElementById(id).textContent = text; };
  set("at-threshold", shown(state.threshold));
  set("at-acc-k", percent(found.accK)); set("at-acc-u", percent(found.accU)); set("at-h", percent(found.h));
  set("at-counts", `${found.right} of ${found.known} known images named correctly, ${found.rejected} of ${found.unknown} unknown ones rejected`);
  const holder = document.getElementById("threshold");
  Object.assign(holder.dataset, { threshold: String(state.threshold), accK: String(found.accK), accU: String(found.accU), h: String(found.h) });
  return found;
}

const BINS = 60;

function histogram(part) {
  const sorted = part.values.slice().sort();
  const at = (share) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
  let [low, high] = [Math.min(at(0.005), run.threshold), Math.max(at(0.995), run.threshold)];
  const margin = (high - low || 1) * 0.03;
  [low, high] = [low - margin, high + margin];
  const bins = { right: new Array(BINS).fill(0), wrong: new Array(BINS).fill(0), unknown: new Array(BINS).fill(0) };
  for (const [label, prediction, start, count] of part.groups) {
    const kind = label >= run.known ? "unknown" : label === prediction ? "right" : "wrong";
    for (let i = start; i < start + count; i += 1) {
      const bin = Math.floor(((part.values[i] - low) / (high - low)) * BINS);
      bins[kind][Math.max(0, Math.min(BINS - 1, bin))] += 1;
    }
  }
  return { low, high, bins };
}

function thresholdChart() {
  const holder = document.getElementById("histogram");
  const slider = document.getElementById("slider");
  let redraw = () => {};
  const choose = (value) => { state.threshold = value; for (const listener of listeners) listener(); };
  const draw = (width) => {
    const part = parts[state.part];
    const { low, high, bins } = histogram(part);
    const total = (kind) => bins[kind].reduce((a, b) => a + b, 0);
    const [known, unknown] = [total("right") + total("wrong") || 1, total("unknown") || 1];
    const box = { left: 8, right: width - 8, top: 6, middle: 92, bottom: 162 };
    const top = Math.max(...bins.right.map((n, i) => (n + bins.wrong[i]) / known), 1e-9);
    const below = Math.max(...bins.unknown.map((n) => n / unknown), 1e-9);
    const svg = make("svg", { height: 196, viewBox: `0 0 ${width} 196`, role: "img",
      "aria-label": "histogram of the score: known images above the line, unknown images below" });
    const x = scale(low, high, box.left, box.right, shown, Math.max(2, Math.floor(width / 110)));
    const each = (box.right - box.left) / BINS;
    const bar = (i, from, to, colour) => svg.append(make("rect", { x: box.left + i * each, width: Math.max(each - 1, 0.5), y: Math.min(from, to), height: Math.abs(to - from), fill: `var(--${colour})` }));
    for (let i = 0; i < BINS; i += 1) {
      const up = (n) => ((n / known / top) * (box.middle - box.top));
      bar(i, box.middle, box.middle - up(bins.right[i]), "known");
      bar(i, box.middle - up(bins.right[i]), box.middle - up(bins.right[i]) - up(bins.wrong[i]), "wrong");
      bar(i, box.middle, box.middle + (bins.unknown[i] / unknown / below) * (box.bottom - box.middle), "unknown");
    }
    for (const value of x.ticks) svg.append(make("text", { x: Math.max(20, Math.min(width - 20, x(value))), y: 180, "text-anchor": "middle" }, x.format(value)));
    const line = make("line", { class: "line", y1: 0, y2: box.bottom + 4 });
    svg.append(line);
    redraw = () => {
      const place = Math.max(box.left, Math.min(box.right, x(state.threshold)));
      line.setAttribute("x1", place); line.setAttribute("x2", place);
      slider.value = state.threshold;
      slider.setAttribute("aria-valuetext", shown(state.threshold));
    };
    Object.assign(slider, { min: low, max: high, step: "any" });
    const follow = (event) => choose(Math.max(low, Math.min(high, x.invert(event.clientX - svg.getBoundingClientRect().left))));
    svg.addEventListener("pointerdown", (event) => { svg.setPointerCapture(event.pointerId); follow(event); });
    svg.addEventListener("pointermove", (event) => { if (event.buttons) follow(event); });
    holder.replaceChildren(svg);
    redraw();
  };
  responsive(holder, draw);
  slider.addEventListener("input", () => choose(Number(slider.value)));
  slider.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10 }[event.key];
    if (steps) { event.preventDefault(); choose(state.threshold + (steps * (Number(slider.max) - Number(slider.min))) / 200); }
  });
  document.getElementById("reset").addEventListener("click", () => choose(run.threshold));
  listeners.push(() => redraw());
  return () => draw(Math.floor(holder.clientWidth));
}

function tint(share, colour) {
  return `background: color-mix(in srgb, var(--${colour}) ${Math.round(70 * share)}%, transparent)`;
}

function matrix(found) {
  const holder = document.getElementById("matrix");
  if (run.classes.length > 40 || run.known > 40) { holder.replaceChildren(); return; }
  const heads = [...run.classes.slice(0, run.known), "unknown"];
  const header = make("tr", {}, make("th", {}, "is ↓  taken for →"), ...heads.map((name) => make("th", { scope: "col" }, name)));
  const rows = found.rows.map((row, label) => {
    const total = row.reduce((a, b) => a + b, 0);
    const right = label < run.known ? label : run.known;
    const cells = row.map((count, column) => make("td", { style: count ? tint(count / total, column === right ? "known" : "wrong") : null, title: `${percent(count / total)} % of ${run.classes[label]}` }, count ? String(count) : ""));
    return total ? make("tr", { class: label < run.known ? null : "foreign" }, make("th", { scope: "row" }, run.classes[label]), ...cells) : null;
  });
  holder.replaceChildren(make("table", { class: "matrix" }, make("thead", {}, header), make("tbody", {}, ...rows.filter(Boolean))));
}

function confusions(found) {
  const pairs = [];
  found.rows.forEach((row, label) => row.forEach((count, column) => {
    const right = label < run.known ? label : run.known;
    if (count && column !== right) pairs.push({ count, label, column, total: row.reduce((a, b) => a + b, 0) });
  }));
  pairs.sort((a, b) => b.count - a.count);
  const name = (column) => (column === run.known ? "unknown" : run.classes[column]);
  const rows = pairs.slice(0, 8).map((pair) => make("tr", {}, make("td", { class: "number" }, String(pair.count)),
    make("td", {}, `${run.classes[pair.label]}${pair.label < run.known ? "" : " (unknown class)"} taken for ${name(pair.column)}`),
    make("td", { class: "number" }, `${percent(pair.count / pair.total, 0)} %`)));
  document.getElementById("confusions").replaceChildren(make("table", {}, make("tbody", {}, ...rows)));
}

function perClass(found) {
  const source = parts.findIndex((part) => part.source);
  const beside = source >= 0 && source !== state.part ? measure(parts[source], state.threshold) : null;
  const value = (of, label) => {
    if (!of) return NaN;
    const row = of.rows[label];
    const total = row.reduce((a, b) => a + b, 0);
    return total ? row[label < run.known ? label : run.known] / total : NaN;
  };
  const cell = (share, colour) => make("td", { class: "number" }, `${percent(share, 0)} `,
    make("span", { class: "bar" }, make("i", { style: `width:${Number.isFinite(share) ? 100 * share : 0}%;background:var(--${colour})` })));
  const rows = run.classes.map((name, label) => {
    const colour = label < run.known ? "known" : "unknown";
    const here = value(found, label);
    const there = value(beside, label);
    if (!Number.isFinite(here) && !Number.isFinite(there)) return null;
    return make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, label < run.known ? "named correctly" : "rejected"),
      cell(here, colour), ...(beside ? [cell(there, colour), make("td", { class: "number" }, Number.isFinite(here - there) ? `${(100 * (here - there)).toFixed(0)}` : "–")] : []));
  });
  const header = make("tr", {}, ...["class", "", parts[state.part].name, ...(beside ? ["sources", "difference"] : [])].map((title, i) => make("th", { scope: "col", class: i > 1 ? "number" : null }, title)));
  document.getElementById("classes").replaceChildren(make("table", {}, make("thead", {}, header), make("tbody", {}, ...rows.filter(Boolean))));
}

const KINDS = [
  { title: "mistakes", about: "Known images that are taken for another class, the most confident first.", of: (item) => item.label < run.known && item.label !== item.prediction && item.confidence >= state.threshold },
  { title: "known, rejected", about: "Known images that the model would name correctly, but rejects at this threshold.", of: (item) => item.label < run.known && item.label === item.prediction && item.confidence < state.threshold },
  { title: "unknown, accepted", about: "Images of unknown classes that are taken for a known one, the most confident first.", of: (item) => item.label >= run.known && item.confidence >= state.threshold },
];

function gallery() {
  const kind = KINDS[state.kind];
  const items = run.gallery.filter((item) => item.part === state.part && kind.of(item) && (state.label === "" || run.classes[item.label] === state.label));
  const cards = items.slice(0, 24).map((item) => make("li", {},
    item.image ? make("img", { src: item.image, alt: `${run.classes[item.label]}, taken for ${run.classes[item.prediction]}`, title: item.path, loading: "lazy" }) : make("div", { class: "missing" }, item.path),
    make("div", {}, "is ", make("strong", {}, run.classes[item.label])), make("div", {}, "taken for ", make("strong", {}, run.classes[item.prediction])),
    make("div", { class: "soft" }, `score ${shown(item.confidence)}`)));
  document.getElementById("kind").textContent = kind.about;
  document.getElementById("gallery").replaceChildren(...(cards.length ? cards : [make("li", { class: "soft" }, "none")]));
}

function buttons(holder, titles, key, changed) {
  const all = titles.map((title, i) => make("button", { type: "button", "aria-pressed": String(i === state[key]), onclick: () => {
    state[key] = i;
    all.forEach((button, j) => button.setAttribute("aria-pressed", String(i === j)));
    changed();
  } }, title));
  document.getElementById(holder).append(...all);
}

function start() {
  for (const chart of run.curves) lineChart(document.getElementById("curves").appendChild(make("figure")), chart);
  if (!run.open) return;
  const redraw = thresholdChart();
  const update = () => { const found = numbers(parts[state.part]); matrix(found); confusions(found); perClass(found); gallery(); };
  let waiting = false;
  listeners.push(() => { numbers(parts[state.part]); if (!waiting) { waiting = true; requestAnimationFrame(() => { waiting = false; update(); }); } });
  if (parts.length > 1) buttons("parts", parts.map((part) => part.name), "part", () => { redraw(); update(); });
  buttons("kinds", KINDS.map((kind) => kind.title), "kind", gallery);
  const names = [...new Set(run.gallery.map((item) => run.classes[item.label]))].sort();
  const select = document.getElementById("label");
  select.append(make("option", { value: "" }, "all classes"), ...names.map((name) => make("option", { value: name }, name)));
  select.addEventListener("change", () => { state.label = select.value; gallery(); });
  update();
}

start();
