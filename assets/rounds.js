// The rounds of a column, a line of JSON each, [clock in ms, tokens, rows, ms, spans]: its text, its lane
// and the strip of blocks in its details, all of them as they stood after a number of rounds.
import { make, put, setData, shape } from "./dom.js";
import { drawLane } from "./track.js";

// The race on show: its number (views of earlier races come too late), its cards, the origins of its
// text, and its newest view.
export const race = { number: -1, cards: [], seen: new Set(), view: null };
const CLOCK = 0;
const TOKENS = 1;
const SPANS = 4;
const TALL = 2.5; // times what a round of the middle column costs: higher blocks are cut off

function nodesOf(spans, round, hidden) {
  return spans.map(([origin, piece]) => {
    const node = make("span", `dd-${origin}`, piece);
    node.dataset.round = round;
    node.hidden = hidden;
    race.seen.add(origin);
    return node;
  });
}

// Whether a text that grows is code, or JSON, whose letters are to be of one width.
const isCode = (it, round, i) =>
  round[SPANS].some(([, piece]) => piece.includes("```")) || (i < 4 && /^\s*[{[]\s*"/.test(it.text.flow.textContent));

// Appends what is new; what is there already is not touched, so that a selection stays.
export function addRounds(it, text) {
  const lines = text.slice(it.read).split("\n");
  it.read = text.length;
  for (const line of lines.filter(Boolean)) {
    const round = JSON.parse(line);
    const i = it.rounds.push(round) - 1;
    const nodes = nodesOf(round[SPANS], i, !it.following);
    it.text.flow.append(...nodes);
    it.nodes.push(nodes);
    it.tokens.push(it.tokens[i] + round[TOKENS]);
    it.letters.push(round[SPANS].reduce((sum, [, piece]) => sum + piece.length, it.letters[i]));
    if (round[TOKENS]) addBlock(it, i);
    if (isCode(it, round, i)) setData(document.querySelector(".dd-board"), "code", "yes");
  }
  if (it.following) it.shown = it.rounds.length;
}

// The card as it stood after `n` rounds.
export function showUntil(it, n) {
  for (let i = Math.min(n, it.shown); i < Math.max(n, it.shown); i++) {
    for (const node of it.nodes[i]) node.hidden = i >= n;
  }
  it.shown = n;
  drawMoment(it);
}

// On a phone, texts stand beside one another.
export function bringCard(root) {
  const columns = root.parentElement;
  columns.scrollLeft = root.offsetLeft - columns.offsetLeft;
}

// What nothing is added to any more is read from its beginning.
export function showBeginnings() {
  for (const { text } of race.cards) {
    text.box.scrollTop = -text.box.scrollHeight;
    if (!text.flow.firstChild?.matches?.(".dd-fixed")) continue;
    // Of a program, what was written first, below a line of what was given.
    const first = text.flow.querySelector(":not(.dd-fixed)");
    if (first) text.box.scrollTop += first.getBoundingClientRect().top - text.box.getBoundingClientRect().top - 48;
  }
}

export function drawMoment(it) {
  drawLane(it);
  const { state, status } = it.column;
  const moves = ["queued", "prefill", "decoding"].includes(state); // which the lane says
  put(it.state, moves || !it.following ? "" : status);
  drawStrip(it);
}

// A block, from the strip's floor up: as long as its tokens, as high as the time since the last one.
function addBlock(it, round) {
  const [clock, tokens] = it.rounds[round];
  it.blocks += `M${it.tokens[round]} 0v${it.clock - clock}h${tokens - 0.2}V0z`;
  if (it.count) it.took += clock - it.clock; // the first one reads the prompt
  it.count += 1;
  it.clock = clock;
}

export function stripOf() {
  const svg = shape("svg", { class: "dd-strip", preserveAspectRatio: "none", "aria-hidden": "true" });
  const blocks = shape("path", {});
  const later = shape("rect", { class: "dd-later", height: "100%" });
  svg.append(blocks, later);
  return { svg, blocks, later };
}

// What all strips of a race are as high as, in ms.
function scaleOf() {
  const means = race.cards.map((it) => it.took / Math.max(1, it.count - 1)).filter((mean) => mean > 0);
  means.sort((a, b) => a - b);
  return TALL * (means[Math.floor(means.length / 2)] || 1);
}

const lengthOf = (it) => it.tokens.at(-1);

// Drawn only where it is in sight.
function drawStrip(it) {
  const axis = Math.max(...race.cards.map(lengthOf));
  if (!it.visible || !axis) return;
  const { svg, blocks, later } = it.strip;
  const height = scaleOf();
  const box = `0 ${-height} ${axis} ${height}`;
  if (svg.getAttribute("viewBox") !== box) svg.setAttribute("viewBox", box);
  if (it.drawn !== it.blocks.length) blocks.setAttribute("d", it.blocks);
  it.drawn = it.blocks.length;
  const from = it.following ? axis : it.tokens[it.shown];
  const place = { x: from, y: -height, width: Math.max(0, axis - from) };
  for (const [name, value] of Object.entries(place)) later.setAttribute(name, value);
}

export const sight = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    const it = race.cards.find((other) => other.strip.svg === target);
    if (!it) continue;
    it.visible = isIntersecting;
    drawStrip(it);
  }
});
