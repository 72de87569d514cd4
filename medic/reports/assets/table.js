"use strict";
// The report of a folder of runs: a table to sort and filter, dot plots, and a comparison of two rows.

const all = data();
let table = all.tables[0];
const state = { metric: all.first, sort: null, descending: true, filter: "" };

// The columns shown: all targets with the chosen metric or, for a single target, all metrics.
function shown() {
  const [only, ...others] = table.columns;
  if (others.length) return table.columns.map((column) => ({ title: column, column, metric: all.metrics[state.metric] }));
  return all.metrics.map((metric) => ({ title: metric.title, column: only, metric }));
}

function cellOf(row, { column, metric }) {
  return row.cells[metric.key][column];
}

function showRuns(row, column) {
  const runs = row.runs[column].map((number) => table.runs[number]);
  document.getElementById("runs-title").textContent = `${row.label}, ${column}`;
  const titles = ["run", "seed", "iteration", ...all.metrics.map((metric) => metric.title)];
  const lines = runs.map((run) => {
    const name = run.report ? make("a", { href: run.report }, named(run.name)) : named(run.name);
    const values = run.values.map((value) => (value === null ? "–" : value.toFixed(1)));
    return make("tr", {}, make("th", { scope: "row" }, name), ...[String(run.seed), run.iteration, ...values].map((value) => make("td", { class: "number" }, value)));
  });
  const header = make("tr", {}, ...titles.map((title, i) => make("th", { scope: "col", class: i ? "number" : null }, title)));
  document.getElementById("runs-list").replaceChildren(make("table", {}, make("thead", {}, header), make("tbody", {}, ...lines)));
  document.getElementById("runs-commands").textContent = runs.map((run) => run.command).join("\n");
  document.getElementById("runs").showModal();
}

function draw() {
  const columns = shown();
  const single = table.columns.length === 1;
  const percent = columns.every(({ metric }) => metric.percent);
  const lower = single ? "" : columns[0].metric.lower ? "; lower is better" : "";
  document.getElementById("metrics").hidden = single;
  document.getElementById("only").textContent = single ? `The ${table.kind} is ${table.columns[0]}.` : "";
  document.getElementById("meaning").textContent = single ? "" : columns[0].metric.meaning;
  document.getElementById("unit").textContent = `${percent ? ", in percent" : ""}${lower}`;
  document.getElementById("notes").replaceChildren(...table.notes.map((note) => make("li", {}, note)));
  const about = document.getElementById("about");
  about.hidden = !about.querySelector("li");
  const rows = table.rows.filter((row) => row.label.toLowerCase().includes(state.filter));
  const order = (a, b) => {
    const [x, y] = [a, b].map((row) => (state.sort === -1 ? row.label : cellOf(row, columns[state.sort]).mean));
    if (x === null || y === null) return (x === null) - (y === null); // rows without a number always come last
    return (state.descending ? -1 : 1) * (x < y ? -1 : x > y ? 1 : 0);
  };
  if (state.sort !== null) rows.sort(order);
  const sorter = (title, position, metric) => {
    const direction = state.sort !== position ? "none" : state.descending ? "descending" : "ascending";
    const mark = { none: "", descending: " ↓", ascending: " ↑" }[direction];
    return make("th", { scope: "col", "aria-sort": direction, class: metric ? "number" : null, title: metric && metric.meaning }, make("button", { type: "button", onclick: () => {
      state.descending = state.sort === position ? !state.descending : Boolean(metric) && !metric.lower;
      state.sort = position;
      draw();
      document.querySelectorAll("#grid thead button")[position + 1].focus();
    } }, title + mark));
  };
  const best = columns.map(leader);
  const lines = rows.map((row) => make("tr", {}, make("th", { scope: "row" }, named(row.label)), ...columns.map((shown, i) => {
    const cell = cellOf(row, shown);
    const text = row === best[i] ? make("strong", {}, cell.text) : cell.text;
    const content = row.runs[shown.column].length ? make("button", { type: "button", onclick: () => showRuns(row, shown.column) }, text) : text;
    return make("td", { class: "number" }, content);
  })));
  document.getElementById("grid").replaceChildren(make("thead", {}, make("tr", {}, sorter("method", -1), ...columns.map(({ title, metric }, i) => sorter(title, i, metric)))), make("tbody", {}, ...lines));
  dotPlots(rows, columns);
}

// The value of a metric for random guessing, given the number of known classes.
const CHANCE = { acc: (classes) => 100 / classes, oscr: (classes) => 50 / classes, auroc: () => 50 };
const PANELS = 6;
const NARROW = 5; // an axis of fewer percentage points would make noise look large

