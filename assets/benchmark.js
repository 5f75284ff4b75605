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
const RESULT = `${DOTS}, a box around the middle half, a line at the median. Figures: median, lowest and highest.`;

let clock = 0; // that counts down

// What one gets, before there is anything: the page's own benchmark of KV reuse, Speculative, Prompt lookup
// and Lookahead over the six built-in prompts, 96 tokens each, on an idle machine, 2026-11-27; shares of the
// width, as the server sends them.
const RECORDED = {
  one: 0.334,
  ticks: [[0.144, "0.80\u00d7"], [0.334, "1.00\u00d7"], [0.524, "1.20\u00d7"], [0.7139, "1.40\u00d7"], [0.9039, "1.60\u00d7"]],
  rows: [
    [
      "Speculative", [0.3281, 0.5797, 0.6375, 0.805, 0.9545],
      [[0.5639, "explain 1.24\u00d7"], [0.8574, "quote 1.55\u00d7"], [0.6478, "code 1.33\u00d7"], [0.9545, "list 1.65\u00d7"], [0.6272, "story 1.31\u00d7"], [0.3281, "reason 0.99\u00d7"]],
      "1.32\u00d7, 0.99 (reason) to 1.65 (list)",
    ],
    [
      "Prompt lookup", [0.2605, 0.3302, 0.358, 0.4214, 0.6346],
      [[0.3259, "explain 0.99\u00d7"], [0.6346, "quote 1.32\u00d7"], [0.3728, "code 1.04\u00d7"], [0.3431, "list 1.01\u00d7"], [0.4377, "story 1.11\u00d7"], [0.2605, "reason 0.92\u00d7"]],
      "1.03\u00d7, 0.92 (reason) to 1.32 (quote)",
    ],
    [
      "Lookahead", [0.0455, 0.1098, 0.1317, 0.193, 0.3858],
      [[0.1444, "explain 0.80\u00d7"], [0.3858, "quote 1.05\u00d7"], [0.2092, "code 0.87\u00d7"], [0.119, "list 0.77\u00d7"], [0.1067, "story 0.76\u00d7"], [0.0455, "reason 0.70\u00d7"]],
      "0.79\u00d7, 0.70 (reason) to 1.05 (quote)",
    ],
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
  for (const [share, label] of dots) {
    const dot = shape("line", { class: "dd-box-dot", x1: x(share), x2: x(share), y1: 20, y2: 20 });
    const name = shape("title", {});
    name.textContent = label;
    dot.append(name);
    svg.append(dot);
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
  drawBoxes(RECORDED, `Recorded on an AMD EPYC in 94 s: with the built-in model, Speculative was the fastest. ${RESULT}`);
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
