"use strict";
// The table of experiments: sorted by a click on a heading, filtered by words.

function sortKey(cell) {
  const given = cell.dataset.sort;
  if (given === undefined) return cell.textContent.trim();
  return given === "" ? null : Number(given);
}

function compare(one, other) {
  if (typeof one === "number" && typeof other === "number") return one - other;
  return String(one).localeCompare(String(other), "en", { numeric: true });
}

function sortTable(table, column) {
  const headings = [...table.tHead.rows[0].cells];
  const descending = headings[column].getAttribute("aria-sort") === "ascending";
  headings.forEach((heading) => heading.removeAttribute("aria-sort"));
  headings[column].setAttribute("aria-sort", descending ? "descending" : "ascending");
  const rows = [...table.tBodies[0].rows].map((row) => ({ row, key: sortKey(row.cells[column]) }));
  const [there, missing] = [rows.filter(({ key }) => key !== null), rows.filter(({ key }) => key === null)];
  there.sort((one, other) => (descending ? -1 : 1) * compare(one.key, other.key));
  table.tBodies[0].append(...[...there, ...missing].map(({ row }) => row)); // without a value: last
}

function filterTable(table, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const row of table.tBodies[0].rows) {
    const content = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => content.includes(word));
    shown += row.hidden ? 0 : 1;
  }
  return words.length ? `${shown} of ${table.tBodies[0].rows.length}` : "";
}

const table = document.getElementById("table");
[...table.tHead.rows[0].cells].forEach((heading, column) => heading.querySelector("button").addEventListener("click", () => sortTable(table, column)));
document.getElementById("filter")?.addEventListener("input", (event) => {
  document.getElementById("filtered").textContent = filterTable(table, event.target.value);
});
