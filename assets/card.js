// One column of the board: its lane on the track (track.js) and its card, and what is drawn in them.
// All text goes in by textContent: none of it is markup.
import { fit, make, put, setData, setStyle } from "./dom.js";
import { copier } from "./help.js";
import { addRounds, drawMoment, stripOf } from "./rounds.js";
import { laneOf } from "./track.js";

// Laid out from its end: what is added is in sight, unless its reader has scrolled back.
function textOf({ title, gist }) {
  const box = make("div", "dd-text");
  box.tabIndex = 0;
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", `Text of ${title}`);
  const flow = make("p", "dd-flow");
  flow.dir = "auto";
  flow.lang = "";
  const problem = make("p", "dd-problem");
  const inner = make("div");
  inner.append(flow, make("p", "dd-intro", gist), problem);
  box.append(inner);
  return { box, flow, problem };
}

// Those of all columns, which are compared.
function openAll(open) {
  for (const details of document.querySelectorAll(".dd-details")) details.open = open;
}

function detailsOf({ title, description, setting }) {
  const root = make("details", "dd-details");
  const summary = make("summary");
  summary.setAttribute("aria-label", `Details of ${title}`);  // its line may still be empty
  const [line, sentence] = [make("span", "dd-line"), make("span", "dd-sentence")];
  summary.append(sentence, line);
  const values = make("p", "dd-values");
  const told = make("div", "dd-told");
  const parts = make("div", "dd-parts");
  const shares = make("p", "dd-shares");
  const strip = stripOf();
  const command = make("p", "dd-note", "On the command line: ");
  command.append(make("code", "", `-c ${setting}`));
  root.append(summary, values, told, strip.svg, parts, shares, make("p", "dd-note", description), command);
  root.addEventListener("toggle", () => openAll(root.open));
  return { root, line, sentence, values, told, parts, shares, strip };
}

export function card(column) {
  const root = make("article", "dd-card");
  const header = make("header");
  const state = make("span", "dd-state");
  header.append(make("h3", "", column.title), state);
  header.title = column.description;
  const text = textOf(column);
  const body = make("div", "dd-body");
  body.append(text.box, copier(`Copy the text of ${column.title}`, text.flow));
  const details = detailsOf(column);
  root.append(header, body, details.root);
  return {
    root, lane: laneOf(column), state, text, details, strip: details.strip,
    // What rounds.js knows: how much of the view it has read, the rounds, their nodes, the tokens and the letters before each of
    // them; of the strip's blocks the ms, the clock and the number; how many rounds are shown, or whether always all.
    read: 0, rounds: [], nodes: [], tokens: [0], letters: [0], took: 0, clock: 0, count: 0, blocks: "", drawn: 0, shown: 0, following: true,
    visible: false, share: 0, place: null, column,
  };
}

// As a part of the time is coloured: see --dd-forward and the others in page.css.
function inColour(node, part) {
  node.style.setProperty("--part", `var(--dd-${part})`);
  return node;
}

function drawDetails(it, { told, parts, shares }) {
  fit(it.told, told, () => make("p"));
  told.forEach((text, i) => put(it.told.children[i], text));
  fit(it.parts, parts, ([part]) => inColour(make("i"), part));
  parts.forEach(([, share, text], i) => {
    setStyle(it.parts.children[i], "flexGrow", String(share));
    it.parts.children[i].title = text;
  });
  fit(it.shares, shares, ([part]) => inColour(make("span"), part));
  shares.forEach(([, text], i) => put(it.shares.children[i], text));
}

export function drawColumn(it, column) {
  setData(it.root, "state", column.state);
  setData(it.root, "same", column.same);
  it.column = column;
  put(it.text.problem, column.message);
  addRounds(it, column.rounds);
  drawMoment(it);
  put(it.details.line, column.line);
  put(it.details.sentence, column.sentence);
  put(it.details.values, column.values);
  if (column.details) drawDetails(it.details, column.details);
}
