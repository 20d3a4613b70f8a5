"use strict";
// A time window of a run: what its passes did between two instants, and the requests that ended then.

const MOST_SHOWN = 10;
const over = document.getElementById("window");

const sum = (values, [first, end]) => values.slice(first, end).reduce((all, one) => all + one, 0);
const asPercent = (share) => `${(100 * share).toFixed(1)} %`;
const inSeconds = (value) => value < 1 ? `${(1000 * value).toFixed(1)} ms` : `${value.toFixed(2)} s`;
const fixed = (value) => value.toFixed(1);

// The quantile of ascending values, interpolated between neighbours as docs/METRICS.md has it.
function quantile(values, share) {
  const place = share * (values.length - 1), below = Math.floor(place);
  return values[below] + (place - below) * ((values[below + 1] ?? values[below]) - values[below]);
}

function quantiles(values) {
  const known = values.filter((value) => value !== null).sort((a, b) => a - b);
  return known.length ? `median ${inSeconds(quantile(known, 0.5))}, p99 ${inSeconds(quantile(known, 0.99))}` : "–";
}

// The places of the requests that ended in these bins; the last bin has those that ended with it.
function ended(run, [first, end]) {
  const bin = (time) => Math.min(Math.floor(time / run.bin_s), run.bins.passes.length - 1);
  return run.requests.finished.flatMap((time, place) => time !== null && bin(time) >= first && bin(time) < end ? [place] : []);
}

function facts(run, span, places) {
  const { bins, requests } = run;
  const passes = sum(bins.passes, span), seconds = sum(bins.seconds, span), window_s = (span[1] - span[0]) * run.bin_s;
  const mean = (name) => seconds ? sum(bins[name], span) / seconds : 0;
  const aPass = (name) => passes ? sum(bins[name], span) / passes : 0;
  const hits = sum(bins.hits, span), prompts = hits + sum(bins.prefill, span);
  const served = places.filter((place) => !requests.aborted[place]);
  const since = (name) => served.map((place) => requests[name][place] === null ? null : requests[name][place] - requests.arrival[place]);
  const preemptions = sum(bins.preemptions, span);
  return [
    ["KV cache utilization", `${asPercent(mean("used") / run.blocks)}, peak ${asPercent(Math.max(0, ...bins.peak.slice(...span)) / run.blocks)}`],
    ["Batch", `${fixed(mean("running"))} requests, ${fixed(mean("waiting"))} waiting`],
    ["Tokens of a pass", `${fixed(aPass("prefill"))} prefill, ${fixed(aPass("decode"))} decode; ${fixed(aPass("recomputed"))} recomputed`],
    ["Forward passes", `${passes}, ${fixed(sum(bins.sampled, span) / window_s)} output tokens/s`],
    ["Preemptions", `${preemptions}, ${fixed(60 * preemptions / window_s)} a minute`],
    ...(requests.hits.some((one) => one !== null) ? [["Prefix cache hits", prompts ? `${asPercent(hits / prompts)} of ${prompts} prompt tokens` : "–"]] : []),
    ["Requests that ended", `${places.length}${served.length < places.length ? `, ${places.length - served.length} aborted` : ""}`],
    ["Time to first token", quantiles(since("first_token"))],
    ["Latency", quantiles(since("finished"))],
  ];
}

// Of the requests that ended in the window, those with most of what is asked: `latency` or a key of requests.
function costliest(run, places, by) {
  const { requests } = run;
  const took = (place) => requests.finished[place] - requests.arrival[place];
  const cost = (place) => by === "latency" ? took(place) : requests[by][place] ?? 0;
  const known = (value, told = String) => value === null ? "–" : told(value);
  const columns = [
    ["arrival", "Arrival", (place) => inSeconds(requests.arrival[place])],
    ["latency", "Latency", (place) => inSeconds(took(place)) + (requests.aborted[place] ? ", aborted" : "")],
    ["first_token", "TTFT", (place) => known(requests.first_token[place], (time) => inSeconds(time - requests.arrival[place]))],
    ["queued", "Queued", (place) => known(requests.queued[place], inSeconds)],
    ["preemptions", "Preemptions", (place) => requests.preemptions[place]],
    ["recomputed", "Recomputed tokens", (place) => requests.recomputed[place]],
    ["prompt", "Prompt tokens", (place) => requests.prompt[place]],
    ["hits", "Hit tokens", (place) => known(requests.hits[place])],
    ["output", "Output tokens", (place) => requests.output[place]],
  ].sort(([one], [other]) => (other === by) - (one === by)); // what is asked first: a narrow page shows that
  const shown = [...places].sort((a, b) => cost(b) - cost(a) || took(b) - took(a)).slice(0, MOST_SHOWN);
  const head = made("tr", [made("th", "Request"), ...columns.map(([, name]) => made("th", name, { className: "number" }))]);
  const rows = shown.map((one) => made("tr", [
    made("th", requests.id[one]),
    ...columns.map(([, , of]) => made("td", String(of(one)), { className: "number" })),
  ]));
  return made("div", made("table", [made("thead", head), made("tbody", rows)]), { className: "scroll", tabIndex: 0 });
}

