// The panel "Why?": a tab for the figures, one for what passes cost, one for the terms.
// A tab is there where there is something to see.
import { drawCosts } from "./curve.js";
import { finder, fit, make, put, table } from "./dom.js";
import { helped, meanings } from "./help.js";
import { tabsIn } from "./tabs.js";

const find = finder("board");
let tabs = null;
let drawn = ""; // what the table shows: drawn anew, it would lose the focus

function drawFigures({ headings, lines, ledger, reasons }) {
  put(find(".dd-ledger"), ledger);
  const box = find(".dd-reasons");
  fit(box, reasons, () => make("li"));
  reasons.forEach((text, i) => put(box.children[i], text));
  const wanted = JSON.stringify([headings, lines]);
  if (drawn === wanted) return;
  drawn = wanted;
  const helpful = lines.map(([title, ...texts]) => [meanings.has(title) ? helped(title) : title, ...texts]);
  find(".dd-result .dd-scroll").replaceChildren(table(headings, helpful, { named: true }));
}

export function drawGlossary(entries) {
  for (const [title, text] of entries) meanings.set(title, text);
  const terms = entries.flatMap(([title, text]) => [make("dt", "", title), make("dd", "", text)]);
  find(".dd-glossary dl").replaceChildren(...terms);
}

export function drawWhy(view) {
  if (view.result) drawFigures(view.result);
  find("#dd-tab-costs").hidden = !view.costs;
  if (view.costs) drawCosts(view.costs);
  tabs.refresh();
}

export function startWhy() {
  tabs = tabsIn(find(".dd-why .dd-tabs"));
}
