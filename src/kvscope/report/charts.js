"use strict";
// Charts over experiments, and whatever ready-made Plotly figures the study brings along.

const study = JSON.parse(document.getElementById("study-data").textContent);

// A label for each experiment up to here; beyond, the pointer tells which one it is.
const MOST_LABELS = 40;
const DECADES = 30; // as in figures/panels.py
const CONFIG = {
  displaylogo: false, responsive: true, displayModeBar: "hover", modeBarButtons: [["toImage", "resetScale2d"]],
};
const DASHES = ["solid", "dash", "dot"];
const SYMBOLS = ["circle", "square", "triangle-up"];

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function theme() {
  const axis = { gridcolor: css("--grid"), zerolinecolor: css("--line"), linecolor: css("--line"), automargin: true };
  return {
    axis,
    layout: {
      font: { family: getComputedStyle(document.body).fontFamily, size: 12.5, color: css("--ink") },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 60, r: 16, t: 34, b: 48 },
      hoverlabel: { bgcolor: css("--paper"), bordercolor: css("--line"), font: { color: css("--ink") }, align: "left", namelength: -1 },
      legend: { orientation: "h", x: 0, xanchor: "left", yref: "container", y: 0, yanchor: "bottom" },
      hovermode: "closest",
      modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--quiet"), activecolor: css("--accent") },
      annotations: study.modeled ? [modeledLabel()] : [],
    },
  };
}

function modeledLabel() {
  return { text: "modeled, not measured", xref: "paper", yref: "paper", x: 1, y: 1, xanchor: "right", yanchor: "bottom", showarrow: false, font: { size: 11, color: css("--doubt") } };
}

function colour(number) {
  const chosen = study.palette[number % study.palette.length];
  return chosen === "#000000" ? css("--ink") : chosen;
}

function cycle(number) {
  return Math.floor(number / study.palette.length) % DASHES.length;
}

function readable(number) {
  if (number === null) return "–";
  return number.toLocaleString("en", { maximumSignificantDigits: Math.abs(number) < 1000 ? 4 : Math.ceil(Math.log10(Math.abs(number) + 1)) });
}

// One trace: a metric of a panel along a series. `count` traces share a tick.
function trace(shown, arrangement, series, number, count) {
  const metric = study.metrics[shown.metric];
  const points = series.points.filter(([, run]) => metric.value[run] !== null);
  const runs = points.map(([, run]) => study.experiments[run]);
  const values = points.map(([, run]) => metric.value[run] * shown.scale);
  const arm = (ends, sign) => points.map(([, run], i) => (ends[run] === null ? 0 : sign * (ends[run] * shown.scale - values[i])));
  const error = {
    type: "data", symmetric: false, array: arm(metric.high, 1), arrayminus: arm(metric.low, -1),
    thickness: 1.2, width: 3, color: arrangement.ordered ? colour(number) : css("--ink"),
  };
  const across = arrangement.across;
  const aside = arrangement.ordered && count > 1 ? 0.16 * (number / (count - 1) - 0.5) : 0;
  const places = points.map(([place]) => arrangement.positions[place] + aside);
  const believed = points.map(([, run]) => metric.believed[run]);
  const hover = points.map(([, run], i) => {
    const interval = metric.low[run] === null ? "no interval" : `${readable(metric.low[run] * shown.scale)} to ${readable(metric.high[run] * shown.scale)}`;
    const doubt = believed[i] ? "" : `<br>not valid${runs[i].valid ? "" : `: ${runs[i].reasons.join(", ")}`}`;
    return `<b>${escapeText(runs[i].label)}</b><br>${shown.heading}: ${readable(values[i])} ${shown.unit}<br>95 % interval: ${interval}${doubt}`;
  });
  const made = {
    name: escapeText(series.name || shown.heading),
    x: across ? values : places,
    y: across ? places : values,
    [across ? "error_x" : "error_y"]: error,
    hovertext: hover,
    hoverinfo: "text",
  };
  if (arrangement.ticks.length > MOST_LABELS && !arrangement.ordered) {
    const symbols = believed.map((valid) => (valid ? "circle" : "circle-open"));
    return { ...made, [across ? "error_x" : "error_y"]: { ...error, color: colour(number), thickness: 0.7, width: 0 }, type: "scatter", mode: "markers", marker: { size: 4, color: colour(number), symbol: symbols } };
  }
  if (arrangement.ordered) {
    const symbol = SYMBOLS[cycle(number)];
    return {
      ...made, type: "scatter", mode: "lines+markers",
      line: { color: colour(number), dash: DASHES[cycle(number)], width: 2 },
      marker: { size: 8, color: colour(number), line: { width: 1.5, color: colour(number) }, symbol: believed.map((valid) => (valid ? symbol : `${symbol}-open`)) },
    };
  }
  return {
    ...made, type: "bar", orientation: across ? "h" : "v",
    marker: {
      color: colour(number),
      pattern: { shape: believed.map((valid) => (valid ? "" : "/")), fillmode: "overlay", fgopacity: 1, bgcolor: css("--paper"), fgcolor: colour(number), size: 6 },
    },
  };
}

