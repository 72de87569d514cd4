"use strict";
// The report of one run. Everything that depends on the threshold is computed here from sorted confidences.

const run = data();
const parts = run.parts.map((part) => ({ ...part, values: floats(part.confidence) }));
// Without a threshold, every image is accepted and the column "unknown" is hidden.
const rejects = run.threshold !== null;
const chosen = rejects ? floats(run.threshold)[0] : -Infinity;
const state = { threshold: chosen, part: 0, kind: 0, label: "" };
const listeners = [];
floats(run.confidence).forEach((value, i) => { run.gallery[i].confidence = value; });

const sum = (values) => values.reduce((a, b) => a + b, 0);
const isKnown = (label) => label < run.known;
const someUnknown = run.classes.length > run.known;
// The colour of correct decisions for a class.
const kindOf = (label) => (isKnown(label) ? "known" : "unknown");
// The column of the correct decision for a class.
const correct = (label) => (isKnown(label) ? label : run.known);

// The number of confidences in a group that reach the threshold.
function accepted(part, group, threshold) {
  const [, , start, count] = group;
  let [low, high] = [start, start + count];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (part.values[middle] >= threshold) high = middle; else low = middle + 1;
  }
  return start + count - low;
}

// Image counts by true class and decision. The last column is "unknown".
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
  let [right, known, rejected, unknown] = [0, 0, 0, 0];
  rows.forEach((row, label) => {
    if (isKnown(label)) { right += row[label]; known += sum(row); } else { rejected += row[run.known]; unknown += sum(row); }
  });
  const accK = known ? right / known : NaN;
  const accU = unknown ? rejected / unknown : NaN;
  const h = accK + accU === 0 ? 0 : (2 * accK * accU) / (accK + accU);
  return { rows, right, known, rejected, unknown, accK, accU, h };
}

function shown(value) {
  if (!run.probability) return Number.isFinite(value) ? value.toPrecision(4) : String(value);
  const p = 1 / (1 + Math.exp(-value));
  return p > 0.999 ? (1 - p < 1e-12 ? "1 − 1e-12" : `1 − ${Number((1 - p).toPrecision(2))}`) : p.toPrecision(3);
}

function numbers(part) {
  const found = measure(part, state.threshold);
  if (!rejects) return found;
  const set = (id, text) => { document.getElementById(id).textContent = text; };
  set("at-threshold", shown(state.threshold));
  set("at-acc-k", percent(found.accK)); set("at-acc-u", percent(found.accU)); set("at-h", percent(found.h));
  set("at-counts", `${found.right} of ${found.known} known images are classified correctly, and ` + (found.unknown ? `${found.rejected} of ${found.unknown} unknown images are rejected.` : "no image belongs to an unknown class."));
  const holder = document.getElementById("threshold");
  Object.assign(holder.dataset, { threshold: String(state.threshold), accK: String(found.accK), accU: String(found.accU), h: String(found.h) });
  return found;
}

// Log-odds of round probabilities: evenly spaced in a narrow range, otherwise 0.5, 0.9, 0.99, ... and 0.1, 0.01, ...
function probabilityTicks(low, high, count) {
  const [logit, sigmoid] = [(p) => Math.log(p / (1 - p)), (value) => 1 / (1 + Math.exp(-value))];
  if (high - low < 4 && Math.max(-low, high) < 5) return ticks(sigmoid(low), sigmoid(high), count).filter((p) => p > 0 && p < 1).map(logit);
  const steps = Array.from({ length: 12 }, (_, i) => Math.log(10 ** (i + 1) - 1)); // the log-odds of 0.9, 0.99, ...
  const all = [...steps.map((value) => -value).reverse(), 0, ...steps].filter((value) => value >= low && value <= high);
  const every = Math.ceil(all.length / count);
  return all.filter((_, i) => (i - Math.max(0, all.indexOf(0))) % every === 0);
}

const BINS = 60;

// Shares of known and unknown images in equal bins. The outermost bins include out-of-range values.
function histogram(part) {
  const sorted = part.values.filter(Number.isFinite).sort();
  const at = (share) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
  const ends = [...(sorted.length ? [at(0.005), at(0.995)] : []), chosen].filter(Number.isFinite);
  let [low, high] = ends.length ? [Math.min(...ends), Math.max(...ends)] : [-1, 1];
  const margin = (high - low || 1) * 0.03;
  [low, high] = [low - margin, high + margin];
  const bins = { right: new Array(BINS).fill(0), wrong: new Array(BINS).fill(0), unknown: new Array(BINS).fill(0) };
  for (const [label, prediction, start, count] of part.groups) {
    const kind = !isKnown(label) ? "unknown" : label === prediction ? "right" : "wrong";
    for (let i = start; i < start + count; i += 1) {
      const bin = Math.floor(((part.values[i] - low) / (high - low)) * BINS);
      bins[kind][Math.max(0, Math.min(BINS - 1, bin))] += 1;
    }
  }
  const [known, unknown] = [sum(bins.right) + sum(bins.wrong) || 1, sum(bins.unknown) || 1];
  const share = (counts, of) => counts.map((count) => count / of);
  return { low, high, bins: { right: share(bins.right, known), wrong: share(bins.wrong, known), unknown: share(bins.unknown, unknown) } };
}

