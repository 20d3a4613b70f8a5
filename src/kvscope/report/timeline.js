"use strict";
// One experiment's forward passes, one repeat at a time, all rows over one x axis.

const SECONDS = 1e-6;
const IDLE_US = 10000; // a longer gap between passes: the engine had nothing to do
const ELSEWHERE = { rangemode: "fixed", range: [1e9, 2e9] }; // keeps a row out of the strip
const timelineElements = [...document.querySelectorAll("script.timeline-data")];
const timelineParsed = new Map();

// Parsed when first shown: a page holds many.
function timelineOf(id) {
  if (!timelineParsed.has(id)) {
    const element = timelineElements.find((one) => one.dataset.id === id);
    timelineParsed.set(id, JSON.parse(element.textContent));
  }
  return timelineParsed.get(id);
}

// Where each pass begins on the x axis; time mode adds a drop to zero where nothing ran.
function stairs(repeat, byTime) {
  const x = [];
  const rows = [];
  repeat.step.forEach((step, row) => {
    x.push(byTime ? repeat.start_us[row] * SECONDS : step);
    rows.push(row);
    const next = repeat.start_us[row + 1];
    if (byTime && next - repeat.end_us[row] > IDLE_US) {
      x.push(repeat.end_us[row] * SECONDS);
      rows.push(-1);
    }
  });
  const last = repeat.step.length - 1;
  x.push(byTime ? repeat.end_us[last] * SECONDS : repeat.step[last] + repeat.merged);
  rows.push(last);
  return { x, rows };
}

function passText(repeat, row) {
  if (row < 0) return "idle";
  const duration = (repeat.end_us[row] - repeat.start_us[row]) / 1000;
  const name = repeat.merged > 1 ? `passes ${repeat.step[row]} to ${repeat.step[row] + repeat.merged - 1}` : `pass ${repeat.step[row]}`;
  return `${name}, ${duration.toFixed(2)} ms`;
}

function timelineTraces(timeline, repeat, byTime) {
  const { x, rows } = stairs(repeat, byTime);
  const of = (column) => rows.map((row) => (row < 0 ? 0 : repeat[column][row]));
  const decode = of("decode");
  const prefill = of("prefill");
  const slots = repeat.blocks_total * timeline.block_size;
  const percent = (values, whole) => values.map((value) => (100 * value) / whole);
  const step = (name, y, yaxis, color, more) => ({
    type: "scatter", mode: "lines", name, x, y, xaxis: "x", yaxis,
    line: { shape: "hv", color, width: 1.4 }, ...more,
  });
  const c = study.colours;
  return [
    step("pass", of("step").fill(0), "y", "rgba(0,0,0,0)", {
      showlegend: false, customdata: rows.map((row) => passText(repeat, row)), hovertemplate: "%{customdata}<extra></extra>",
    }),
    step("decode", decode, "y", c.decode, {
      fill: "tozeroy", fillcolor: c.decode, line: { shape: "hv", color: c.decode, width: 0 },
      hovertemplate: "%{y:,} tokens<extra>decode</extra>",
    }),
    step("prefill", decode.map((tokens, i) => tokens + prefill[i]), "y", c.prefill, {
      fill: "tonexty", fillcolor: c.prefill, line: { shape: "hv", color: c.prefill, width: 0 },
      customdata: prefill, hovertemplate: "%{customdata:,} tokens<extra>prefill</extra>",
    }),
    ...eventTraces(repeat, byTime),
    step("running", of("requests"), "y3", c.running, { hovertemplate: "%{y} requests<extra>in the batch</extra>" }),
    step("waiting", of("waiting"), "y3", c.waiting, { hovertemplate: "%{y} requests<extra>waiting</extra>" }),
    step("blocks in use", percent(of("blocks"), repeat.blocks_total), "y4", c.blocks, {
      customdata: of("blocks"), hovertemplate: `%{customdata:,} of ${repeat.blocks_total.toLocaleString("en")} blocks (%{y:.1f} %)<extra></extra>`,
    }),
    step("tokens held", percent(of("tokens"), slots), "y4", c.tokens, {
      customdata: of("tokens"), hovertemplate: `%{customdata:,} of ${slots.toLocaleString("en")} tokens (%{y:.1f} %)<extra></extra>`,
    }),
    ...(repeat.host_total ? [step("host pool in use", percent(of("host"), repeat.host_total), "y4", c.host, {
      customdata: of("host"), hovertemplate: `%{customdata:,} of ${repeat.host_total.toLocaleString("en")} blocks of the host pool (%{y:.1f} %)<extra></extra>`,
    })] : []),
  ];
}