// One dot plot per column: all targets, or their average if there are many. For a single target, the first metrics.
function dotPlots(rows, columns) {
  const single = table.columns.length === 1;
  const panels = single ? columns.slice(0, 3) : columns.length > PANELS ? columns.slice(-1) : columns;
  const mark = (...nodes) => make("svg", { viewBox: "0 0 28 8" }, ...nodes);
  const figures = panels.map((panel) => dotPlot(rows, panel, single ? panel.title : `${panel.metric.title}, ${panel.title}`));
  document.getElementById("charts").replaceChildren(...figures);
  const drawn = (name) => figures.some((figure) => figure.querySelector(`.${name}`));
  const marks = [[mark(make("circle", { class: "mean", cx: 14, cy: 4, r: 4 })), "mean"], [mark(make("circle", { class: "one", cx: 14, cy: 4, r: 3 })), single ? "one run" : `one run (Avg: one ${table.kind})`],
    ...["error", "chance"].filter(drawn).map((name) => [mark(make("line", { class: name, x1: 0, x2: 28, y1: 4, y2: 4 })), { error: "± standard error", chance: "chance" }[name]])];
  document.getElementById("marks").replaceChildren(...marks.map((one) => make("li", {}, ...one)));
}

function dotPlot(rows, { column, metric }, title) {
  const index = all.metrics.indexOf(metric);
  const strips = rows.map((row) => {
    const cell = row.cells[metric.key][column];
    const parts = table.compared.includes(column) ? row.runs[column].map((number) => table.runs[number].values[index]) : table.compared.map((one) => row.cells[metric.key][one].mean);
    return { row, ...cell, parts: parts.filter((value) => value !== null) };
  });
  const classes = [...new Set(rows.flatMap((row) => row.runs[column]).map((number) => table.runs[number].classes))];
  const values = strips.flatMap(({ mean, error, parts }) => [...parts, ...(mean === null ? [] : [mean - (error || 0), mean + (error || 0)])]);
  if (!values.length) return make("figure", {}, make("figcaption", {}, title), "No values.");
  const ends = () => [Math.min(...values), Math.max(...values)];
  const span = () => Math.max(ends()[1] - ends()[0], metric.percent ? NARROW : 0) || 1;
  const guess = metric.key in CHANCE && classes.length === 1 ? CHANCE[metric.key](classes[0]) : null;
  // If chance is far from all values, showing it would squeeze them together.
  const chance = guess !== null && Math.min(...values) - guess <= span() ? guess : null;
  if (chance !== null) values.push(chance);
  const [middle, half] = [(ends()[0] + ends()[1]) / 2, 0.56 * span()];
  const x = scale(middle - half, middle + half, 0, 100, short, 4);
  const at = (value) => `${x(value).toFixed(2)}%`;
  const vertical = (value, name, bottom) => make("line", { class: name, x1: at(value), x2: at(value), y1: 0, y2: bottom });
  const lines = strips.flatMap(({ row, mean, error, text, parts }) => [named(row.label), make("svg", { role: "img", "aria-label": `${row.label}: ${text}` }, make("title", {}, text),
    ...x.ticks.map((value) => vertical(value, "axis", 26)), chance === null ? null : vertical(chance, "chance", 26),
    ...parts.map((value) => make("circle", { class: "one", cx: at(value), cy: 13, r: 3.5 })),
    mean === null || error === null ? null : make("line", { class: "error", x1: at(mean - error), x2: at(mean + error), y1: 13, y2: 13 }),
    mean === null ? null : make("circle", { class: "mean", cx: at(mean), cy: 13, r: 4.5 }))]);
  const axis = make("svg", { "aria-hidden": "true" }, ...x.ticks.map((value) => make("text", { x: at(value), y: 16, "text-anchor": "middle" }, short(value))));
  return make("figure", {}, make("figcaption", {}, title), make("div", { class: "dots" }, ...lines, make("span"), axis));
}

const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;

// The probability that |t| is smaller, by Student's distribution (Abramowitz and Stegun 26.7.3 and 26.7.4).
function within(t, freedom) {
  const angle = Math.atan(t / Math.sqrt(freedom));
  const odd = freedom % 2;
  let term = odd ? Math.cos(angle) : 1;
  let sum = freedom > 1 ? term : 0;
  for (let k = odd ? 3 : 2; k < freedom; k += 2) { term *= (Math.cos(angle) ** 2 * (k - 1)) / k; sum += term; }
  return odd ? (2 / Math.PI) * (angle + Math.sin(angle) * sum) : Math.sin(angle) * sum;
}

function quantile(share, freedom) {
  let [low, high] = [0, 100];
  for (let i = 0; i < 60; i += 1) { const middle = (low + high) / 2; if (within(middle, freedom) < share) low = middle; else high = middle; }
  return low;
}

// The differences in a metric between two rows, for each trial that both have, by column.
function differences(base, other, metric, columns = table.compared) {
  const byTrial = (row, column) => new Map(row.runs[column].map((number) => table.runs[number]).filter((run) => run.values[metric] !== null).map((run) => [run.trial, run.values[metric]]));
  return columns.map((column) => {
    const [before, after] = [byTrial(base, column), byTrial(other, column)];
    return [...after.keys()].filter((trial) => before.has(trial)).map((trial) => after.get(trial) - before.get(trial));
  }).filter((found) => found.length);
}