function label(text) {
  return { text: escapeText(text), standoff: 8, font: { size: 12 } };
}

function escapeText(text) {
  return text.replace(/&/g, "&amp;").replace(/</g, "&lt;");
}

// A panel is one plot if its metrics can share it; with several series each metric gets a plot.
function plotsOf(panels, arrangement) {
  const several = arrangement.series.length > 1;
  const known = ({ metric }) => arrangement.series.some((series) => series.points.some(([, run]) => study.metrics[metric].value[run] !== null));
  const found = panels.map((panel) => ({ ...panel, metrics: panel.metrics.filter(known) })).filter((panel) => panel.metrics.length);
  return found.flatMap((panel) =>
    several
      ? panel.metrics.map((shown) => ({ title: shown.heading, unit: shown.unit, ends: ends(panel.shared ? panel.metrics : [shown], arrangement), decades: decades(panel.shared ? panel.metrics : [shown], arrangement), lines: arrangement.series.map((series) => ({ shown, series })) }))
      : [{ title: panel.title, unit: panel.metrics[0].unit, ends: ends(panel.metrics, arrangement), lines: panel.metrics.map((shown) => ({ shown, series: { ...arrangement.series[0], name: shown.heading } })) }],
  );
}

// The ends of the lowest and the highest interval or bar: plots of one unit share their scale.
// Below 0 reaches what may be negative; of anything else an interval's lower end is cut there.
function ends(metrics, arrangement) {
  const runs = arrangement.series.flatMap((series) => series.points.map(([, run]) => run));
  const all = (columns, of) => metrics.filter(of).flatMap(({ metric, scale }) => runs.flatMap((run) => columns.map((column) => scale * (study.metrics[metric][column][run] ?? 0))));
  const [lowest, highest] = [all(["value", "low"], ({ signed }) => signed), all(["value", "high"], () => true)];
  return [lowest.reduce((one, other) => Math.min(one, other), 0), highest.reduce((one, other) => Math.max(one, other), 0)];
}

// The range of a logarithmic axis, for lines whose values a linear one would not tell apart; else null.
function decades(metrics, arrangement) {
  if (!arrangement.ordered) return null;
  const runs = arrangement.series.flatMap((series) => series.points.map(([, run]) => run));
  const values = metrics.flatMap(({ metric, scale }) => runs.map((run) => study.metrics[metric].value[run]).filter((value) => value !== null).map((value) => scale * value));
  const [least, greatest] = [Math.min(...values), Math.max(...values)];
  return least > 0 && greatest > DECADES * least ? [Math.log10(least / 1.5), Math.log10(greatest * 1.5)] : null;
}

