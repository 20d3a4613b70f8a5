"use strict";
// The lives of requests: where the time of an experiment's requests went, its costliest losses, and its
// slowest requests, each of which opens by a click.

const COLOURS = {
  prefill: "#56b4e9",
  decode: "#009e73",
  "decode beside prefill": "#7fcfb3",
  paused: "#c9b400",
  "next pass": "#c3c9d1",
  "no room": "#d55e00",
  "pass preempts": "#f2a06b",
  "batch full": "#6b7684",
  "pass full": "#8c96a3",
  "not admitted": "#a9814b",
  "never fits": "#7a0f0f",
  "load queued": "#7db4dc",
  load: "#0072b2",
  "load noticed": "#b9cde0",
  "copy back": "#cc79a7",
  recompute: "#e69f00",
  "not known": "#e4e4e4",
};
const lives = document.getElementById("requests");

function made(tag, content = [], properties = {}) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...[content].flat());
  return element;
}

// The parts of a time beside each other, each as wide as its share.
function bar(parts) {
  const element = made("div", parts.map(([cause, share, took]) => {
    const part = made("span", [], { title: `${cause}: ${took}, ${(100 * share).toFixed(1)} %` });
    part.style.width = `${100 * share}%`;
    part.style.background = COLOURS[cause] ?? "currentcolor";
    return part;
  }), { className: "parts" });
  element.setAttribute("role", "img");
  element.setAttribute("aria-label", parts.map(([cause, , took]) => `${cause} ${took}`).join(", "));
  return element;
}

function line([begins, took, cause, sentence]) {
  const mark = made("i", [], { className: "mark" });
  mark.style.background = COLOURS[cause] ?? "transparent";
  return made("tr", [made("td", begins, { className: "number" }), made("td", took, { className: "number" }), made("td", [mark, sentence])]);
}

function life({ lines }) {
  const head = made("tr", [made("th", "from", { className: "number" }), made("th", "for", { className: "number" }), made("th", "what")]);
  return made("table", [made("thead", head), made("tbody", lines.map(line))], { className: "life" });
}

function request(run, one) {
  const told = made("button", one.id, { type: "button" });
  const row = made("tr", [made("th", told, { scope: "row" }), made("td", one.took + (one.aborted ? ", aborted" : ""), { className: "number" }), made("td", one.preemptions, { className: "number" }), made("td", bar(one.parts))]);
  const cell = made("td", [], { colSpan: 4 });
  const below = made("tr", cell, { hidden: true, className: "below" });
  told.setAttribute("aria-expanded", "false");
  const show = (shown) => {
    if (!cell.firstChild) cell.append(life(one));
    below.hidden = !shown;
    told.setAttribute("aria-expanded", String(shown));
  };
  row.addEventListener("click", () => {
    show(below.hidden);
    remember("request", below.hidden ? "" : one.id);
  });
  return { id: one.id, rows: [row, below], show };
}

function showRun(run) {
  const requests = run.requests.map((one) => request(run, one));
  const open = (id) => requests.find((each) => each.id === id)?.show(true);
  const loss = ([id, took, sentence]) => {
    const link = made("button", `request ${id}`, { type: "button", className: "link" });
    link.addEventListener("click", () => {
      open(id);
      remember("request", id);
      requests.find((each) => each.id === id).rows[0].scrollIntoView({ block: "center" });
    });
    return made("li", [made("strong", took), " ", link, `: ${sentence}`]);
  };
  const head = made("tr", [made("th", "Request"), made("th", "Latency", { className: "number" }), made("th", "Preemptions", { className: "number" }), made("th", "Spent on")]);
  const table = made("table", [made("thead", head), made("tbody", requests.flatMap(({ rows }) => rows))]);
  lives.querySelector(".lives").replaceChildren(
    made("p", `${run.summary}: ${[...run.parts].sort((one, other) => other[1] - one[1]).map(([cause, share]) => `${(100 * share).toFixed(1)} % ${cause}`).join(", ")}.`),
    bar(run.parts),
    ...run.losses.flatMap(([heading, losses]) => [made("h3", heading), made("ol", losses.map(loss), { className: "findings" })]),
    made("h3", "The slowest requests"),
    made("div", table, { className: "scroll", tabIndex: 0 }),
  );
  if (state.get("request")) open(state.get("request"));
}

async function showLives() {
  const { causes, runs } = JSON.parse(await unpack(document.getElementById("lives")));
  lives.querySelector(".causes").replaceChildren(...causes.flatMap(([cause, words]) => {
    const mark = made("i", [], { className: "mark" });
    mark.style.background = COLOURS[cause];
    return [made("dt", [mark, cause]), made("dd", words)];
  }));
  const select = lives.querySelector("select");
  select.replaceChildren(...runs.map(({ id, label }) => new Option(label, id)));
  if (runs.some(({ id }) => id === state.get("explained"))) select.value = state.get("explained");
  const chosen = () => runs.find(({ id }) => id === select.value);
  select.addEventListener("change", () => {
    remember("request", "");
    remember("explained", select.value);
    showRun(chosen());
  });
  showRun(chosen());
}

const livesShown = lives ? showLives() : null;
