"use strict";
// Single accesses to the KV cache: a line an event, blocks stacked by request or by number.

const KINDS = ["K read", "V read", "K write", "V write"];
const ALL = "all";
const PALE = 0.45; // V beside K
const MICROSECONDS = 1e-3;
const MILLISECONDS = 1e-6;
const PART_GAP = 0.04; // between two passes, of the time of all
const MOST_DRAWN = 20000; // events at a time
const MOST_BLOCK_TICKS = 40;
const MOST_PASS_TICKS = 14;
const accessElements = [...document.querySelectorAll("script.access-data")];
const accessParsed = new Map();

// Parsed when first shown, with each event's start and the blocks of each request.
function accessOf(id) {
  if (accessParsed.has(id)) return accessParsed.get(id);
  const found = JSON.parse(accessElements.find((one) => one.dataset.id === id).textContent);
  found.blocks = found.requests.map(() => 0);
  for (const part of found.parts) {
    let now = 0;
    part.from_ns = part.after_ns.map((after) => (now += after));
    part.length_ns = part.from_ns.reduce((end, from, i) => Math.max(end, from + part.duration_ns[i]), 0);
    part.request.forEach((request, i) => (found.blocks[request] = Math.max(found.blocks[request] ?? 0, part.block_position[i] + 1)));
  }
  accessParsed.set(id, found);
  return found;
}

function byNumber(names) {
  return names.map((_, i) => i).sort((one, other) => names[one].localeCompare(names[other], "en", { numeric: true }));
}

// Where the first block of each shown request stands.
function stackOf(access, requests) {
  const first = new Map();
  const all = requests.reduce((sum, request) => sum + access.blocks[request], 0);
  let next = 0;
  for (const request of requests) {
    first.set(request, next);
    next += access.blocks[request] + Math.max(1, 0.03 * all);
  }
  return first;
}

// What is chosen: parts in a row, each with its place on the x axis in µs; as many as can be drawn.
function chosenParts(access, pass, layer) {
  const chosen = access.parts.filter((part) => part.layer === layer && (pass === ALL || part.step === Number(pass)));
  let events = 0;
  const parts = chosen.filter((part, i) => (events += part.kind.length) <= MOST_DRAWN || i === 0);
  const gap = PART_GAP * parts.reduce((sum, part) => sum + part.length_ns, 0);
  let at = 0;
  const placed = parts.map((part) => {
    const place = at;
    at += part.length_ns + gap;
    return { part, place };
  });
  return { parts: placed, left_out: chosen.length - parts.length };
}

function accessText(access, part, i) {
  const tokens = part.offset_tokens[i] ? `tokens ${part.offset_tokens[i]} to ${part.offset_tokens[i] + part.tokens[i] - 1}` : `${part.tokens[i]} tokens`;
  const head = part.kv_head[i] < 0 ? "all heads" : `head ${part.kv_head[i]}`;
  const start = (part.start_ns + part.from_ns[i]) * MILLISECONDS;
  return `<b>${KINDS[part.kind[i]]}</b>, layer ${part.layer}, ${head}<br>request ${escapeText(access.requests[part.request[i]])}, block ${part.block_position[i]} of it (number ${part.block[i]})<br>${tokens}<br>pass ${part.step}, at ${start.toFixed(4)} ms, for ${part.duration_ns[i].toLocaleString("en")} ns<br>worker ${part.worker[i]}`;
}

// Within a block's height: K above V, and the heads of each one above the other.
function lane(access, part, i) {
  const heads = Math.max(1, access.heads.length);
  const head = part.kv_head[i] < 0 ? (heads - 1) / 2 : access.heads.indexOf(part.kv_head[i]);
  return 0.95 - (0.9 * ((part.kind[i] % 2) * heads + head + 0.5)) / (2 * heads);
}

