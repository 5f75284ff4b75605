// Draws the view that backend/web/benchmark.py makes, which holds every word and figure. All text goes
// in by textContent: none of it is markup.
import { cell, finder, make, shape, table } from "./dom.js";
import { kept } from "./kept.js";
import { listenTo, views } from "./stream.js";

const find = finder("benchmark");
const MOST = 200000; // characters of a prompt set, as the server has it
const EDGE = 0.03; // of the axis
const RUNNING = ["warming up", "running"];
const DOTS = "Speed-up over KV reuse: a dot for each prompt";
const RESULT = `${DOTS}, a box around the middle half, a line at the median. On the right: median, lowest and highest.`;

let clock = 0; // that counts down

// What one gets, before there is anything: `bench -c kv -c speculative -c lookup -c lookahead` over the six
// built-in prompts, on an idle machine, 2026-11-26; shares of the width, as the server sends them.
const RECORDED = {
  one: 0.213,
  ticks: [[0.003, "0.80\u00d7"], [0.213, "1.00\u00d7"], [0.423, "1.20\u00d7"], [0.633, "1.40\u00d7"], [0.843, "1.60\u00d7"]],
  rows: [
    ["Speculative", [0.215, 0.421, 0.637, 0.805, 0.955], [0.543, 0.381, 0.83, 0.955, 0.731, 0.215], "1.40\u00d7, 1.00\u20131.71"],
    ["Prompt lookup", [0.168, 0.226, 0.328, 0.451, 0.558], [0.25, 0.467, 0.217, 0.558, 0.406, 0.168], "1.11\u00d7, 0.96\u20131.33"],
    ["Lookahead", [0.045, 0.116, 0.165, 0.219, 0.265], [0.108, 0.228, 0.138, 0.265, 0.192, 0.045], "0.95\u00d7, 0.84\u20131.05"],
  ],
};

// Lines in groups, each under its category, where there are several.
function drawTable(headings, groups) {
  const node = table(headings, []);
  const bodies = groups.map(([category, lines]) => {
    const body = node.createTBody();
    const title = cell("th", category === "all" ? "all prompts" : category, "rowgroup");
    title.colSpan = headings.length;
    if (groups.length > 1) body.insertRow().append(title);
    body.append(...table([], lines, { named: true }).tBodies[0].rows);
    return body;
  });
  const [, ...others] = bodies;
  const more = find(".dd-by-category");
  more.hidden = !others.length;
  const draw = () => others.forEach((body) => (body.hidden = more.getAttribute("aria-pressed") === "false"));
  more.onclick = () => {
    more.setAttribute("aria-pressed", more.getAttribute("aria-pressed") === "false");
    draw();
  };
  draw();
  find(".dd-scroll").replaceChildren(node);
}

// Counted down: the server says it only as a prompt begins.
function countDown(seconds) {
  const end = Date.now() + 1000 * seconds;
  const tell = () => {
    const fives = Math.max(1, Math.round((end - Date.now()) / 5000));
    const words = fives > 18 ? `${Math.round(fives / 12)} min` : `${5 * fives} s`;
    find(".dd-time").textContent = seconds ? `About ${words} left.` : "";
  };
  clearInterval(clock);
  if (seconds) clock = setInterval(tell, 1000);
  tell();
}

// One row a column; places are shares of the width.
function box([name, marks, dots, words], one) {
  const row = make("div", "dd-box");
  const svg = shape("svg", { viewBox: "0 0 1000 40", preserveAspectRatio: "none", "aria-hidden": "true" });
  const x = (share) => 1000 * share;
  svg.append(shape("line", { class: "dd-box-one", x1: x(one), x2: x(one), y1: 0, y2: 40 }));
  if (marks.length) {
    const [low, first, middle, third, high] = marks.map(x);
    svg.append(
      shape("line", { class: "dd-box-reach", x1: low, x2: high, y1: 20, y2: 20 }),
      shape("rect", { class: "dd-box-half", x: first, width: Math.max(third - first, 1), y: 8, height: 24 }),
      shape("line", { class: "dd-box-middle", x1: middle, x2: middle, y1: 8, y2: 32 }),
    );
  }
  for (const dot of dots) {
    svg.append(shape("line", { class: "dd-box-dot", x1: x(dot), x2: x(dot), y1: 20, y2: 20 }));
  }
  row.append(make("strong", "", name), svg, make("span", "", words));
  return row;
}

