// Shows what forward passes cost: the curve that backend/export/cost_curve.py drew, and the same in words.
import { finder, make, put, table } from "./dom.js";

const find = finder("board");

// A drawing of the server's, in which every text is escaped.
export function showDrawing(place, svg) {
  const parsed = new DOMParser().parseFromString(svg, "image/svg+xml");
  place.replaceChildren(document.importNode(parsed.documentElement, true));
}

export function showMarks(box, marks) {
  const items = marks.map(([name, sentence, pace]) => {
    const item = make("li", "", ` ${sentence}`);
    item.dataset.pace = pace;
    item.prepend(make("strong", "", `${name}:`));
    return item;
  });
  box.replaceChildren(...items);
}

export function drawCosts(costs) {
  put(find(".dd-costs-note"), costs.note);
  showDrawing(find(".dd-costs-plot"), costs.svg);
  showMarks(find(".dd-costs .dd-marks"), costs.marks);
  const caption = "Time of a pass";
  find(".dd-costs-table").replaceChildren(table(["Rows", "Times as long"], costs.cells, { caption }));
}
