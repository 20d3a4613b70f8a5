"use strict";
// Draws the figures. Charts are Vega-Lite specifications, tables are columns; both come from Python,
// compressed, in script elements beside each figure. So does Vega itself.

async function unpack(element) {
  const bytes = Uint8Array.from(atob(element.textContent), (character) => character.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
}

async function loadVega() {
  const script = document.createElement("script");
  script.textContent = await unpack(document.getElementById("vega"));
  document.head.append(script);
}

const [LIGHT, DARK] = JSON.parse(document.getElementById("configs").textContent);
const darkScreen = matchMedia("(prefers-color-scheme: dark)");
const figures = new Map([...document.querySelectorAll(".chart")].map((element) => [element.dataset.figure, { element }]));

function rowsOf(columns) {
  const names = Object.keys(columns);
  return (columns[names[0]] ?? []).map((_, row) => Object.fromEntries(names.map((name) => [name, columns[name][row]])));
}

// The plots as wide as the page allows: beside each other as on paper, twice as many where there is
// room, fewer where they would be narrower than on paper. Legends have the columns that fit.
const WIDE_ENOUGH = 180;
const MENU = 40; // beside a chart, for what it can be saved as
const WIDEST = 640; // of plots beside each other

function fitted(spec, room, label) {
  const cells = spec.concat ?? spec.vconcat ?? [spec.spec ?? spec];
  const onPaper = spec.columns ?? 1;
  const least = Math.min(WIDE_ENOUGH, cells[0].width);
  const fits = (count) => room / count - label >= least;
  const fewer = Array.from({ length: onPaper }, (_, i) => onPaper - i);
  const most = Math.min(2 * onPaper, spec.concat?.length ?? Infinity);
  const columns = spec.columns ? [most, ...fewer].find(fits) ?? 1 : 1;
  const wider = room / (onPaper * (cells[0].width + label));
  for (const cell of cells) cell.width = Math.min(spec.columns ? WIDEST : room, Math.max(100, Math.floor(room / columns) - label - 4));
  if (spec.columns) spec.columns = columns;
  const legend = (value) => ({ ...value, columns: Math.max(1, Math.floor(value.columns * wider)) });
  return JSON.parse(JSON.stringify(spec), (key, value) => (key === "legend" && value?.columns ? legend(value) : value));
}

function selects(figure) {
  return [...figure.element.querySelectorAll("select")];
}

function keyOf(select) {
  return `${select.closest(".chart").dataset.figure}.${select.dataset.heading}`;
}

// Fills each list with what goes with the choices before it; returns the view they choose.
function chooseView({ element, views }) {
  let left = views;
  selects({ element }).forEach((select, place) => {
    const values = [...new Set(left.map(({ choice }) => choice[place]))];
    const wanted = select.value || state.get(keyOf(select));
    const value = values.includes(wanted) ? wanted : values[0];
    select.replaceChildren(...values.map((each) => new Option(each, each)));
    select.value = value;
    left = left.filter(({ choice }) => choice[place] === value);
  });
  return left[0];
}

// The selections that the address keeps: series picked in the legend, and the part zoomed into.
function selections(spec) {
  const found = [];
  JSON.stringify(spec, (key, value) => {
    if (key === "params") found.push(...value);
    return value;
  });
  return found;
}

const SELECTION = {
  point: {
    read: ({ select }, value) => value[select.fields[0]],
    write: ({ select }, picked) => picked.map((each) => ({ [select.fields[0]]: each })),
  },
  interval: {
    read: (_, value) => Object.values(value),
    write: (_, ends) => Object.fromEntries(ends.map((end, place) => ["xy"[place], end])),
  },
};

function restore(param, key) {
  try {
    const kept = JSON.parse(state.get(key));
    if (kept) param.value = SELECTION[param.select.type].write(param, kept);
  } catch {
    remember(key, ""); // an address that was cut short or edited
  }
}

const later = new Map();

// Soon, not at once: a drag changes a selection with every frame.
function rememberSoon(key, value) {
  clearTimeout(later.get(key));
  later.set(key, setTimeout(() => remember(key, value), 200));
}

async function draw(figure) {
  const { element } = figure;
  if (!figure.views) Object.assign(figure, JSON.parse(await unpack(element.querySelector("script"))));
  const view = chooseView(figure);
  figure.width = element.clientWidth;
  const spec = fitted(structuredClone(figure.specs[view.spec]), figure.width - MENU, figure.label_px);
  spec.datasets = Object.fromEntries(Object.entries(view.data).map(([name, table]) => [name, rowsOf(figure.tables[table])]));
  const params = selections({ ...spec, datasets: null });
  const keyOfParam = ({ name }) => `${element.dataset.figure}.${name}`;
  for (const param of params) restore(param, keyOfParam(param));
  element.querySelector(".view-note").textContent = view.note;
  figure.drawn?.finalize();
  figure.drawn = await vegaEmbed(element.querySelector(".live"), spec, {
    mode: "vega-lite",
    logLevel: 1, // errors
    ast: true, // no code from text: the page's policy forbids it
    config: darkScreen.matches ? DARK : LIGHT,
    tooltip: { theme: darkScreen.matches ? "dark" : "light" },
    actions: { export: true, source: false, compiled: false, editor: false },
  });
  for (const param of params) {
    figure.drawn.view.addSignalListener(param.name, (_, value) => {
      const kept = SELECTION[param.select.type].read(param, value);
      rememberSoon(keyOfParam(param), kept?.length ? JSON.stringify(kept) : "");
    });
  }
  element.classList.add("drawn"); // until then its image is there
}

// One after the other, so that the page stays responsive.
async function drawAll(wanted) {
  for (const figure of figures.values()) {
    if (wanted(figure)) await draw(figure);
    await new Promise((done) => setTimeout(done));
  }
}

function follow() {
  const id = decodeURIComponent(part());
  const target = document.getElementById(id);
  if (target?.matches("details")) target.open = true;
  target?.scrollIntoView();
  const label = document.querySelector(`[href="#${CSS.escape(id)}"]`)?.dataset.timeline;
  const timeline = figures.get("step_timeline");
  if (!label || !timeline) return;
  const [select] = selects(timeline);
  if (select) select.value = label;
  draw(timeline);
  document.getElementById("timeline").scrollIntoView();
}

for (const figure of figures.values()) {
  selects(figure).forEach((select) => select.addEventListener("change", () => {
    for (const key of [...state.keys()]) if (key.startsWith(`${figure.element.dataset.figure}.`)) state.delete(key);
    draw(figure); // which fills the lists that follow
    selects(figure).forEach((each) => remember(keyOf(each), each.value));
  }));
}
darkScreen.addEventListener("change", () => drawAll(() => true));
addEventListener("resize", () => drawAll((figure) => figure.width !== figure.element.clientWidth));
addEventListener("hashchange", follow);
loadVega().then(() => drawAll(() => true)).then(follow);
