"use strict";
// The table of experiments: sorted by a heading, filtered by words, its columns chosen, its numbers
// compared with those of one experiment.

const table = document.getElementById("table");
const headings = [...table.tHead.rows[0].cells];
const rows = () => [...table.tBodies[0].rows];

function sortKey(cell) {
  const given = cell.dataset.sort;
  if (given === undefined) return cell.textContent.trim();
  return given === "" ? null : Number(given);
}

function compare(one, other) {
  if (typeof one === "number" && typeof other === "number") return one - other;
  return String(one).localeCompare(String(other), "en", { numeric: true });
}

function sortTable(column, descending) {
  headings.forEach((heading) => heading.removeAttribute("aria-sort"));
  headings[column].setAttribute("aria-sort", descending ? "descending" : "ascending");
  const keyed = rows().map((row) => ({ row, key: sortKey(row.cells[column]) }));
  const [there, missing] = [keyed.filter(({ key }) => key !== null), keyed.filter(({ key }) => key === null)];
  there.sort((one, other) => (descending ? -1 : 1) * compare(one.key, other.key));
  table.tBodies[0].append(...[...there, ...missing].map(({ row }) => row)); // without a value: last
}

function filterTable(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of rows()) {
    const content = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => content.includes(word));
  }
  const shown = rows().filter((row) => !row.hidden).length;
  document.getElementById("filtered").textContent = words.length ? `${shown} of ${rows().length}` : "";
}

function showColumn(column, shown) {
  headings[column].hidden = !shown;
  for (const row of rows()) row.cells[column].hidden = !shown;
}

function percent(change) {
  return change < 10 ? change.toFixed(1) : Math.round(change).toLocaleString("en");
}

// By column after the first two, experiment and base: a difference in percent between the ends of its
// interval.
const differences = JSON.parse(document.getElementById("differences").textContent);

// 1 if the interval is above 0, -1 if it is below, 0 otherwise; it may have no upper end.
function sign([low, , high]) {
  return (low > 0) - (high !== null && high < 0);
}

function words([low, change, high]) {
  const half = high !== null && low < high ? ` ± ${percent((high - low) / 2)}` : "";
  return `${change < 0 ? "−" : "+"}${percent(Math.abs(change))}${half} %`;
}

function compareWith(id) {
  const base = document.getElementById(`row-${id}`);
  for (const old of table.querySelectorAll(".delta")) old.remove();
  for (const row of rows()) {
    row.classList.toggle("base", row === base);
    if (!base || row === base) continue;
    if (("rehearsed" in row.dataset) !== ("rehearsed" in base.dataset)) continue; // of two kinds
    headings.forEach((heading, column) => {
      const [cell, other] = [row.cells[column], base.cells[column]];
      if (!heading.querySelector("small") || !Number(other.dataset.sort) || !cell.dataset.sort) return;
      const change = (100 * (cell.dataset.sort - other.dataset.sort)) / Math.abs(other.dataset.sort);
      const known = differences[column - 2]?.[row.id.slice("row-".length)]?.[id] ?? [null, change, null];
      const delta = document.createElement("span");
      delta.className = `delta ${["worse", "", "better"][sign(known) * Number(heading.dataset.better) + 1]}`;
      delta.textContent = words(known);
      cell.append(delta);
    });
  }
}

headings.forEach((heading, column) => heading.querySelector("button").addEventListener("click", () => {
  const descending = heading.getAttribute("aria-sort") === "ascending";
  sortTable(column, descending);
  remember("sort", `${column}${descending ? "d" : ""}`);
}));
const sorted = state.get("sort")?.match(/^(\d+)(d?)$/);
if (sorted && headings[sorted[1]]) sortTable(Number(sorted[1]), Boolean(sorted[2]));

const filter = document.getElementById("filter");
filter?.addEventListener("input", () => {
  filterTable(filter.value);
  remember("filter", filter.value);
});
if (filter && state.get("filter")) filterTable((filter.value = state.get("filter")));

const boxes = [...document.querySelectorAll(".columns input")];
const columnsShown = () => boxes.filter((box) => box.checked).map((box) => box.dataset.column).join(" ");
for (const box of boxes) {
  if (state.has("columns")) box.checked = state.get("columns").split(" ").includes(box.dataset.column);
  showColumn(box.dataset.column, box.checked);
  box.addEventListener("change", () => {
    showColumn(box.dataset.column, box.checked);
    remember("columns", columnsShown());
  });
}

const baseline = document.getElementById("baseline");
baseline?.addEventListener("change", () => {
  compareWith(baseline.value);
  remember("baseline", baseline.value || "none");
});
if (baseline) {
  const wanted = state.get("baseline");
  if (wanted && [...baseline.options].some(({ value }) => value === wanted)) baseline.value = wanted;
  if (wanted === "none") baseline.value = "";
  compareWith(baseline.value);
}

// A shade at the edge beyond which there is more.
const frame = table.parentElement;
const shade = () => frame.classList.toggle("more", frame.scrollLeft + frame.clientWidth < frame.scrollWidth - 2);
frame.addEventListener("scroll", shade);
new ResizeObserver(shade).observe(table);
new ResizeObserver(shade).observe(frame);