// A line a request, K or V, reads or writes: its events one after the other, with gaps between.
function accessTraces(access, { parts, requests, physical }) {
  const first = stackOf(access, requests);
  const traces = new Map();
  for (const { part, place } of parts) {
    part.request.forEach((request, i) => {
      if (!first.has(request)) return;
      const key = `${request} ${part.kind[i]}`;
      if (!traces.has(key)) traces.set(key, accessTrace(access, request, part.kind[i]));
      const trace = traces.get(key);
      const from = (place + part.from_ns[i]) * MICROSECONDS;
      const to = from + part.duration_ns[i] * MICROSECONDS;
      const y = (physical ? part.block[i] : first.get(request) + part.block_position[i]) + lane(access, part, i);
      const text = accessText(access, part, i);
      trace.x.push(from, (from + to) / 2, to, null);
      trace.y.push(y, y, y, null);
      trace.text.push(text, text, text, "");
    });
  }
  const ordered = [...traces.values()].sort((one, other) => one.order - other.order);
  const named = new Set();
  for (const trace of ordered) {
    trace.showlegend = !named.has(trace.legendgroup);
    named.add(trace.legendgroup);
  }
  return ordered;
}

function accessTrace(access, request, kind) {
  const isV = kind % 2 === 1;
  const line = { color: colour(request), width: kind > 1 ? 4 : 2, simplify: false };
  return {
    type: "scatter", mode: "lines", name: escapeText(`request ${access.requests[request]}`), legendgroup: String(request),
    x: [], y: [], text: [], line, opacity: isV ? PALE : 1, hovertemplate: "%{text}<extra></extra>", order: 4 * request + kind,
  };
}

// A step of about a sixth of what is seen: 1, 2 or 5 times a power of ten.
function niceStep(span) {
  const power = 10 ** Math.floor(Math.log10(span / 6));
  return power * [1, 2, 5, 10].find((times) => times * power >= span / 6);
}

// Passes in a row: where each begins, and time since then as far as it lasts.
function passTicks(parts, [low, high]) {
  const step = niceStep(high - low);
  const ticks = parts.flatMap(({ part, place }) => {
    const count = Math.floor((part.length_ns * MICROSECONDS) / step);
    return Array.from({ length: count + 1 }, (_, i) => ({
      at: place * MICROSECONDS + i * step,
      text: i ? `+${readable(i * step)} µs` : `pass ${part.step}<br>${(part.start_ns * MILLISECONDS).toFixed(3)} ms`,
    }));
  });
  return asTicks(spaced(ticks.filter(({ at }) => at >= low), (high - low) / MOST_PASS_TICKS), low, high);
}

// Without those ticks that would overlap the one before.
function spaced(ticks, apart) {
  const kept = [];
  for (const tick of ticks) {
    if (!kept.length || tick.at - kept[kept.length - 1].at > apart) kept.push(tick);
  }
  return kept;
}

// Requests; of few blocks each one of them.
function blockTicks(access, requests, [low, high]) {
  const first = stackOf(access, requests);
  const name = (request) => `request ${escapeText(access.requests[request])}`;
  const few = high - low < MOST_BLOCK_TICKS;
  const ticks = requests.flatMap((request) => {
    const blocks = access.blocks[request];
    if (!few) return [{ at: first.get(request) + blocks / 2, text: `${name(request)}<br>${blocks} blocks` }];
    return Array.from({ length: blocks }, (_, i) => ({ at: first.get(request) + i + 0.5, text: `${name(request)}, block ${i}` }));
  });
  return asTicks(ticks, low, high);
}

function asTicks(ticks, low, high) {
  const seen = ticks.filter(({ at }) => at >= low && at <= high);
  return { tickvals: seen.map(({ at }) => at), ticktext: seen.map(({ text }) => text) };
}

