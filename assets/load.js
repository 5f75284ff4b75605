// Shows what load does to speculation: the drawing of backend/export/curves.py, and what a draft of
// one's own would gain.
import { showDrawing, showMarks } from "./curve.js";
import { finder, put, table } from "./dom.js";

const find = finder("board");
let load = null; // what is on show

const share = (value) => `${Math.round(100 * value)}%`;

// The cost between two measured widths lies on a straight line, as the predictions have it.
function between(points, rows) {
  const next = Math.max(1, points.findIndex(([k]) => k >= rows));
  const [a, low] = points[next - 1];
  const [b, high] = points[next];
  return low + ((high - low) * (rows - a)) / (b - a);
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
  const found = load.requests.map((_, index) => {
    const gains = Array.from({ length: load.rows.at(-1) }, (_, k) => gainOf(index, k, acceptance, price));
    const best = gains.indexOf(Math.max(...gains));
    return best ? [`${gains[best].toFixed(2)}\u00d7`, String(best)] : ["no gain", "\u2013"];
  });
  const lines = ["Speed-up", "Best k"].map((title, i) => [title, ...found.map((cells) => cells[i])]);
  find(".dd-draft-gains").replaceChildren(table(["Requests", ...load.requests], lines, { named: true }));
}

// Returns whether there is something to see, or to be measured.
export function drawLoad(view) {
  load = view.load ?? null;
  const measurable = view.phase === "ended" && view.local && !view.recorded;
  find(".dd-load-known").hidden = !load;
  find(".dd-load-measure").parentElement.hidden = !measurable;
  put(find(".dd-load-measure"), load ? "Measure load again" : "Measure load, then race again");
  if (!load) return measurable;
  put(find(".dd-load-note"), load.note);
  showDrawing(find(".dd-load-plot"), load.svg);
  showMarks(find(".dd-load-marks"), load.marks);
  const caption = "Predicted tokens per second of all requests together";
  find(".dd-load-table").replaceChildren(table(load.heads, load.cells, { caption }));
  drawDraft();
  return true;
}
