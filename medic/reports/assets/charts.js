"use strict";
// Small SVG charts that use the page's colours and stay readable on a phone.

const SVG = "http://www.w3.org/2000/svg";

function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "path", "line", "rect", "text", "circle", "title"].includes(tag);
  const node = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// A name in a table. Long names are truncated and shown in full on hover.
function named(text) {
  return make("span", { class: "name", title: text }, text.trim() ? text : `“${text}”`);
}

function percent(share, digits = 1) {
  return Number.isFinite(share) ? (100 * share).toFixed(digits) : "–";
}

// Ticks at multiples of 1, 2 or 5 (times a power of ten) between two ends.
function ticks(low, high, count = 5) {
  const span = high - low || 1;
  const power = 10 ** Math.floor(Math.log10(span / count));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => span / size <= count);
  const first = Math.ceil(low / step - 1e-9);
  const found = [];
  for (let number = first; number * step <= high + 1e-9 * span; number += 1) found.push(number * step);
  return found;
}

function short(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 10000) return `${value / 1000}k`;
  return String(Number(value.toPrecision(4)));
}

// Redraw whenever the width changes.
function responsive(holder, draw) {
  let width = 0;
  const redraw = () => {
    const now = Math.floor(holder.clientWidth);
    if (now > 0 && now !== width) { width = now; draw(now); }
  };
  new ResizeObserver(redraw).observe(holder);
  redraw();
}

function axes(svg, box, x, y, labels) {
  for (const value of x.ticks) {
    svg.append(make("line", { class: "axis", x1: x(value), x2: x(value), y1: box.top, y2: box.bottom }));
    svg.append(make("text", { x: x(value), y: box.bottom + 16, "text-anchor": "middle" }, x.format(value)));
  }
  for (const value of y.ticks) {
    svg.append(make("line", { class: "axis", x1: box.left, x2: box.right, y1: y(value), y2: y(value) }));
    svg.append(make("text", { x: box.left - 6, y: y(value) + 4, "text-anchor": "end" }, y.format(value)));
  }
  svg.append(make("text", { x: (box.left + box.right) / 2, y: box.bottom + 34, "text-anchor": "middle" }, labels[0]));
  svg.append(make("text", { x: 0, y: 12 }, labels[1]));
}

function scale(low, high, from, to, format = short, count = 5, choose = ticks) {
  const place = (value) => from + ((value - low) / (high - low || 1)) * (to - from);
  return Object.assign(place, { ticks: choose(low, high, count), format, invert: (at) => low + ((at - from) / (to - from)) * (high - low) });
}

// A line chart of series {name, colour, dash, x, y}. The pointer shows values; a null in y is a gap.
function lineChart(holder, { title, series, x: xLabel, y: yLabel, range }) {
  const line = (s) => make("svg", { viewBox: "0 0 28 8" }, make("line", { x1: 0, x2: 28, y1: 4, y2: 4, stroke: s.colour, "stroke-width": 2, "stroke-dasharray": s.dash }));
  const legend = make("ul", { class: "legend" }, ...series.map((s) => make("li", {}, line(s), s.name)));
  const plot = make("div");
  const readout = make("div", { class: "readout", "aria-live": "off" });
  holder.append(make("figcaption", {}, title), ...(series.length > 1 ? [legend] : []), plot, readout);
  const points = series.flatMap((s) => s.y).filter(Number.isFinite);
  const places = series.flatMap((s) => s.x);
  const [low, high] = range || [Math.min(...points), Math.max(...points)];
  const [left, right] = [Math.min(...places), Math.max(...places)];
  responsive(plot, (width) => {
    const box = { left: 40, right: width - 16, top: 22, bottom: 220 };
    const svg = make("svg", { height: 262, viewBox: `0 0 ${width} 262`, role: "img", "aria-label": `${title}: ${series.map((s) => s.name).join(", ")}` });
    const x = scale(left, right, box.left, box.right, short, Math.max(2, Math.floor(width / 90)));
    const y = scale(low, high, box.bottom, box.top);
    axes(svg, box, x, y, [xLabel, yLabel]);
    for (const s of series) {
      const there = (i) => i >= 0 && Number.isFinite(s.y[i]);
      const path = s.x.map((value, i) => (there(i) ? `${there(i - 1) ? "L" : "M"}${x(value).toFixed(1)} ${y(s.y[i]).toFixed(1)}` : "")).join("");
      svg.append(make("path", { d: path, fill: "none", stroke: s.colour, "stroke-width": 2, "stroke-dasharray": s.dash }));
      if (s.x.length <= 30) for (const [i, value] of s.x.entries()) if (there(i)) svg.append(make("circle", { cx: x(value), cy: y(s.y[i]), r: 2.5, fill: s.colour }));
    }
    const cursor = make("line", { class: "cursor", y1: box.top, y2: box.bottom, visibility: "hidden" });
    svg.append(cursor);
    svg.addEventListener("pointermove", (event) => {
      const at = x.invert(event.clientX - svg.getBoundingClientRect().left);
      const nearest = (s) => s.x.reduce((best, value, i) => (Math.abs(value - at) < Math.abs(s.x[best] - at) ? i : best), 0);
      const first = series[0].x[nearest(series[0])];
      cursor.setAttribute("x1", x(first)); cursor.setAttribute("x2", x(first)); cursor.setAttribute("visibility", "visible");
      readout.textContent = `${short(first)}: ` + series.map((s) => `${s.name} ${short(s.y[nearest(s)])}`).join(", ");
    });
    svg.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); readout.textContent = ""; });
    plot.replaceChildren(svg);
  });
}

function data() {
  return JSON.parse(document.getElementById("data").textContent);
}

function floats(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Float64Array(bytes.buffer);
}