function thresholdChart() {
  const holder = document.getElementById("histogram");
  const slider = document.getElementById("slider");
  let redraw = () => {};
  const choose = (value) => { state.threshold = value; for (const listener of listeners) listener(); };
  const inside = (value) => Math.max(Number(slider.min), Math.min(Number(slider.max), value));
  const draw = (width) => {
    const { low, high, bins } = histogram(parts[state.part]);
    const box = { left: 40, right: width - 8, top: 40, bottom: 216 };
    const svg = make("svg", { height: 258, viewBox: `0 0 ${width} 258`, role: "img",
      "aria-label": `histogram of the score${someUnknown ? ": known images above the line, unknown images below" : " of known images"}` });
    const x = scale(low, high, box.left, box.right, shown, Math.max(3, Math.floor(width / 110)), run.probability ? probabilityTicks : ticks);
    // Both share one axis: known images go up, unknown images go down.
    const [most, least] = [Math.max(...bins.right.map((share, i) => share + bins.wrong[i])), -Math.max(...bins.unknown)];
    const y = scale(100 * least, 100 * most || 1, box.bottom, box.top, (value) => short(Math.abs(value)), 6);
    axes(svg, box, x, y, [`score ${run.score}${run.probability ? ", as a probability" : ""}`, someUnknown ? "% of known images ↑, of unknown images ↓" : "% of known images"]);
    const each = (box.right - box.left) / BINS;
    const bar = (i, from, to, colour) => svg.append(make("rect", { x: box.left + i * each, width: Math.max(each - 1, 0.5), y: y(100 * Math.max(from, to)), height: Math.abs(y(100 * to) - y(100 * from)), fill: `var(--${colour})` }));
    for (let i = 0; i < BINS; i += 1) {
      bar(i, 0, bins.right[i], "known");
      bar(i, bins.right[i], bins.right[i] + bins.wrong[i], "wrong");
      bar(i, 0, -bins.unknown[i], "unknown");
    }
    const line = make("line", { class: "line", y1: box.top - 20, y2: box.bottom + 4 });
    const sides = [["← rejected", "end", -6], ["accepted →", "start", 6]].map(([text, anchor, gap]) => ({ gap, node: make("text", { class: "side", y: box.top - 10, "text-anchor": anchor }, text) }));
    svg.append(line, ...sides.map((side) => side.node));
    Object.assign(slider, { min: low, max: high, step: "any" });
    redraw = () => {
      const place = x(inside(state.threshold));
      line.setAttribute("x1", place); line.setAttribute("x2", place);
      for (const { gap, node } of sides) {
        node.setAttribute("x", place + gap);
        node.setAttribute("visibility", place + 12 * gap < box.left || place + 12 * gap > box.right ? "hidden" : "visible"); // no room
      }
      slider.value = state.threshold;
      slider.setAttribute("aria-valuetext", shown(state.threshold));
    };
    const follow = (event) => choose(inside(x.invert(event.clientX - svg.getBoundingClientRect().left)));
    svg.addEventListener("pointerdown", (event) => { svg.setPointerCapture(event.pointerId); follow(event); });
    svg.addEventListener("pointermove", (event) => { if (event.buttons) follow(event); });
    holder.replaceChildren(svg);
    redraw();
  };
  responsive(holder, draw);
  slider.addEventListener("input", () => choose(Number(slider.value)));
  slider.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10 }[event.key];
    if (steps) { event.preventDefault(); choose(inside(inside(state.threshold) + (steps * (Number(slider.max) - Number(slider.min))) / 200)); }
  });
  document.getElementById("reset").addEventListener("click", () => choose(chosen));
  listeners.push(() => redraw());
  return () => draw(Math.floor(holder.clientWidth));
}

function tint(share, colour) {
  return `background: color-mix(in srgb, var(--${colour}) ${Math.round(70 * share)}%, transparent)`;
}

const WHOLE = 40;
const MOST = 30;

