// Draws what load does to speculation: the acceptance at which guesses break even, over the number of
// requests at once, and what a draft of one's own would gain.
import { between, PLOT } from "./curve.js";
import { finder, make, put, shape, table } from "./dom.js";

const find = finder("board");
let load = null; // what is on show

const share = (value) => `${Math.round(100 * value)}%`;

function loadAxes(svg, { x, y, width, height }) {
  for (const value of [0, 0.25, 0.5, 0.75, 1]) {
    const across = { x1: PLOT.left, x2: width - PLOT.right, y1: y(value), y2: y(value) };
    svg.append(
      shape("line", { class: value === 0 ? "dd-axis" : "dd-grid", ...across }),
      shape("text", { x: PLOT.left - 7, y: y(value) + 4, "text-anchor": "end" }, share(value)),
    );
  }
  for (const requests of load.requests) {
    svg.append(
      shape("line", { class: "dd-axis", x1: x(requests), x2: x(requests), y1: y(0), y2: y(0) + 5 }),
      shape("text", { x: x(requests), y: y(0) + 18, "text-anchor": "middle" }, requests),
    );
  }
  const middle = (PLOT.left + width - PLOT.right) / 2;
  svg.append(shape("text", { x: middle, y: height - 4, "text-anchor": "middle" }, "requests at once (log scale)"));
}

// One line for each number of guesses; it ends where no acceptance pays any more.
function evenLine(svg, { x, y }, [guesses, evens], shade) {
  const points = evens.flatMap((even, i) => (even === null ? [] : [[x(load.requests[i]), y(even)]]));
  if (!points.length) return;
  const group = shape("g", { class: "dd-even", style: `--shade: ${shade}%` });
  group.append(shape("polyline", { points: points.map((point) => point.join(",")).join(" ") }));
  points.forEach(([cx, cy], i) => {
    const tip = `k=${guesses}: breaks even at an acceptance of ${share(evens[i])} with ${load.requests[i]} at once`;
    group.append(shape("circle", { cx, cy, r: 3.5 }, undefined, tip));
  });
  const [endX, endY] = points.at(-1);
  group.append(shape("text", { x: endX + 7, y: endY + 4 }, `k=${guesses}`));
  svg.append(group);
}

export function drawLoadPlot() {
  const place = find(".dd-load-plot");
  const { clientWidth: width, clientHeight: height } = place;
  if (!load || !width) return;
  const most = load.requests.at(-1);
  const across = width - PLOT.left - PLOT.right - 60;
  const x = (requests) => PLOT.left + 12 + (across * Math.log(requests)) / Math.log(Math.max(most, 2));
  const y = (value) => height - PLOT.bottom - (height - PLOT.bottom - PLOT.top) * value;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  svg.setAttribute("aria-label", "Break-even acceptance over requests at once; the figures follow as a table.");
  loadAxes(svg, { x, y, width, height });
  load.lines.forEach((line, i) => evenLine(svg, { x, y }, line, 100 - (60 * i) / load.lines.length));
  load.marks.forEach(({ name, acceptance }, i) => {
    if (acceptance === null) return;
    const level = shape("g", { class: "dd-level" }, undefined, `${name}: acceptance ${share(acceptance)}`);
    level.append(
      shape("line", { x1: PLOT.left, x2: width - PLOT.right, y1: y(acceptance), y2: y(acceptance) }),
      shape("text", { x: width - PLOT.right - 4, y: y(acceptance) - 5, "text-anchor": "end" }, i + 1),
    );
    svg.append(level);
  });
  place.replaceChildren(svg);
}

// What passes with so many guesses gain over plain ones; between measured rows on a straight line.
function gainOf(index, guesses, acceptance, price) {
  const points = load.rows.map((rows, i) => [rows, load.seconds[index][i]]);
  const plain = points[0][1];
  let tokens = 0;
  for (let i = 0; i <= guesses; i++) tokens += acceptance ** i;
  return (tokens * plain) / (between(points, 1 + guesses) + guesses * price * plain);
}

export function drawDraft() {
  if (!load) return;
  const [acceptance, price] = [".dd-draft-acceptance", ".dd-draft-price"].map((name) => find(name).value / 100);
  put(find(".dd-draft-acceptance-at"), share(acceptance));
  put(find(".dd-draft-price-at"), `${share(price)} of a plain pass`);
  const lines = load.requests.map((requests, index) => {
    const gains = Array.from({ length: load.rows.at(-1) }, (_, k) => gainOf(index, k, acceptance, price));
    const best = gains.indexOf(Math.max(...gains));
    const words = best ? `${gains[best].toFixed(2)} times plain decoding, with k=${best}` : "no number of guesses pays";
    return make("li", "", `${requests} at once: ${words}`);
  });
  find(".dd-draft-gains").replaceChildren(...lines);
}

export function drawLoad(view) {
  load = view.load ?? null;
  const measurable = view.phase === "ended" && view.local && !view.recorded;
  find(".dd-load").hidden = !load && !measurable;
  find(".dd-load-known").hidden = !load;
  find(".dd-load-measure").hidden = !measurable;
  put(find(".dd-load-measure"), load ? "Measure load again" : "Measure load, then race again");
  if (!load) return;
  put(find(".dd-load-note"), load.note);
  const marks = load.marks.map(({ name, sentence }) => {
    const item = make("li", "", ` ${sentence}`);
    item.prepend(make("strong", "", name));
    return item;
  });
  find(".dd-load-marks").replaceChildren(...marks);
  const caption = "Predicted tokens a second, of all requests together";
  find(".dd-load-table").replaceChildren(table(load.heads, load.cells, { caption }));
  drawLoadPlot();
  drawDraft();
}