function drawBoxes(boxes, caption) {
  find("figcaption").textContent = caption;
  const axis = make("div", "dd-axis");
  const inside = boxes.ticks.filter(([share]) => share > EDGE && share < 1 - EDGE); // whole, in its box
  for (const [share, words] of [[boxes.one, "KV reuse"], ...inside]) {
    const tick = make("span", "", words);
    tick.style.left = `${100 * share}%`;
    axis.append(tick);
  }
  const place = make("div", "dd-box");
  place.append(make("span"), axis, make("span"));
  find(".dd-boxes div").replaceChildren(...boxes.rows.map((row) => box(row, boxes.one)), place);
}

function save(name, text, type) {
  const link = make("a", "dd-chip", `Save ${name}`);
  link.download = name;
  link.href = URL.createObjectURL(new Blob([text], { type }));
  return link;
}

function drawFiles(files) {
  const place = find(".dd-saves");
  for (const old of place.children) URL.revokeObjectURL(old.href);
  place.replaceChildren();
  if (!files) return;
  place.append(save("benchmark.json", files.json, "application/json"), save("benchmark.csv", files.csv, "text/csv"));
}

function draw(view) {
  find(".dd-refused").textContent = view.alert || "";
  if (view.alert) return;
  kept.keepBenchmark(view);
  show(view);
}

// What was measured before the page was loaded anew. Whatever stands in the storage, the page works.
function recall() {
  const view = kept.benchmark?.view;
  if (!view) return;
  try {
    show({ ...view, phase: view.phase === "ended" ? "ended" : "stopped", status: view.left });
  } catch {
    find(".dd-benchmark").dataset.phase = "idle";
    drawRecorded();
  }
}

function drawRecorded() {
  drawBoxes(RECORDED, `Recorded on an AMD EPYC, with the built-in model. ${RESULT}`);
}

function show(view) {
  const held = document.activeElement?.id.startsWith("benchmark-");
  find(".dd-benchmark").dataset.phase = view.phase;
  if (held) find(RUNNING.includes(view.phase) ? "#benchmark-stop" : "#benchmark-start").focus();
  find(".dd-measured").textContent = view.status;
  countDown(RUNNING.includes(view.phase) ? view.time : 0);
  find("progress").value = view.share;
  find(".dd-verdict").textContent = view.verdict;
  find(".dd-explained span").textContent = view.explained;
  drawTable(view.headings, view.groups);
  if (view.boxes) drawBoxes(view.boxes, view.boxes.rows.some(([, marks]) => marks.length) ? RESULT : `${DOTS}.`);
  else if (!RUNNING.includes(view.phase)) drawRecorded();
  else find(".dd-boxes div").replaceChildren(); // nothing recorded, which would look like a result
  find(".dd-failures").replaceChildren(...view.failures.map((sentence) => make("li", "", sentence)));
  drawFiles(view.files);
}

// The file is read here and goes into the box as if typed: nothing is uploaded.
async function readFile({ target }) {
  const [file] = target.files;
  if (!file) return;
  const area = find("textarea");
  if (file.size > 4 * MOST) {
    find(".dd-refused").textContent = `${file.name} is too long: a prompt set may have ${MOST} characters.`;
    return;
  }
  area.value = await file.text();
  area.dispatchEvent(new Event("input", { bubbles: true }));
  find(".dd-refused").textContent = "";
  target.value = "";
}

export function start({ props, trigger, watch }) {
  const area = find("textarea");
  const name = () => {
    find("#benchmark-start").textContent = area.value.trim() ? "Start" : "Start with six built-in prompts";
  };
  name();
  area.addEventListener("input", name);
  find("#benchmark-start").addEventListener("click", () => trigger("submit"));
  find("#benchmark-resume").addEventListener("click", () => trigger("play"));
  drawRecorded();
  find("input[type=file]").addEventListener("change", readFile);
  watch("value", () => (props.value?.begun ? listenTo(props.value) : draw(props.value)));
  document.addEventListener("dd-benchmark", ({ detail }) => draw(detail));
  // Nothing runs any more: a benchmark that still does so here was refused, or the server forgot it.
  document.addEventListener("dd-end", () => RUNNING.includes(find(".dd-benchmark").dataset.phase) && recall());
  if (views.benchmark) draw(views.benchmark);
  else recall();
}