// The classes shown in the matrix: all of them, or those with the most errors in their row and column.
function confused(rows) {
  const present = rows.map((row, label) => label).filter((label) => sum(rows[label]));
  if (present.length <= WHOLE && run.known <= WHOLE) return { rows: present, columns: rows[0].map((_, column) => column).slice(0, run.known) };
  const errors = rows.map((row, label) => sum(row) - row[correct(label)]);
  rows.forEach((row, label) => row.forEach((count, column) => { if (column !== correct(label) && column < run.known) errors[column] += count; }));
  const most = rows.map((_, label) => label).sort((a, b) => errors[b] - errors[a]).slice(0, MOST).sort((a, b) => a - b);
  return { rows: most.filter((label) => sum(rows[label])), columns: most.filter(isKnown), of: run.classes.length };
}

function matrix(found) {
  const { rows: labels, columns, of } = confused(found.rows);
  document.getElementById("matrix-note").textContent = of ? `The matrix shows the ${MOST} of ${of} classes with the most errors.` : "";
  const others = (row) => sum(row.slice(0, run.known)) - sum(columns.map((column) => row[column]));
  const heads = [...columns.map((column) => run.classes[column]), ...(of ? ["other classes"] : []), ...(rejects ? ["unknown"] : [])];
  const header = make("tr", {}, make("th", {}, "true ↓", make("br"), "predicted →"), ...heads.map((name) => make("th", { scope: "col" }, named(name))));
  const rows = labels.map((label) => {
    const row = found.rows[label];
    const total = sum(row);
    const cell = (count, right) => make("td", { style: count ? tint(count / total, right ? kindOf(label) : "wrong") : null, title: `${percent(count / total)}% of ${run.classes[label]}` }, count ? String(count) : "");
    return make("tr", {}, make("th", { scope: "row", class: isKnown(label) ? null : "foreign" }, named(run.classes[label])),
      ...columns.map((column) => cell(row[column], column === label)), of ? cell(others(row), false) : null, rejects ? cell(row[run.known], !isKnown(label)) : null);
  });
  document.getElementById("matrix").replaceChildren(make("table", { class: "matrix" }, make("thead", {}, header), make("tbody", {}, ...rows)));
}

function head(...titles) {
  return make("thead", {}, make("tr", {}, ...titles.map(([title, number]) => make("th", { scope: "col", class: number ? "number" : null }, title))));
}

// A cell that shows a share in percent, with a bar.
function barCell(share, colour) {
  return make("td", { class: "filled" }, make("div", {}, make("output", {}, Number.isFinite(share) ? `${percent(share, 0)}%` : "–"),
    make("span", { class: `bar ${colour}` }, make("i", { style: `width:${Number.isFinite(share) ? 100 * share : 0}%` }))));
}

function confusions(found) {
  const pairs = [];
  found.rows.forEach((row, label) => row.forEach((count, column) => {
    if (count && column !== correct(label)) pairs.push({ count, label, column, total: sum(row) });
  }));
  pairs.sort((a, b) => b.count - a.count);
  const name = (column) => (column === run.known ? "unknown" : run.classes[column]);
  const rows = pairs.slice(0, 8).map((pair) => make("tr", {}, make("td", { class: isKnown(pair.label) ? null : "foreign" }, named(run.classes[pair.label])), make("td", {}, named(name(pair.column))),
    make("td", { class: "number" }, String(pair.count)), barCell(pair.count / pair.total, "wrong")));
  document.getElementById("confusions").replaceChildren(rows.length ? make("table", {}, head(["true class"], ["predicted"], ["images", true], ["share of class"]), make("tbody", {}, ...rows)) : "The model makes no errors.");
}

function perClass(found) {
  const source = parts.findIndex((part) => part.source);
  const beside = source >= 0 && source !== state.part ? measure(parts[source], state.threshold) : null;
  const value = (of, label) => (of && sum(of.rows[label]) ? of.rows[label][correct(label)] / sum(of.rows[label]) : NaN);
  const group = (title, labels) => {
    const rows = labels.map((label) => {
      const [here, there] = [value(found, label), value(beside, label)];
      if (!Number.isFinite(here) && !Number.isFinite(there)) return null;
      const colour = kindOf(label);
      const difference = Number.isFinite(here - there) ? `${here < there ? "−" : "+"}${Math.abs(100 * (here - there)).toFixed(0)}` : "–";
      return make("tr", {}, make("th", { scope: "row" }, named(run.classes[label])), barCell(here, colour),
        ...(beside ? [barCell(there, colour), make("td", { class: "number" }, difference)] : []));
    }).filter(Boolean);
    return rows.length ? make("tbody", {}, make("tr", { class: "group" }, make("th", { scope: "rowgroup", colspan: beside ? 4 : 2 }, title)), ...rows) : null;
  };
  const labels = run.classes.map((_, label) => label);
  document.getElementById("classes").replaceChildren(make("table", {}, head(["class"], [parts[state.part].name], ...(beside ? [["sources"], ["difference", true]] : [])),
    group("Known classes: classified correctly", labels.filter(isKnown)), group("Unknown classes: rejected", labels.filter((label) => !isKnown(label)))));
}

