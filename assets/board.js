// Draws the view that backend/web/view.py makes, which holds every word and figure; nothing is decided
// here. All text goes in by textContent: none of it is markup.
const find = (selector) => element.querySelector(selector);
let latest = -1; // the number of the race on show; views of earlier races come too late
let cards = [];

function make(tag, name, text) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  if (text !== undefined) node.textContent = text;
  return node;
}

// Whatever is written makes the browser work, even if it was there before: on the machine that races,
// that is time of the race.
function put(node, text) {
  const own = node.firstChild;
  if (node.textContent === text) return;
  if (own?.nodeType === Node.TEXT_NODE && own === node.lastChild) own.data = text;
  else node.textContent = text;
}

function setData(node, name, value) {
  if (node.dataset[name] !== value) node.dataset[name] = value;
}

function setStyle(node, name, value) {
  if (node.style[name] !== value) node.style[name] = value;
}

function card(column) {
  const root = make("article", "dd-card");
  const head = make("header");
  const title = make("h3", "", column.title);
  title.title = column.description;
  const state = make("span", "dd-state");
  head.append(title, state);
  const speed = make("p", "dd-speed");
  const factor = make("strong");
  const interval = make("span", "dd-interval");
  const pace = make("span");
  speed.append(factor, interval, pace);
  const reason = make("p", "dd-reason");
  const text = make("div", "dd-text");
  text.tabIndex = 0;
  text.setAttribute("role", "region");
  text.setAttribute("aria-label", `Text of ${column.title}`);
  const intro = make("p", "dd-intro", column.description);
  let atEnd = true; // until a reader scrolls back
  let top = 0;
  text.addEventListener("scroll", () => {
    if (text.scrollHeight - text.scrollTop - text.clientHeight < 40) atEnd = true;
    else if (text.scrollTop < top) atEnd = false;
    top = text.scrollTop;
  });
  const verdict = make("p", "dd-verdict");
  const notes = make("div", "dd-notes");
  const values = make("p", "dd-values");
  const remark = make("p", "dd-remark");
  notes.append(values, remark);
  const parts = make("div", "dd-parts");
  const shares = make("p", "dd-shares");
  const figures = make("dl", "dd-figures");
  const about = make("details", "dd-about");
  about.append(
    make("summary", "", "About this column"),
    make("p", "", column.description),
    make("code", "", column.setting),
  );
  root.append(head, speed, reason, text, notes, verdict, parts, shares, figures, about);
  text.append(intro);
  const lane = make("li", "dd-lane");
  const bar = make("div", "dd-bar");
  const fill = make("div", "dd-fill");
  bar.append(fill);
  const laneText = make("span", "dd-lane-text");
  lane.append(make("span", "dd-lane-name", column.title), bar, laneText);
  return {
    root, state, factor, interval, pace, reason, text, intro, values, remark, verdict, parts, shares, figures, about,
    lane, fill, laneText, nodes: [], follow: () => atEnd && text.scrollTo(0, text.scrollHeight),
  };
}

function drawText(it, column) {
  const { spans } = column;
  if (!spans.length && !column.message) return;
  if (it.intro.isConnected) it.text.replaceChildren();
  if (column.message) {
    if (!it.problem) {
      it.problem = make("p", "dd-problem");
      it.text.append(it.problem);
    }
    put(it.problem, column.message);
  }
  const box = it.text;
  // Only the last span can have grown since the last look.
  for (let i = Math.max(0, it.nodes.length - 1); i < spans.length; i++) {
    const [origin, piece] = spans[i];
    if (i < it.nodes.length) {
      put(it.nodes[i], piece);
    } else {
      const node = make("span", `dd-${origin}`, piece);
      it.nodes.push(node);
      box.insertBefore(node, it.problem || null);
    }
  }
}

function drawSpeed(it, column) {
  setData(it.root, "pace", column.pace);
  setData(it.lane, "pace", column.pace);
  put(it.factor, column.speed);
  put(it.interval, column.interval);
  put(it.pace, column.pace_text);
  put(it.reason, column.reason);
}

// As many children as there are entries; those that stay are changed in place.
function fit(box, entries, build) {
  if (box.children.length !== entries.length) box.replaceChildren(...entries.map(build));
}

function drawFigures(it, column, figures) {
  fit(it.figures, figures, ([title, help]) => {
    const pair = make("div");
    pair.append(make("dt", "", title), make("dd"));
    pair.title = help;
    return pair;
  });
  column.figures.forEach((text, i) => put(it.figures.children[i].lastChild, text));
  fit(it.parts, column.parts, ([part]) => make("i", `dd-part-${part}`));
  column.parts.forEach(([, share, text], i) => {
    setStyle(it.parts.children[i], "flexGrow", String(share));
    it.parts.children[i].title = text;
  });
  fit(it.shares, column.shares, () => make("span"));
  column.shares.forEach(([part, text], i) => {
    it.shares.children[i].className = `dd-key-${part}`;
    put(it.shares.children[i], text);
  });
}

