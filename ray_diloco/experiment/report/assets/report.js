"use strict";

const figures = JSON.parse(document.getElementById("figures").textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const printing = window.matchMedia("print");

function shade(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function axisNames(layout) {
  return Object.keys(layout).filter((name) => /^[xy]axis\d*$/.test(name));
}

function colours(layout) {
  const changes = { "font.color": shade("--text"), "hoverlabel.bgcolor": shade("--panel"),
                    "hoverlabel.font.color": shade("--text"), "modebar.bgcolor": "rgba(0,0,0,0)",
                    "modebar.color": shade("--quiet"), "modebar.activecolor": shade("--text") };
  for (const name of axisNames(layout)) {
    changes[name + ".gridcolor"] = shade("--line");
    changes[name + ".linecolor"] = shade("--line");
    changes[name + ".zerolinecolor"] = shade("--line");
  }
  return changes;
}

async function loadPlotly() {
  const packed = atob(document.getElementById("plotly").textContent);
  const bytes = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
  const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const script = document.createElement("script");
  script.textContent = await new Response(unpacked).text();
  document.head.append(script);
}

/* Where nothing can hover, the buttons would lie over the figure for good. */
const tools = {
  responsive: true,
  displaylogo: false,
  displayModeBar: window.matchMedia("(hover: hover)").matches ? "hover" : false,
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
};

async function draw() {
  for (const [name, figure] of Object.entries(figures)) {
    const place = document.getElementById(name);
    const layout = Object.assign({ font: { family: "system-ui, sans-serif", size: 13 } }, figure.layout);
    await Plotly.newPlot(place, figure.data, layout, tools);
  }
  recolour();
}

function recolour() {
  for (const [name, figure] of Object.entries(figures)) {
    Plotly.relayout(name, colours(figure.layout));
  }
}

function drawOver(axis) {
  for (const [name, figure] of Object.entries(figures)) {
    const chosen = figure.axes && figure.axes[axis];
    if (chosen) {
      Plotly.update(name, { x: chosen.xs },
                    { "xaxis.title.text": chosen.title, "xaxis.autorange": true, "yaxis.autorange": true });
    }
  }
}

/* The choice outlives the reload of a page that is watched; a page in a file may have no storage. */
function remembered(key, value) {
  try {
    if (value !== undefined) sessionStorage.setItem(key, value);
    return sessionStorage.getItem(key);
  } catch {
    return null;
  }
}

function listenToSwitch() {
  const choices = [...document.querySelectorAll("input[name=axis]")];
  const earlier = choices.find((each) => each.value === remembered("axis"));
  for (const each of choices) {
    each.addEventListener("change", () => { remembered("axis", each.value); drawOver(each.value); });
  }
  if (earlier && !earlier.checked) {
    earlier.checked = true;
    drawOver(earlier.value);
  }
}

function sortValue(row, column) {
  const cell = row.cells[column];
  return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
}

/* Numbers by size before text by letters; what is missing comes last either way. */
function compare(a, b, sign) {
  const missing = (value) => value === "–" || Number.isNaN(value);
  if (missing(a) || missing(b)) return missing(a) - missing(b);
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return sign * (typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true }));
}

function sortBy(table, heading) {
  const ascending = heading.getAttribute("aria-sort") !== "ascending";
  for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  const column = heading.cellIndex;
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => compare(sortValue(a, column), sortValue(b, column), ascending ? 1 : -1));
  table.tBodies[0].append(...rows);
}

function addFilter(table) {
  if (table.tBodies[0].rows.length < 6) return;
  const label = document.createElement("label");
  label.className = "filter";
  const field = document.createElement("input");
  field.type = "search";
  field.placeholder = "Show only rows with these words";
  field.setAttribute("aria-label", "Show only rows with these words");
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of table.tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  });
  label.append(field);
  table.parentElement.before(label);
}

function listenToTables() {
  for (const table of document.querySelectorAll("table.sorts")) {
    addFilter(table);
    for (const button of table.querySelectorAll("th button")) {
      button.addEventListener("click", () => sortBy(table, button.closest("th")));
    }
  }
}

function keepPlace() {
  const before = remembered("scroll");
  if (document.querySelector("meta[http-equiv=refresh]") && before) window.scrollTo(0, Number(before));
  window.addEventListener("pagehide", () => remembered("scroll", String(window.scrollY)));
}

async function start() {
  listenToTables();
  if (Object.keys(figures).length > 0) {
    await loadPlotly();
    await draw();
    listenToSwitch();
    dark.addEventListener("change", recolour);
    printing.addEventListener("change", recolour);
  }
  keepPlace();
  document.body.dataset.height = String(document.documentElement.scrollHeight);
  document.body.dataset.drawn = "true";
}

start();