function accessLayout(access, { parts, requests, single, physical }) {
  const { axis, layout } = theme();
  const first = stackOf(access, requests);
  const last = parts[parts.length - 1];
  const end = (last.place + last.part.length_ns) * MICROSECONDS;
  const [xrange, yrange] = [[-0.01 * end, 1.01 * end], physical ? undefined : [-1, Math.max(...requests.map((request) => first.get(request) + access.blocks[request])) + 1]];
  const title = single
    ? `time since the pass's first access in this layer (µs${access.clock})`
    : `time since the first access on this page (ms${access.clock}), cut between the passes`;
  return {
    ...layout,
    height: 740,
    hovermode: "closest",
    hoverdistance: 40,
    margin: { ...layout.margin, t: 16, b: 56 },
    legend: { orientation: "h", yref: "paper", x: 0, y: 1.01, xanchor: "left", yanchor: "bottom" },
    xaxis: { ...axis, zeroline: false, range: xrange, title: label(title), ...(single ? {} : passTicks(parts, xrange)) },
    yaxis: { ...axis, zeroline: false, showgrid: physical, range: yrange, title: label(physical ? "block of the KV cache (number)" : "blocks in the order of the request"), ...(physical ? {} : blockTicks(access, requests, yrange)) },
    shapes: single ? [] : parts.slice(1).map(({ place }) => cutMark(place * MICROSECONDS - (PART_GAP / 2) * end)),
  };
}

// After a zoom, ticks that suit what is seen.
function followZoom(plot, changed, access, { parts, requests, single, physical }) {
  if (!Object.keys(changed).some((key) => key.includes("range"))) return;
  const ticks = {};
  const put = (axis, { tickvals, ticktext }) => Object.assign(ticks, { [`${axis}.tickvals`]: tickvals, [`${axis}.ticktext`]: ticktext });
  if (!single) put("xaxis", passTicks(parts, plot.layout.xaxis.range));
  if (!physical) put("yaxis", blockTicks(access, requests, plot.layout.yaxis.range));
  if (Object.keys(ticks).length) Plotly.relayout(plot, ticks);
}

function cutMark(x) {
  return { type: "line", xref: "x", yref: "paper", x0: x, x1: x, y0: 0, y1: 1, line: { color: css("--line"), width: 1.5, dash: "dot" } };
}

function accessSummary(access, traces, left_out) {
  const shown = traces.reduce((sum, { x }) => sum + x.length / 4, 0);
  const texts = [`${shown.toLocaleString("en")} accesses drawn${left_out ? `, without the last ${left_out} passes, which can be chosen one by one` : ""}`];
  texts.push(`this page holds passes ${access.passes[0].step} to ${access.passes[access.passes.length - 1].step} (${access.passes.length} of ${access.passes_traced} traced) of repeat ${access.repeat} in ${access.layers.length} of ${access.layers_traced} layers`);
  if (access.cut) texts.push("of them only the first accesses, for there are too many");
  return `${texts.join("; ")}.`;
}

// Puts options into a select and keeps what was chosen, if it is there still.
function offer(id, options) {
  const select = document.getElementById(id);
  const kept = select.value;
  select.replaceChildren(...options.map(([text, value]) => new Option(text, value)));
  const values = options.map(([, value]) => String(value));
  select.value = values.includes(kept) ? kept : values[0];
  return select.value;
}

function drawAccesses() {
  const access = accessOf(document.getElementById("access-experiment").value);
  const order = byNumber(access.requests);
  const layer = Number(offer("access-layer", access.layers.map((one) => [one, one])));
  const inLayer = new Set(access.parts.filter((part) => part.layer === layer).map(({ step }) => step));
  const passes = access.passes.filter(({ step }) => inLayer.has(step));
  const pass = offer("access-pass", [["all, one after the other", ALL], ...passes.map(({ step, phase }) => [`${step} (${phase})`, step])]);
  const request = offer("access-request", [["all", ALL], ...order.map((one) => [access.requests[one], one])]);
  const physical = document.querySelector("input[name=access-y]:checked").value === "block";
  const { parts, left_out } = chosenParts(access, pass, layer);
  const requests = request === ALL ? order : [Number(request)];
  const view = { parts, requests, single: pass !== ALL, physical };
  const traces = accessTraces(access, view);
  document.getElementById("access-summary").textContent = accessSummary(access, traces, left_out);
  const plot = document.getElementById("access-plot");
  const buttons = [["toImage"], ["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]];
  Plotly.react(plot, traces, accessLayout(access, view), { ...CONFIG, scrollZoom: true, modeBarButtons: buttons });
  plot.removeAllListeners("plotly_relayout");
  plot.on("plotly_relayout", (changed) => followZoom(plot, changed, access, view));
}
