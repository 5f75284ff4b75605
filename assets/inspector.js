// Shows what backend/results/steps.py says of one step of a column: click a token of a text, or move
// with the arrow keys. All text goes in by textContent: none of it is markup.
import { finder, make, table } from "./dom.js";
import { bringCard, race } from "./rounds.js";

const find = finder("inspector");
const panel = () => find(".dd-inspector");
const NARROW = 640; // pixels up to which it is a sheet
let component = null; // which is asked, and holds the answer
let at = null; // column and round on show
const folded = { open: false }; // its reader wants the details of each step

const cardsNow = () => [...document.querySelectorAll(".dd-card")];
const nodesAt = ([column, round]) => cardsNow()[column]?.querySelectorAll(`[data-round="${round}"]`) ?? [];

function ask(what) {
  component.props.value = { ...what, race: race.number };
  component.trigger("input");
}

function select(column, round) {
  at = [column, round];
  ask({ column, index: round });
}

function mark() {
  for (const node of document.querySelectorAll(".dd-selected")) node.classList.remove("dd-selected");
  for (const node of at ? nodesAt(at) : []) node.classList.add("dd-selected");
}

// A table under a heading; nothing where there are no lines.
function section(caption, headings, lines) {
  const known = lines.map((cells) => cells.map((content) => content ?? "\u2013"));
  return lines.length ? [table(headings, known, { caption })] : [];
}

// Blanks can be seen.
function token(text) {
  const shown = text.trim() ? text : text.replaceAll(" ", "\u2423");
  const node = make("code", "dd-token", shown.replaceAll("\n", "\u23ce").replaceAll("\t", "\u21e5") || "\u2205");
  node.dir = "auto";
  return node;
}

const committedFirst = ({ fate }) => (["accepted", "chosen"].includes(fate) ? 0 : 1);

// Nodes in the tree's order: what hangs below one follows it, what was committed comes first. Each
// with its row, and the row of what it hangs below: the first one there stands in the same.
function ordered(nodes) {
  const below = new Map(nodes.map(({ parent }) => [parent, []]));
  nodes.forEach((node, i) => below.get(node.parent).push(i));
  const found = [];
  let last = 0;
  const hang = (parent, from) => {
    const hanging = below.get(parent) ?? [];
    hanging.sort((a, b) => committedFirst(nodes[a]) - committedFirst(nodes[b]));
    hanging.forEach((i, n) => {
      const row = n ? ++last : from;
      found.push({ ...nodes[i], from, row });
      hang(i, row);
    });
  };
  hang(-1, 0);
  return found;
}

// What became of a node, by a sign as well as by a colour.
const SIGNS = {
  accepted: ["\u2713", "accepted"],
  rejected: ["\u2717", "rejected"],
  "not reached": ["\u25cb", "not reached"],
  chosen: ["\u2605", "the target's own choice"],
};

// What was proposed, as a chain or a tree; the table has the same in words.
function tree({ shape, proposed, chosen }) {
  if (!shape) return [];
  const depths = proposed.map(({ depth }) => depth ?? 0);
  const own = chosen && { ...chosen, fate: "chosen", depth: (depths[chosen.parent] ?? 0) + 1 };
  const nodes = ordered(own ? [...proposed, own] : proposed);
  const keys = Object.entries(SIGNS).filter(([fate]) => nodes.some((node) => node.fate === fate));
  const caption = make("figcaption");
  caption.append(
    ...keys.map(([fate, [sign, words]]) => withFate(make("span", "dd-tree-node", `${sign} ${words}`), fate)),
  );
  const grid = make("div", "dd-tree-grid");
  grid.setAttribute("role", "img");
  grid.setAttribute("aria-label", `A ${shape} of guessed tokens, ${Math.max(...depths)} deep; the details list them.`);
  grid.tabIndex = 0; // a wide one scrolls
  grid.append(make("span", "dd-tree-root"), ...nodes.flatMap(branch));
  const figure = make("figure", "dd-tree");
  figure.append(caption, grid);
  return [figure];
}

function withFate(node, fate) {
  node.dataset.fate = fate;
  return node;
}

// A node, behind the line to it from what it hangs below.
function branch({ text, fate, depth, from, row }) {
  const line = withFate(make("i", "dd-tree-line"), fate);
  const node = withFate(make("span", "dd-tree-node"), fate);
  line.style.gridArea = `${from + 1} / ${2 * depth} / ${row + 2}`;
  node.style.gridArea = `${row + 1} / ${2 * depth + 1}`;
  node.append(make("span", "", SIGNS[fate][0]), token(text));
  return [line, node];
}

function proposals(step) {
  const cut = step.proposed.filter(({ parent }) => parent === null);
  return [...ordered(step.proposed), ...cut].map(({ text, by, fate, depth }) => {
    const place = make("span");
    place.append("\u00a0\u00a0".repeat(Math.max(0, depth - 1)), token(text));
    return [place, by, fate];
  });
}

function shares(top) {
  const cell = make("span");
  for (const [text, share] of top) cell.append(token(text), ` ${share} `);
  return cell;
}

