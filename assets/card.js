// One column of the board: its card, and what is drawn in it. All text goes in by textContent.
import { fit, make, put, setData, setStyle } from "./dom.js";
import { copier, helped } from "./help.js";
import { addRounds, drawMoment, stripOf } from "./rounds.js";

function bar() {
  const root = make("div", "dd-bar");
  const fill = make("div", "dd-fill");
  root.append(fill);
  return { root, fill };
}

function speedOf() {
  const root = make("p", "dd-speed");
  const [factor, interval, pace] = ["strong", "span", "span"].map((tag) => make(tag));
  interval.className = "dd-interval";
  pace.className = "dd-pace";
  root.append(factor, interval, pace);
  return { root, factor, interval, pace };
}

// Laid out from its end: what is added is in sight, unless its reader has scrolled back.
function textOf(title) {
  const box = make("div", "dd-text");
  box.tabIndex = 0;
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", `Text of ${title}`);
  const flow = make("p", "dd-flow");
  flow.dir = "auto";
  flow.lang = "";
  const problem = make("p", "dd-problem");
  const inner = make("div");
  inner.append(flow, problem);
  box.append(inner);
  return { box, flow, problem };
}

function detailsOf(column) {
  const root = make("details", "dd-details");
  const summary = make("summary", "", "Details");
  summary.setAttribute("aria-label", `Details of ${column.title}`);
  const told = make("div", "dd-told");
  const parts = make("div", "dd-parts");
  const shares = make("p", "dd-shares");
  const figures = make("dl", "dd-figures");
  const about = make("p", "dd-note", column.description);
  root.append(summary, told, parts, shares, figures, about, make("code", "", column.setting));
  return { root, told, parts, shares, figures };
}

export function card(column) {
  const root = make("article", "dd-card");
  const header = make("header");
  const state = make("span", "dd-state");
  header.append(make("h3", "", column.title), state);
  const progress = bar();
  const speed = speedOf();
  const leading = make("dl", "dd-leading");
  const numbers = make("div", "dd-numbers");
  numbers.append(speed.root, leading);
  const text = textOf(column.title);
  const copy = copier(`Copy the text of ${column.title}`, text.flow);
  const strip = stripOf();
  const body = make("div", "dd-body");
  body.append(text.box, strip.svg, copy);
  const intro = make("p", "dd-intro", column.description);
  const values = make("p", "dd-values");
  const sentence = make("p", "dd-sentence");
  const details = detailsOf(column);
  const head = make("div", "dd-head");
  head.append(header, progress.root, numbers);
  const rest = make("div", "dd-rest");
  rest.append(intro, body, values, sentence, details.root);
  root.append(head, rest);
  return {
    root, state, fill: progress.fill, speed, leading, text, strip, values, sentence, details,
    // What rounds.js knows: how much of the view it has read, the rounds, their nodes, the tokens before each of them; of the strip's
    // blocks the ms, the clock and the number; how many rounds are shown, or whether always all.
    read: 0, rounds: [], nodes: [], tokens: [0], took: 0, clock: 0, count: 0, blocks: "", drawn: 0, shown: 0, following: true,
    visible: false, column,
  };
}

function drawPairs(box, pairs) {
  fit(box, pairs, ([title]) => {
    const pair = make("div");
    const term = make("dt");
    term.append(helped(title));
    pair.append(term, make("dd"));
    return pair;
  });
  pairs.forEach(([title, text], i) => {
    put(box.children[i].firstChild.firstChild, title);
    put(box.children[i].lastChild, text);
  });
}

// As a part of the time is coloured: see --dd-forward and the others in page.css.
function inColour(node, part) {
  node.style.setProperty("--part", `var(--dd-${part})`);
  return node;
}

function drawDetails(it, { told, figures, parts, shares }) {
  fit(it.told, told, () => make("p"));
  told.forEach((text, i) => put(it.told.children[i], text));
  drawPairs(it.figures, figures);
  fit(it.parts, parts, ([part]) => inColour(make("i"), part));
  parts.forEach(([, share, text], i) => {
    setStyle(it.parts.children[i], "flexGrow", String(share));
    it.parts.children[i].title = text;
  });
  fit(it.shares, shares, ([part]) => inColour(make("span"), part));
  shares.forEach(([, text], i) => put(it.shares.children[i], text));
}

export function drawColumn(it, column, axis) {
  setData(it.root, "state", column.state);
  setData(it.root, "pace", column.pace);
  setData(it.root, "same", column.same);
  Object.assign(it, { column, axis });
  put(it.speed.factor, column.speed);
  put(it.speed.interval, column.interval);
  put(it.speed.pace, column.pace_text);
  drawPairs(it.leading, column.figures);
  put(it.text.problem, column.message);
  addRounds(it, column.rounds);
  drawMoment(it);
  put(it.values, column.values);
  put(it.sentence, column.sentence);
  if (column.details) drawDetails(it.details, column.details);
}