// Preemptions and resumptions by pass, and stalled passes, each on a line of its own.
function eventTraces(repeat, byTime) {
  const place = (row) => (byTime ? repeat.start_us[row] * SECONDS : repeat.step[row]);
  const rowOf = (step) => Math.min(repeat.step.length - 1, Math.floor(step / repeat.merged));
  const byPass = (events, tell) => {
    const rows = new Map();
    for (const event of events) {
      const row = rowOf(event[0]);
      if (!rows.has(row)) rows.set(row, []);
      rows.get(row).push(tell(event));
    }
    return [...rows];
  };
  const some = (lines) => (lines.length > 6 ? [...lines.slice(0, 5), `and ${lines.length - 5} more`] : lines).map(escapeText).join("<br>");
  const markers = (name, height, symbol, color, found) => ({
    type: "scatter", mode: "markers", name, showlegend: found.length > 0, xaxis: "x", yaxis: "y2", cliponaxis: false,
    // Without a point in it Plotly cannot lay out the row.
    x: found.length ? found.map(([row]) => place(row)) : [place(0)], y: found.length ? found.map(() => height) : [null],
    marker: { symbol, color, size: 9, line: { width: 0 } },
    text: found.map(([, lines]) => some(lines)), hovertemplate: "%{text}<extra></extra>",
  });
  const c = study.colours;
  return [
    markers("preempted", 2, "triangle-down", c.preempted, byPass(repeat.preempted, ([, request, words]) => `request ${request} preempted, ${words}`)),
    markers("resumed", 1, "triangle-up", c.resumed, byPass(repeat.resumed, ([, request, words]) => `request ${request} resumed, ${words}`)),
    markers("stalled", 0, "x", c.stalled, repeat.stalled.map((row) => [row, [`stalled: ${passText(repeat, row)}`]])),
  ];
}

function timelineLayout(timeline, repeat, byTime) {
  const { axis, layout } = theme();
  const last = repeat.step.length - 1;
  const range = byTime ? [0, repeat.end_us[last] * SECONDS] : [0, repeat.step[last] + repeat.merged];
  const title = (text) => ({ text, standoff: 6, font: { size: 12 } });
  const row = (from, to, text, more) => ({ ...axis, domain: [from, to], anchor: "x", title: title(text), fixedrange: true, rangemode: "tozero", zeroline: false, ...more });
  return {
    ...layout,
    height: 740,
    hovermode: "x unified",
    hoversubplots: "axis",
    margin: { ...layout.margin, t: 16, b: 30 },
    legend: { orientation: "h", yref: "paper", x: 0, y: 1.01, xanchor: "left", yanchor: "bottom", traceorder: "normal" },
    xaxis: {
      ...axis, anchor: "y4", range, hoverformat: byTime ? ".4f" : "d", unifiedhovertitle: { text: byTime ? "%{x:.4f} s" : "%{x:.0f}" }, showspikes: true, spikemode: "across", spikethickness: 1, spikedash: "solid", spikecolor: css("--quiet"),
      zeroline: false, title: title(byTime ? "time since the start of the repeat (s)" : "forward pass (step)"),
      rangeslider: { visible: true, range, thickness: 0.07, bgcolor: css("--raised"), borderwidth: 0, yaxis2: ELSEWHERE, yaxis3: ELSEWHERE, yaxis4: { rangemode: "match" } },
    },
    yaxis: row(0.68, 1, repeat.merged > 1 ? "tokens a pass, mean" : "tokens in the pass"),
    yaxis2: row(0.575, 0.655, "", { range: [-0.6, 2.6], tickvals: [0, 1, 2], ticktext: ["stalled", "resumed", "preempted"], rangemode: "normal", showgrid: true }),
    yaxis3: row(0.31, 0.54, "requests"),
    yaxis4: row(0, 0.275, repeat.host_total ? "share in use (%)" : "share of the cache (%)", { range: [0, 106], rangemode: "normal" }),
    shapes: [{ type: "line", xref: "paper", yref: "y4", x0: 0, x1: 1, y0: 100, y1: 100, line: { color: css("--quiet"), width: 1, dash: "dot" } }],
    annotations: [
      ...layout.annotations,
      { text: `capacity: ${repeat.blocks_total.toLocaleString("en")} blocks, ${(repeat.blocks_total * timeline.block_size).toLocaleString("en")} tokens${repeat.host_total ? `; host pool: ${repeat.host_total.toLocaleString("en")} blocks` : ""}`, xref: "paper", x: 1, xanchor: "right", yref: "y4", y: 100, yanchor: "bottom", showarrow: false, font: { size: 11, color: css("--quiet") } },
    ],
  };
}

function timelineSummary(repeat) {
  const last = repeat.end_us.length - 1;
  const parts = [
    `${repeat.passes.toLocaleString("en")} passes in ${(repeat.end_us[last] * SECONDS).toFixed(2)} s`,
    `${repeat.preemptions} preemptions`,
    `${repeat.resumptions} resumptions`,
    `${repeat.stalled_passes} stalled passes`,
  ];
  if (repeat.merged > 1) parts.push(`drawn ${repeat.merged} passes at a time`);
  const kept = repeat.preempted.length + repeat.resumed.length;
  if (kept < repeat.preemptions + repeat.resumptions) parts.push(`markers for the first ${kept.toLocaleString("en")} preemptions and resumptions`);
  return `${parts.join(", ")}.`;
}

function drawTimeline() {
  const timeline = timelineOf(document.getElementById("timeline-experiment").value);
  const chosen = document.getElementById("timeline-repeat");
  const kept = chosen.value;
  chosen.replaceChildren(...timeline.repeats.map((repeat, i) => new Option(repeat.repeat, i)));
  chosen.value = kept && Number(kept) < timeline.repeats.length ? kept : 0;
  const repeat = timeline.repeats[Number(chosen.value)];
  const byTime = document.querySelector("input[name=timeline-x]:checked").value === "time";
  document.getElementById("timeline-summary").textContent = timelineSummary(repeat);
  Plotly.react(
    document.getElementById("timeline-plot"),
    timelineTraces(timeline, repeat, byTime),
    timelineLayout(timeline, repeat, byTime),
    { ...CONFIG, modeBarButtons: [["toImage"], ["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]] },
  );
}
