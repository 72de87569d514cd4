"use strict";
// The report of a folder of runs: a table that is sorted, filtered and asked for its runs.

const all = data();
let table = all.tables[0];
const state = { metric: 0, sort: null, descending: true, filter: "" };

function cellOf(row, column) {
  return row.cells[all.metrics[state.metric].key][column];
}

function showRuns(row, column, cell) {
  document.getElementById("runs-title").textContent = `${row.label}, ${column}`;
  const titles = ["run", "seed", "iteration", ...all.metrics.map((metric) => metric.title)];
  const lines = cell.runs.map((number) => {
    const run = table.runs[number];
    const name = run.report ? make("a", { href: run.report }, run.name) : run.name;
    const values = run.values.map((value) => make("td", { class: "number" }, value === null ? "–" : value.toFixed(1)));
    return make("tr", {}, make("td", {}, name), make("td", { class: "number" }, String(run.seed)), make("td", { class: "number" }, run.iteration), ...values);
  });
  const command = cell.runs.map((number) => table.runs[number]).map((run) => `medic report ${run.path}`).join("\n");
  document.getElementById("runs-list").replaceChildren(
    make("table", {}, make("thead", {}, make("tr", {}, ...titles.map((title) => make("th", { scope: "col" }, title)))), make("tbody", {}, ...lines)),
    make("pre", {}, command));
  document.getElementById("runs").showModal();
}

function draw() {
  const metric = all.metrics[state.metric];
  document.getElementById("meaning").textContent = metric.meaning;
  const columns = table.columns;
  const sign = state.descending ? -1 : 1;
  const value = (row) => (state.sort === "" ? row.label : cellOf(row, state.sort).mean ?? -Infinity);
  const rows = table.rows.filter((row) => row.label.toLowerCase().includes(state.filter));
  if (state.sort !== null) rows.sort((a, b) => { const [x, y] = [value(a), value(b)]; return sign * (x < y ? -1 : x > y ? 1 : 0); });
  const sorter = (column, title) => {
    const direction = state.sort !== column ? "none" : state.descending ? "descending" : "ascending";
    const mark = { none: "", descending: " ↓", ascending: " ↑" }[direction];
    return make("th", { scope: "col", "aria-sort": direction, class: column === "" ? null : "number" }, make("button", { type: "button", onclick: () => {
      state.descending = state.sort === column ? !state.descending : column !== "";
      state.sort = column;
      draw();
    } }, title + mark));
  };
  const best = Object.fromEntries(columns.map((column) => [column, Math.max(...rows.map((row) => cellOf(row, column).mean ?? -Infinity))]));
  const lines = rows.map((row) => make("tr", { class: row.method === "medic++" ? "medic" : null }, make("th", { scope: "row" }, row.label), ...columns.map((column) => {
    const cell = cellOf(row, column);
    const shown = cell.mean !== null && cell.mean === best[column] ? make("strong", {}, cell.text) : cell.text;
    const content = cell.runs.length ? make("button", { type: "button", onclick: () => showRuns(row, column, cell) }, shown) : shown;
    return make("td", { class: "number" }, content);
  })));
  document.getElementById("grid").replaceChildren(make("thead", {}, make("tr", {}, sorter("", "method"), ...columns.map((column) => sorter(column, column)))), make("tbody", {}, ...lines));
}

function compare() {
  const [base, other] = ["base", "other"].map((id) => Number(document.getElementById(id).value));
  const holder = document.getElementById("comparison");
  const forward = table.comparisons[`${base},${other}`];
  const backward = table.comparisons[`${other},${base}`];
  if (base === other || !(forward || backward)) { holder.textContent = base === other ? "Choose two rows." : "They share fewer than two runs."; return; }
  const sign = forward ? 1 : -1;
  const lines = (forward || backward).map(([title, difference, low, high, p, pairs]) => {
    const [from, to] = sign > 0 ? [low, high] : [-high, -low];
    const signed = (number) => `${number < 0 ? "−" : "+"}${Math.abs(number).toFixed(2)}`;
    return make("tr", {}, make("th", { scope: "row" }, title), ...[signed(sign * difference), `${signed(from)} … ${signed(to)}`, p < 0.001 ? "< 0.001" : p.toFixed(3), String(pairs)].map((cell) => make("td", { class: "number" }, cell)));
  });
  const titles = ["", "difference", "95 % interval", "p", "pairs"];
  holder.replaceChildren(make("p", {}, `${table.rows[other].label} over ${table.rows[base].label}, in points, paired over columns and seeds`),
    make("table", {}, make("thead", {}, make("tr", {}, ...titles.map((title) => make("th", { scope: "col", class: "number" }, title)))), make("tbody", {}, ...lines)));
}

function start() {
  const buttons = all.metrics.map((metric, i) => make("button", { type: "button", "aria-pressed": String(i === 0), onclick: () => {
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
