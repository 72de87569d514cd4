"use strict";
// The report of a folder of runs: a table that is sorted, filtered and asked for its runs.

const all = data();
let table = all.tables[0];
const state = { metric: all.first, sort: null, descending: true, filter: "" };

// The columns that are shown: targets by the chosen metric or, of a single one, all metrics.
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
  document.getElementById("meaning").textContent = single ? `The ${table.kind} is ${table.columns[0]}.` : columns[0].metric.meaning;
  document.getElementById("unit").textContent = `${percent ? ", in percent" : ""}${lower}`;
  document.getElementById("notes").replaceChildren(...table.notes.map((note) => make("p", { class: "soft" }, note)));
  const rows = table.rows.filter((row) => row.label.toLowerCase().includes(state.filter));
  const order = (a, b) => {
    const [x, y] = [a, b].map((row) => (state.sort === -1 ? row.label : cellOf(row, columns[state.sort]).mean));
    if (x === null || y === null) return (x === null) - (y === null); // rows without a number are last either way
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
  const best = columns.map((column) => {
    const means = rows.map((row) => cellOf(row, column).mean).filter((mean) => mean !== null);
    return column.metric.lower ? Math.min(...means) : Math.max(...means);
  });
  const lines = rows.map((row) => make("tr", { class: row.method === "medic++" ? "medic" : null }, make("th", { scope: "row" }, named(row.label)), ...columns.map((shown, i) => {
    const cell = cellOf(row, shown);
    const text = cell.mean === best[i] ? make("strong", {}, cell.text) : cell.text;
    const content = row.runs[shown.column].length ? make("button", { type: "button", onclick: () => showRuns(row, shown.column) }, text) : text;
    return make("td", { class: "number" }, content);
  })));
  document.getElementById("grid").replaceChildren(make("thead", {}, make("tr", {}, sorter("method", -1), ...columns.map(({ title, metric }, i) => sorter(title, i, metric)))), make("tbody", {}, ...lines));
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

// The differences of a metric over the trials that two rows share, by column.
function differences(base, other, metric) {
  const byTrial = (row, column) => new Map(row.runs[column].map((number) => table.runs[number]).filter((run) => run.values[metric] !== null).map((run) => [run.trial, run.values[metric]]));
  return table.compared.map((column) => {
    const [before, after] = [byTrial(base, column), byTrial(other, column)];
    return [...after.keys()].filter((trial) => before.has(trial)).map((trial) => after.get(trial) - before.get(trial));
  }).filter((found) => found.length);
}

// A paired t-test over the means of the columns, or over the seeds of a single column; of one pair the difference alone.
function tested(columns) {
  const values = columns.length === 1 ? columns[0] : columns.map(mean);
  if (!values.length) return null;
  const difference = mean(values);
  if (values.length === 1) return { difference, count: 1, over: "pair" };
  const error = Math.sqrt(values.reduce((sum, value) => sum + (value - difference) ** 2, 0) / (values.length - 1) / values.length);
  const freedom = values.length - 1;
  const half = error * quantile(0.95, freedom);
  const p = error > 0 ? 1 - within(Math.abs(difference) / error, freedom) : Number(difference === 0);
  return { difference, low: difference - half, high: difference + half, p, count: values.length, over: columns.length === 1 ? "seeds" : `${table.kind}s` };
}

function compare() {
  const [base, other] = ["base", "other"].map((id) => table.rows[Number(document.getElementById(id).value)]);
  const holder = document.getElementById("comparison");
  if (base === other) { holder.textContent = "Choose two rows."; return; }
  const found = all.metrics.map((metric, i) => ({ metric, ...tested(differences(base, other, i)) })).filter((one) => one.count);
  if (!found.length) { holder.textContent = "They share no run with the same column and seed."; return; }
  const signed = (number) => `${number < 0 ? "−" : "+"}${Math.abs(number).toFixed(2)}`;
  const lines = found.map(({ metric, difference, low, high, p, count, over }) => make("tr", {}, make("th", { scope: "row" }, metric.title + (metric.lower ? " ↓" : "")),
    ...[signed(difference), count > 1 ? `${signed(low)} … ${signed(high)}` : "–", count === 1 ? "–" : p < 0.001 ? "< 0.001" : p.toFixed(3), `${count} ${over}`].map((cell) => make("td", { class: "number" }, cell))));
  const seeds = found.some((one) => one.over === "seeds");
  const single = found.every((one) => one.count === 1);
  const how = single ? "One run each, so there is no interval: add runs with other seeds" : `Paired t-test ${seeds ? `over the seeds of one ${table.kind}: the interval does not cover other ${table.kind}s` : `over ${table.kind}s, each the mean over the seeds that both rows have`}`;
  const titles = ["", "difference", "95 % interval", "p", "pairs"];
  holder.replaceChildren(make("p", {}, `${other.label} over ${base.label}, in points. ${how}.`),
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