const LEAST = 3;

// A paired t-test over column means, or over the seeds of a single column. With fewer than three pairs, only the difference.
function tested(columns) {
  const values = columns.length === 1 ? columns[0] : columns.map(mean);
  if (!values.length) return null;
  const difference = mean(values);
  const over = columns.length === 1 ? "seeds" : `${table.kind}s`;
  if (values.length < LEAST) return { difference, count: values.length, over };
  const error = Math.sqrt(values.reduce((sum, value) => sum + (value - difference) ** 2, 0) / (values.length - 1) / values.length);
  const freedom = values.length - 1;
  const half = error * quantile(0.95, freedom);
  const p = error > 0 ? 1 - within(Math.abs(difference) / error, freedom) : Number(difference === 0);
  return { difference, low: difference - half, high: difference + half, p, count: values.length, over };
}

// The row with the best mean in a column, if tests separate it from every other row and its accuracy from chance.
function leader({ column, metric }) {
  const sign = metric.lower ? -1 : 1;
  const rows = table.rows.filter((row) => row.cells[metric.key][column].mean !== null);
  const [best, ...others] = rows.sort((a, b) => sign * (b.cells[metric.key][column].mean - a.cells[metric.key][column].mean));
  if (!others.length) return null;
  const columns = table.compared.includes(column) ? [column] : table.compared;
  const clear = (test, direction) => test !== null && test.p < 0.05 && direction * test.difference > 0;
  const index = all.metrics.indexOf(metric);
  const above = columns.map((one) => best.runs[one].map((number) => table.runs[number]).filter((run) => run.acc !== null).map((run) => run.acc - 100 / run.classes));
  return clear(tested(above.filter((values) => values.length)), 1) && others.every((other) => clear(tested(differences(other, best, index, columns)), sign)) ? best : null;
}

function compare() {
  const [base, other] = ["base", "other"].map((id) => table.rows[Number(document.getElementById(id).value)]);
  const holder = document.getElementById("comparison");
  if (base === other) { holder.textContent = "Choose two different rows."; return; }
  const found = all.metrics.map((metric, i) => ({ metric, ...tested(differences(base, other, i)) })).filter((one) => one.count);
  if (!found.length) { holder.textContent = "These rows have no runs with the same column and seed."; return; }
  const signed = (number) => `${number < 0 ? "−" : "+"}${Math.abs(number).toFixed(2)}`;
  const few = found.every((one) => one.p === undefined);
  const most = Math.max(...found.map((one) => one.count));
  const lines = found.map(({ metric, difference, low, high, p, count }) => make("tr", {}, make("th", { scope: "row" }, metric.title + (metric.lower ? " ↓" : "") + (count < most ? ` (${count})` : "")),
    ...[signed(difference), ...(few ? [] : [p === undefined ? "–" : `${signed(low)} … ${signed(high)}`, p === undefined ? "–" : p < 0.001 ? "< 0.001" : p.toFixed(3)])].map((cell) => make("td", { class: "number" }, cell))));
  const seeds = found.some((one) => one.over === "seeds");
  const how = few ? `An interval requires at least three ${found[0].over} to compare: train runs with more ${found[0].over}` : `Paired t-test over ${most} ${seeds ? `seeds of one ${table.kind}: the interval does not apply to other ${table.kind}s` : `${table.kind}s, each averaged over the seeds that both rows share`}`;
  const titles = ["", "difference", ...(few ? [] : ["95% interval", "p"])];
  holder.replaceChildren(make("p", {}, `${other.label} minus ${base.label}, in percentage points. ${how}.`),
    make("div", { class: "wide" }, make("table", {}, make("thead", {}, make("tr", {}, ...titles.map((title) => make("th", { scope: "col", class: "number" }, title)))), make("tbody", {}, ...lines))));
}

function start() {
  document.getElementById("compare").hidden = table.rows.length < 2;
  const buttons = all.metrics.map((metric, i) => make("button", { type: "button", "aria-pressed": String(i === state.metric), onclick: () => {
    state.metric = i;
    buttons.forEach((button, j) => button.setAttribute("aria-pressed", String(i === j)));
    draw();
  } }, metric.title));
  document.getElementById("metrics").append(...buttons);
  const rule = document.getElementById("rule");
  if (rule) rule.addEventListener("change", () => { table = all.tables[Number(rule.value)]; draw(); compare(); });
  document.getElementById("filter").addEventListener("input", (event) => { state.filter = event.target.value.toLowerCase(); draw(); });
  document.getElementById("close").addEventListener("click", () => document.getElementById("runs").close());
  for (const [id, chosen] of [["base", all.base], ["other", all.other]]) {
    const select = document.getElementById(id);
    select.append(...table.rows.map((row, i) => make("option", { value: i, selected: i === chosen }, row.label)));
    select.addEventListener("change", compare);
  }
  draw();
  compare();
}

start();
