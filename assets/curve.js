// Draws the curve of what forward passes cost, as large as its place is, so that text keeps its size.
import { finder, make, put, shape, table } from "./dom.js";

const find = finder("board");
export const PLOT = { left: 40, right: 14, top: 12, bottom: 40 };
const RADIUS = 8.5;
let costs = null; // what is on show

// About five round numbers from 0 on.
function ticks(most) {
  const rough = most / 5;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * unit).find((n) => n >= rough);
  return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, i) => i * step);
}

// The cost between two measured widths lies on a straight line, as the predictions have it.
export function between(points, rows) {
  const next = Math.max(1, points.findIndex(([k]) => k >= rows));
  const [a, low] = points[next - 1];
  const [b, high] = points[next];
  return low + ((high - low) * (rows - a)) / (b - a);
}

function axes(svg, { x, y, width, height, widest, most }) {
  for (const value of ticks(most)) {
    const across = { x1: PLOT.left, x2: width - PLOT.right, y1: y(value), y2: y(value) };
    svg.append(
      shape("line", { class: value === 0 ? "dd-axis" : "dd-grid", ...across }),
      shape("text", { x: PLOT.left - 7, y: y(value) + 4, "text-anchor": "end" }, Number(value.toPrecision(3))),
    );
  }
  for (let rows = 1; rows <= widest; rows *= 2) {
    svg.append(
      shape("line", { class: "dd-axis", x1: x(rows), x2: x(rows), y1: y(0), y2: y(0) + 5 }),
      shape("text", { x: x(rows), y: y(0) + 18, "text-anchor": "middle" }, rows),
    );
  }
  const middle = (PLOT.left + width - PLOT.right) / 2;
  svg.append(shape("text", { x: middle, y: height - 4, "text-anchor": "middle" }, "k rows in a pass (log scale)"));
  const turned = `translate(11 ${(PLOT.top + y(0)) / 2}) rotate(-90)`;
  svg.append(shape("text", { transform: turned, "text-anchor": "middle" }, "plain steps"));
}

// On the curve what a column's pass costs; joined to it, in the same unit, the tokens that come out.
// A disc that would hide one of `taken` moves aside.
function mark(svg, { x, y }, { name, rows, tokens, steps, pace, sentence }, taken) {
  let [cx, cy] = [x(rows), y(tokens)];
  while (taken.some((disc) => Math.hypot(disc[0] - cx, disc[1] - cy) < 2 * RADIUS)) cx += RADIUS;
  taken.push([cx, cy]);
  const group = shape("g", { class: "dd-mark", "data-pace": pace }, undefined, `${name}: ${sentence}`);
  group.append(
    shape("line", { x1: x(rows), x2: cx, y1: y(steps), y2: cy }),
    shape("circle", { cx: x(rows), cy: y(steps), r: 4 }),
    shape("circle", { class: "dd-yield", cx, cy, r: RADIUS }),
    shape("text", { x: cx, y: cy + 4, "text-anchor": "middle" }, taken.length),
  );
  svg.append(group);
}

export function drawCurve() {
  const place = find(".dd-plot");
  const { clientWidth: width, clientHeight: height } = place;
  if (!costs || !width) return;
  const { points, marks } = costs;
  const widest = Math.max(points.at(-1)[0], ...marks.map((m) => m.rows));
  const most = 1.08 * Math.max(...points.map(([, steps]) => steps), ...marks.map((m) => m.tokens));
  const x = (rows) => PLOT.left + 12 + ((width - PLOT.left - PLOT.right - 24) * Math.log(rows)) / Math.log(widest);
  const y = (value) => height - PLOT.bottom - ((height - PLOT.bottom - PLOT.top) * value) / most;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  svg.setAttribute("aria-label", "Cost of a forward pass over the number of its rows; the figures follow as a table.");
  axes(svg, { x, y, width, height, widest, most });
  const line = [];
  for (let rows = 1; rows <= points.at(-1)[0]; rows++) line.push(`${x(rows)},${y(between(points, rows))}`);
  svg.append(shape("polyline", { class: "dd-curve", points: line.join(" ") }));
  for (const [rows, steps, words] of points) {
    svg.append(shape("circle", { class: "dd-point", cx: x(rows), cy: y(steps), r: 3.5 }, undefined, words));
  }
  const taken = [];
  for (const entry of marks) mark(svg, { x, y }, entry, taken);
  place.replaceChildren(svg);
}

export function drawCosts(measured) {
  costs = measured;
  find(".dd-costs").hidden = !costs;
  if (!costs) return;
  put(find(".dd-costs-note"), costs.note);
  const marks = costs.marks.map(({ name, pace, sentence }) => {
    const item = make("li", "", ` ${sentence}`);
    item.dataset.pace = pace;
    item.prepend(make("strong", "", name));
    return item;
  });
  find(".dd-marks").replaceChildren(...marks);
  const caption = "What a forward pass costs here";
  find(".dd-costs-table").replaceChildren(table(["Rows", "Milliseconds", "Plain steps"], costs.cells, { caption }));
  drawCurve();
}
