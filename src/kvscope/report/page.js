"use strict";
// Puts the parts together: what is drawn when it comes into view, and what controls change.

function choices() {
  const select = document.getElementById("arrangement");
  const views = Object.values(study.charts).flatMap((chart) => chart?.views ?? []);
  const titles = new Set(views.filter(({ places }) => places.length === 1).map(({ title }) => title));
  if (select) select.append(new Option("what suits each chart", ""), ...[...titles].map((title) => new Option(title, title)));
  const labels = new Map(study.experiments.map((one) => [one.id, one.label]));
  for (const [id, elements] of [["timeline-experiment", timelineElements], ["access-experiment", accessElements]]) {
    document.getElementById(id)?.append(...elements.map(({ dataset }) => new Option(labels.get(dataset.id), dataset.id)));
  }
}

// Draws an element when it comes near the screen, so that a long page opens at once.
const NEAR = 400;
const drawn = new Set();
const observer = new IntersectionObserver(
  (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => draw(entry.target)),
  { rootMargin: `${NEAR}px` },
);

function draw(element) {
  drawn.add(element);
  observer.unobserve(element);
  if (isTimeline(element)) drawTimeline();
  else if (isAccesses(element)) drawAccesses();
  else drawChart(element);
}

function redraw(wanted) {
  drawn.forEach((element) => wanted(element) && draw(element));
}

const isTimeline = (element) => element.id === "timeline-plot";
const isAccesses = (element) => element.id === "access-plot";

function follow() {
  const id = decodeURIComponent(location.hash.slice(1));
  const unfinished = id.startsWith("unfinished-") && document.getElementById(id);
  if (unfinished) unfinished.open = true;
  const experiments = document.getElementById("timeline-experiment");
  const wanted = id.startsWith("timeline-") && id.slice("timeline-".length);
  if (!experiments || !timelineElements.some(({ dataset }) => dataset.id === wanted)) return;
  experiments.value = wanted;
  redraw(isTimeline);
  const section = document.getElementById("timeline");
  section.scrollIntoView();
  // What is near gets its true height now, or it would push the section away when it is drawn.
  document.querySelectorAll(".chart").forEach((element) => {
    const { top, bottom } = element.getBoundingClientRect();
    if (!drawn.has(element) && bottom > -NEAR && top < innerHeight + NEAR) draw(element);
  });
  section.scrollIntoView();
}

function listen() {
  const on = (id, event, action) => document.getElementById(id)?.addEventListener(event, action);
  on("arrangement", "change", () => redraw((element) => study.charts[element.dataset.chart]?.panels));
  on("timeline-experiment", "change", () => redraw(isTimeline));
  on("timeline-repeat", "change", () => redraw(isTimeline));
  for (const [id, by] of [["timeline-previous", -1], ["timeline-next", 1]]) {
    on(id, "click", () => {
      const select = document.getElementById("timeline-experiment");
      select.selectedIndex = (select.selectedIndex + by + select.length) % select.length;
      redraw(isTimeline);
    });
  }
  for (const name of ["experiment", "pass", "layer", "request"]) on(`access-${name}`, "change", () => redraw(isAccesses));
  document.querySelectorAll("input[name=access-y]").forEach((one) => one.addEventListener("change", () => redraw(isAccesses)));
  document.querySelectorAll("input[name=timeline-x]").forEach((one) => one.addEventListener("change", () => redraw(isTimeline)));
  const table = document.getElementById("table");
  [...table.tHead.rows[0].cells].forEach((heading, column) => heading.querySelector("button").addEventListener("click", () => sortTable(table, column)));
  on("filter", "input", (event) => {
    document.getElementById("filtered").textContent = filterTable(table, event.target.value);
  });
  addEventListener("hashchange", follow);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw(() => true));
}

choices();
listen();
document.querySelectorAll(".chart").forEach((element) => observer.observe(element));
follow();