function drawPanels(element, panels, arrangement) {
  const { axis, layout } = theme();
  const across = arrangement.across;
  const ticks = arrangement.ticks.length;
  const labelled = ticks <= MOST_LABELS;
  const plots = plotsOf(panels, arrangement);
  const panelElements = fill(element, plots.length); // all first: a plot takes the width it finds
  const several = arrangement.series.length > 1;
  if (several) element.prepend(sharedLegend(arrangement.series, panelElements));
  if (arrangement.fixed) element.prepend(paragraph(arrangement.fixed));
  plots.forEach((plot, place) => {
    const panel = panelElements[place];
    const categories = {
      ...axis, showgrid: false, zeroline: false, range: across ? [ticks - 0.5, -0.5] : [-0.6, ticks - 0.4],
      ...(labelled
        ? { tickvals: arrangement.positions, ticktext: arrangement.ticks.map(escapeText) }
        : { title: label(`${arrangement.title}, in the order of the table`) }),
    };
    const numbers = { ...axis, rangemode: "tozero", title: label(plot.unit) };
    const [low, high] = plot.ends;
    if (plot.decades) Object.assign(numbers, { type: "log", rangemode: "normal", dtick: 1, range: plot.decades });
    else if (high > low) numbers.range = [1.05 * low - (arrangement.ordered ? 0.02 * (high - low) : 0), 1.05 * high];
    if (labelled && !across) categories.title = label(arrangement.title);
    const many = plot.lines.length;
    Plotly.newPlot(
      panel,
      plot.lines.map(({ shown, series }, number) => trace(shown, arrangement, series, number, many)),
      {
        ...layout,
        title: { text: plot.title, x: 0, xref: "paper", xanchor: "left", font: { size: 13.5 }, pad: { b: 6 }, yref: "paper", y: 1, yanchor: "bottom" },
        showlegend: !several && many > 1,
        barmode: "group", bargap: 0.25,
        height: across ? 120 + Math.max(1, ticks) * (14 + 13 * many) : several ? 280 : 320,
        xaxis: across ? numbers : categories,
        yaxis: across ? categories : numbers,
      },
      CONFIG,
    );
  });
}

function fill(element, count) {
  const panels = Array.from({ length: count }, () => document.createElement("div"));
  panels.forEach((panel) => (panel.className = "panel"));
  element.querySelectorAll(".js-plotly-plot").forEach((old) => Plotly.purge(old));
  const grid = document.createElement("div");
  grid.className = "panels";
  grid.append(...panels);
  element.replaceChildren(grid);
  return panels;
}

// One legend for all plots of a figure: a click hides or shows a series in each of them.
function sharedLegend(series, plots) {
  const legend = document.createElement("div");
  legend.className = "legend";
  series.forEach(({ name }, number) => {
    const button = legend.appendChild(document.createElement("button"));
    button.type = "button";
    button.textContent = name;
    button.style.setProperty("--series", colour(number));
    button.style.setProperty("--dash", ["solid", "dashed", "dotted"][cycle(number)]);
    button.setAttribute("aria-pressed", "true");
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", shown);
      plots.forEach((plot) => Plotly.restyle(plot, { visible: shown }, [number]));
    });
  });
  return legend;
}

function drawPlain(element, chart) {
  const { axis, layout } = theme();
  const [panel] = fill(element, 1);
  const own = chart.layout;
  const data = chart.data.map((one, i) => ({ ...one, name: escapeText(one.name || ""), line: { ...one.line, color: one.line && one.line.color === "#000000" ? css("--ink") : one.line?.color } }));
  Plotly.newPlot(
    panel,
    data,
    { ...layout, ...own, xaxis: { ...axis, zeroline: false, ...own.xaxis, title: label(own.xaxis.title.text) }, yaxis: { ...axis, ...own.yaxis, title: label(own.yaxis.title.text) } },
    CONFIG,
  );
  if (chart.note) element.append(paragraph(chart.note));
}

function paragraph(text) {
  const made = document.createElement("p");
  made.className = "note";
  made.textContent = text;
  return made;
}

// The view that was asked for by its title, or the one that suits the chart best.
function viewOf(chart) {
  const wanted = document.getElementById("arrangement").value;
  return chart.views.find(({ title }) => title === wanted) ?? chart.views[0];
}

// One set of plots for each arrangement of the view.
function drawView(element, chart) {
  element.querySelectorAll(".js-plotly-plot").forEach((old) => Plotly.purge(old));
  const view = viewOf(chart);
  const arrangements = view.places.map((place) => study.arrangements[place]);
  const parts = arrangements.map(() => document.createElement("div"));
  element.replaceChildren(...parts);
  parts.forEach((part, i) => drawPanels(part, chart.panels, arrangements[i]));
  if (view.left_out) element.append(paragraph(`${view.left_out} more ${view.left_out === 1 ? "experiment does" : "experiments do"} not fit here; along “experiment” all are shown.`));
}

function drawChart(element) {
  const chart = study.charts[element.dataset.chart];
  if (chart.panels) drawView(element, chart);
  else drawPlain(element, chart);
}