function drawColumn(it, column, figures) {
  setData(it.root, "state", column.state);
  put(it.state, column.status);
  it.fill.classList.toggle("dd-prefilling", column.state === "prefill");
  drawText(it, column);
  drawSpeed(it, column);
  setData(it.verdict, "same", column.same);
  put(it.verdict, column.verdict);
  put(it.values, column.values);
  put(it.remark, column.remark);
  drawFigures(it, column, figures);
  setData(it.lane, "state", column.state);
  const share = column.state === "prefill" ? column.prefill : column.progress;
  setStyle(it.fill, "width", `${Math.round(1000 * share) / 10}%`);
  put(it.laneText, column.progress_text);
}

function drawBars({ bars, line }) {
  const drawn = bars.map(([title, share, pace, text]) => {
    const entry = make("div", "dd-entry");
    const bar = make("div", "dd-bar");
    const fill = make("div", "dd-fill");
    fill.style.width = `${100 * share}%`;
    bar.append(fill);
    if (line) {
      const mark = make("div", "dd-line");
      mark.style.left = `${100 * line}%`;
      bar.append(mark);
    }
    entry.dataset.pace = pace;
    entry.append(make("span", "dd-lane-name", title), bar, make("span", "dd-lane-text", text));
    return entry;
  });
  find(".dd-bars").replaceChildren(...drawn);
}

function headingCell(text, scope, help) {
  const cell = make("th", "", text);
  cell.scope = scope;
  if (help) cell.title = help;
  return cell;
}

function drawTable({ headings, lines }) {
  const table = make("table");
  table.createTHead().insertRow().append(...headings.map(([title, help]) => headingCell(title, "col", help)));
  const body = table.createTBody();
  for (const [title, ...cells] of lines) {
    body.insertRow().append(headingCell(title, "row"), ...cells.map((text) => make("td", "", text)));
  }
  find(".dd-scroll").replaceChildren(table);
}

function drawGlossary(entries) {
  const terms = entries.flatMap(([title, text]) => [make("dt", "", title), make("dd", "", text)]);
  find(".dd-glossary dl").replaceChildren(...terms);
}

// The line-up's editor stands above the board, and may be taller than the window.
function bringToSight(board) {
  const { top, bottom } = find(".dd-track").getBoundingClientRect();
  if (top < 0 || bottom > window.innerHeight) board.scrollIntoView({ block: "start" });
}

function draw() {
  const view = props.value;
  if (!view) return;
  if (view.alert) {
    put(find(".dd-alert"), view.alert);
    return;
  }
  const board = find(".dd-board");
  if (view.preparing !== undefined) {
    if (board.dataset.phase === "idle") put(find(".dd-status"), view.preparing);
    return;
  }
  board.drawn = Date.now(); // connection.js asks for a view if none comes
  if (view.gone) {
    if (["waiting", "preparing", "racing"].includes(board.dataset.phase)) {
      put(find(".dd-alert"), view.gone);
      put(find(".dd-status"), "");
      board.dataset.phase = "ended";
    }
    return;
  }
  if (view.race === 0) put(find(".dd-alert"), ""); // another line-up was chosen
  if (view.race < latest) return;
  if (document.hidden) {
    setData(board, "phase", view.phase); // the rest once somebody looks
    return;
  }
  const fresh = view.race > latest || view.race === 0;
  if (fresh) {
    latest = view.race;
    put(find(".dd-alert"), "");
    cards = view.columns.map(card);
    find(".dd-columns").replaceChildren(...cards.map((it) => it.root));
    find(".dd-lanes").replaceChildren(...cards.map((it) => it.lane));
  }
  setData(board, "phase", view.phase);
  if (fresh && view.race) bringToSight(board);
  put(find(".dd-status"), view.status);
  put(find(".dd-leader"), view.leader);
  put(find(".dd-setup"), view.setup);
  view.columns.forEach((column, i) => drawColumn(cards[i], column, view.figures));
  for (const it of cards) it.follow(); // together: the first one has the browser lay out the page
  if (view.glossary) drawGlossary(view.glossary);
  if (view.result) {
    put(find(".dd-chart figcaption"), view.result.caption);
    drawBars(view.result);
    drawTable(view.result);
    put(find(".dd-ledger"), view.ledger);
    find(".dd-again").hidden = !view.spoiled;
  }
  drawCosts(view.costs);
}

// Why a race was refused may be gone once the form is changed.
for (const change of ["input", "change"]) {
  document.addEventListener(change, () => put(find(".dd-alert"), ""), { capture: true });
}
find(".dd-again").addEventListener("click", () => document.getElementById("again")?.click());
new ResizeObserver(drawCurve).observe(find(".dd-plot"));
watch("value", draw);
document.addEventListener("visibilitychange", draw);
draw();