// The most likely tokens only where they were asked for.
function committed(step) {
  const asked = step.tokens.some(({ top }) => top.length);
  const lines = step.tokens.map(({ text, origin, gap, top }) => {
    const line = [token(text), origin, gap];
    return asked ? [...line, shares(top)] : line;
  });
  return section("Committed", ["token", "origin", "score gap", ...(asked ? ["most likely"] : [])], lines);
}

function time({ parts, rows, expected }) {
  const lines = parts.map(([name, , words]) => [name, words.slice(name.length)]);
  if (expected !== null) lines.push(["predicted", `${expected.toFixed(1)} ms`]);
  return section("Time", ["part", "took"], rows ? [...lines, ["rows", rows]] : lines);
}

// Folded until its reader opens it; what was asked for is in sight.
function details(step) {
  const tables = [
    ...section("Guesses", ["token", "by", "outcome"], proposals(step)),
    ...committed(step),
    ...time(step),
    ...section("Masks", ["after", "tokens allowed", "ms"], step.masks.map(({ behind, allowed, ms }) => [behind ? token(behind) : "the text so far", allowed, ms])),
    ...section("Window", ["level"], step.window.map((level) => [level.join(" ")])),
  ];
  if (!tables.length) return [];
  const node = make("details");
  node.open = folded.open || step.tokens.some(({ top }) => top.length);
  node.addEventListener("toggle", () => (folded.open = node.open));
  const box = make("div", "dd-inspector-tables");
  box.append(...tables);
  node.append(make("summary", "", "Details"), box);
  return [node];
}

function draw() {
  const step = component.props.value;
  if (!step?.at && !step?.note) return; // what was asked, not what was answered
  find(".dd-inspector-title").textContent = step.note ?? `${step.column}. ${step.title}, ${step.clock}.`;
  if (step.note) {
    find(".dd-said").replaceChildren();
    find(".dd-inspector-body").replaceChildren();
    open();
    return;
  }
  at = step.at;
  find(".dd-said").replaceChildren(...step.sentences.map((sentence) => make("p", "", sentence)));
  find(".dd-inspector-body").replaceChildren(
    ...tree(step),
    ...details(step),
  );
  mark();
  bringCard(cardsNow()[at[0]]);
  nodesAt(at)[0]?.scrollIntoView({ block: "nearest", behavior: "instant" });
  open();
}

// Beside the card of the step, where there is room, and at the height of its token; on a narrow page
// it is a sheet at the foot (replay.css).
function open() {
  panel().showPopover();
  panel().scrollTop = 0;
  const [node] = at ? nodesAt(at) : [];
  if (!node) return;
  const { left, right } = node.closest(".dd-card").getBoundingClientRect();
  const { width, height } = panel().getBoundingClientRect();
  const sides = [right + 8, left - width - 8, innerWidth - width - 8];
  const x = sides.find((side) => side >= 8 && side + width <= innerWidth - 8) ?? 8;
  const y = Math.min(node.getBoundingClientRect().top - 48, innerHeight - height - 8);
  panel().style.left = `${x}px`;
  panel().style.top = `${Math.max(8, y)}px`;
  const hidden = node.getBoundingClientRect().bottom + 24 - panel().getBoundingClientRect().top;
  if (innerWidth <= NARROW && hidden > 0) scrollBy({ top: hidden, behavior: "instant" });
}

function close() {
  if (!panel().matches(":popover-open")) return;
  panel().hidePopover();
  at = null;
  mark();
}

function move(step) {
  if (step === "close") close();
  else if (step === "difference") {
    ask({ difference: true, index: -1 });
  } else if (at) {
    const [column, round] = [at[0], at[1] + Number(step)];
    const last = cardsNow()[column]?.querySelector(".dd-flow")?.lastElementChild?.dataset.round;
    if (round >= 0 && round <= Number(last)) select(column, round);
  }
}

export function start(given) {
  component = given;
  document.addEventListener("click", (event) => {
    const node = event.target.closest?.(".dd-flow [data-round]");
    if (!node || !getSelection().isCollapsed) return; // what is selected is to be copied
    select(cardsNow().indexOf(node.closest(".dd-card")), Number(node.dataset.round));
  });

  // With the focus on a text, or in the panel: from step to step.
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close();
    const box = event.target.closest?.(".dd-text, .dd-inspector");
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const scrolls = event.target.matches?.(".dd-tree-grid") && event.target.scrollWidth > event.target.clientWidth;
    if (!box || !step || scrolls || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const column = cardsNow().indexOf(box.closest(".dd-card"));
    if (column >= 0 && at?.[0] !== column) select(column, 0);
    else move(step);
  });
  panel().addEventListener("click", ({ target }) => {
    if (target.dataset.move) move(target.dataset.move);
  });
  document.addEventListener("dd-begun", close); // its race is no longer on show
  document.addEventListener("dd-closed", close); // something else is looked at
  window.addEventListener("scroll", () => {
    const card = at && cardsNow()[at[0]]?.getBoundingClientRect();
    if (card && (card.bottom < 0 || card.top > innerHeight)) close(); // what it explains is out of sight
  });
  component.watch("value", draw);
}