// Utilization over time, and a stroke at each bin with preemptions; the window is lit.
// Markup of numbers alone, as elements of SVG would need the address of its namespace.
function strip({ bins, blocks }, [first, end]) {
  const count = bins.passes.length;
  const height = (place) => bins.seconds[place] ? 100 * bins.used[place] / bins.seconds[place] / blocks : 0;
  const columns = bins.passes.map((_, place) => `<rect x="${place}" width="1" y="${100 - height(place)}" height="${height(place)}"/>`);
  const strokes = bins.preemptions.map((found, place) => found ? `<line class="lost" x1="${place + 0.5}" x2="${place + 0.5}" y1="0" y2="10"/>` : "");
  return `<svg viewBox="0 0 ${count} 100" preserveAspectRatio="none" role="img" aria-label="KV cache utilization over time, with the window">
    <rect class="lit" x="${first}" width="${end - first}" y="0" height="100"/>${columns.join("")}${strokes.join("")}</svg>`;
}

// Calls `choose` with the first and the last edge of the bins over which a pointer is dragged.
function dragged(element, count, choose) {
  const bin = ({ clientX }) => {
    const { left, width } = element.getBoundingClientRect();
    return Math.min(Math.max(Math.floor(count * (clientX - left) / width), 0), count - 1);
  };
  let begun = null;
  element.onpointerdown = (event) => {
    begun = bin(event);
    element.setPointerCapture(event.pointerId);
  };
  element.onpointermove = (event) => {
    if (begun !== null) choose(Math.min(begun, bin(event)), Math.max(begun, bin(event)) + 1);
  };
  element.onpointerup = () => { begun = null; };
}

function showWindow(run) {
  const count = run.bins.passes.length;
  const [from, to] = over.querySelectorAll("input");
  const by = over.querySelector(".cost");
  const stored = (key, otherwise) => state.get(key) ? Math.round(Number(state.get(key)) / run.bin_s) : otherwise;
  const place = (value) => Math.min(Math.max(value || 0, 0), count);
  for (const input of [from, to]) input.max = count;
  from.value = Math.min(place(stored("from", 0)), count - 1);
  to.value = Math.max(place(stored("to", count)), Number(from.value) + 1);
  const show = () => {
    const span = [Number(from.value), Number(to.value)];
    const places = ended(run, span);
    const words = span.map((edge) => `${(edge * run.bin_s).toFixed(2)} s`);
    [from, to].forEach((input, edge) => { input.nextElementSibling.textContent = words[edge]; });
    over.querySelector(".strip").innerHTML = strip(run, span);
    over.querySelector(".of-window").replaceChildren(
      made("dl", facts(run, span, places).map(([name, value]) => made("div", [made("dt", name), made("dd", value)])), { className: "facts" }),
      made("h3", "The costliest of its requests"),
      places.length ? costliest(run, places, by.value) : made("p", "No request ended in this window."),
      ...(run.left_out ? [made("p", `${run.left_out} requests that ended before these are not in the page.`, { className: "note" })] : []),
    );
  };
  const moved = (input) => () => {
    if (input === from) from.value = Math.min(Number(from.value), Number(to.value) - 1);
    else to.value = Math.max(Number(to.value), Number(from.value) + 1);
    remember("from", Number(from.value) ? String((from.value * run.bin_s).toFixed(3)) : "");
    remember("to", Number(to.value) < count ? String((to.value * run.bin_s).toFixed(3)) : "");
    show();
  };
  for (const input of [from, to]) input.oninput = moved(input);
  by.onchange = () => {
    remember("cost", by.value === "latency" ? "" : by.value);
    show();
  };
  dragged(over.querySelector(".strip"), count, (first, end) => {
    [from.value, to.value] = [first, end];
    moved(to)();
    moved(from)();
  });
  show();
}

async function showWindows() {
  const runs = JSON.parse(await unpack(document.getElementById("windows")));
  const select = over.querySelector("select");
  select.replaceChildren(...runs.map(({ id, label }) => new Option(label, id)));
  select.parentElement.hidden = runs.length < 2;
  if (runs.some(({ id }) => id === state.get("window"))) select.value = state.get("window");
  const by = over.querySelector(".cost");
  if ([...by.options].some(({ value }) => value === state.get("cost"))) by.value = state.get("cost");
  const chosen = () => runs.find(({ id }) => id === select.value);
  select.addEventListener("change", () => {
    for (const key of ["from", "to"]) remember(key, "");
    remember("window", select.value);
    showWindow(chosen());
  });
  showWindow(chosen());
}

if (over) showWindows();