const KINDS = [
  { title: "misclassified", colour: "wrong", about: "Known images assigned to a wrong class, most confident first.", known: true, right: false, kept: true },
  { title: "known, rejected", colour: "known", about: "Known images that the model would classify correctly but rejects at this threshold.", known: true, right: true, kept: false },
  { title: "unknown, accepted", colour: "unknown", about: "Images of unknown classes accepted as a known class, most confident first.", known: false, right: false, kept: true },
].filter((kind) => rejects || kind.right === false).filter((kind) => kind.known || someUnknown);

const ofKind = (kind, label, prediction) => isKnown(label) === kind.known && (label === prediction) === kind.right;

// The number of images of a kind in a group at the current threshold.
function counted(kind, part, group) {
  const kept = accepted(part, group, state.threshold);
  return kind.kept ? kept : group[3] - kept;
}

function gallery() {
  const part = parts[state.part];
  document.getElementById("images").hidden = part.source;
  document.getElementById("no-images").hidden = !part.source;
  if (part.source) return;
  const kind = KINDS[state.kind];
  const groups = part.groups.filter(([label, prediction]) => ofKind(kind, label, prediction));
  const select = document.getElementById("label");
  const labels = [...new Set(groups.map(([label]) => label))].sort((a, b) => a - b);
  if (!labels.includes(Number(state.label))) state.label = "";
  select.replaceChildren(make("option", { value: "" }, "all classes"), ...labels.map((label) => make("option", { value: label, selected: String(label) === state.label }, run.classes[label])));
  const wanted = (label) => state.label === "" || label === Number(state.label);
  const count = sum(groups.filter(([label]) => wanted(label)).map((group) => counted(kind, part, group)));
  const items = run.gallery.filter((item) => item.part === state.part && ofKind(kind, item.label, item.prediction) && wanted(item.label) && (item.confidence >= state.threshold) === kind.kept).slice(0, 24);
  const cards = items.map((item) => make("li", { class: kind.colour },
    item.image ? make("img", { src: item.image, alt: `${run.classes[item.label]}, predicted ${run.classes[item.prediction]}`, title: item.path, loading: "lazy" }) : make("div", { class: "missing" }, item.path),
    make("div", {}, "true ", make("strong", {}, named(run.classes[item.label]))), make("div", {}, "predicted ", make("strong", {}, named(run.classes[item.prediction]))),
    make("div", { class: "soft" }, `score ${shown(item.confidence)}`)));
  document.getElementById("kind").textContent = kind.about;
  document.getElementById("shown").textContent = count ? `Showing ${cards.length} of ${count}.` : rejects ? "None at this threshold." : "None.";
  document.getElementById("gallery").replaceChildren(...cards);
}

function buttons(holder, titles, key, changed) {
  const all = titles.map((content, i) => make("button", { type: "button", "aria-pressed": String(i === state[key]), onclick: () => {
    state[key] = i;
    all.forEach((button, j) => button.setAttribute("aria-pressed", String(i === j)));
    changed();
  } }, ...content));
  document.getElementById(holder).append(...all);
}

function start() {
  for (const chart of run.curves) lineChart(document.getElementById("curves").appendChild(make("figure")), chart);
  const redraw = rejects ? thresholdChart() : () => {};
  const update = () => { const found = numbers(parts[state.part]); matrix(found); confusions(found); perClass(found); gallery(); };
  let waiting = false;
  listeners.push(() => { numbers(parts[state.part]); if (!waiting) { waiting = true; requestAnimationFrame(() => { waiting = false; update(); }); } });
  const some = (kind) => parts[0].groups.some((group) => ofKind(kind, group[0], group[1]) && counted(kind, parts[0], group));
  state.kind = Math.max(0, KINDS.findIndex(some));
  if (parts.length > 1) buttons("parts", parts.map((part) => [part.name]), "part", () => { redraw(); update(); });
  if (KINDS.length > 1) buttons("kinds", KINDS.map((kind) => [make("i", { class: `swatch ${kind.colour}` }), kind.title]), "kind", gallery);
  const select = document.getElementById("label");
  select.addEventListener("change", () => { state.label = select.value; gallery(); });
  update();
}

start();
