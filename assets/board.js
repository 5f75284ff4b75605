// Draws the view that backend/view.py makes. All text goes in by textContent: none of it is markup.
const find = (selector) => element.querySelector(selector);
let latest = -1; // the number of the race on show; views of earlier races come too late
let cards = [];

function make(tag, name, text) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  if (text !== undefined) node.textContent = text;
  return node;
}

function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
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
  const versus = make("span");
  speed.append(factor, versus);
  const why = make("p", "dd-why");
  const text = make("div", "dd-text");
  text.tabIndex = 0;
  text.setAttribute("role", "region");
  text.setAttribute("aria-label", `Text of ${column.title}`);
  const intro = make("p", "dd-intro", column.description);
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
  root.append(head, speed, why, text, notes, verdict, parts, shares, figures, about);
  text.append(intro);
  const lane = make("li", "dd-lane");
  const bar = make("div", "dd-bar");
  const fill = make("div", "dd-fill");
  bar.append(fill);
  const laneText = make("span", "dd-lane-text");
  lane.append(make("span", "dd-lane-name", column.title), bar, laneText);
  return {
    root, state, factor, versus, why, text, intro, values, remark, verdict, parts, shares, figures, about,
    lane, fill, laneText, nodes: [],
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
  const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
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
  if (atEnd) box.scrollTop = box.scrollHeight;
}

function drawSpeed(it, column) {
  const faster = column.speedup > 1.03;
  const slower = column.speedup > 0 && column.speedup < 0.97;
  it.root.dataset.pace = column.baseline ? "base" : faster ? "faster" : slower ? "slower" : "";
  put(it.factor, column.baseline ? "1\u00d7" : column.speed);
  const words = faster ? "\u25b2 faster than KV reuse" : slower ? "\u25bc slower than KV reuse" : "about as fast as KV reuse";
  put(it.versus, column.baseline ? "the baseline" : column.speedup ? words : "speed-up over KV reuse");
  put(it.why, column.why);
}

const MARKS = { same: "\u2713 ", differs: "\u2260 ", grammar: "\u2731 " };

function drawFigures(it, column) {
  if (it.figures.children.length !== column.figures.length) {
    it.figures.replaceChildren(
      ...column.figures.map(([label]) => {
        const pair = make("div");
        pair.append(make("dt", "", label), make("dd"));
        return pair;
      }),
    );
  }
  column.figures.forEach(([, value], i) => put(it.figures.children[i].lastChild, value));
  if (it.parts.children.length !== column.parts.length) {
    it.parts.replaceChildren(...column.parts.map(([part]) => make("i", `dd-part-${part}`)));
  }
  column.parts.forEach(([part, share, time], i) => {
    it.parts.children[i].style.flexGrow = share;
    it.parts.children[i].title = `${part} ${time}`;
  });
  // The same in words: every part of at least one percent.
  const worth = column.parts.filter(([, share]) => share >= 0.01);
  if (it.shares.children.length !== worth.length) {
    it.shares.replaceChildren(...worth.map(() => make("span")));
  }
  worth.forEach(([part, share], i) => {
    const item = it.shares.children[i];
    item.className = `dd-key-${part}`;
    put(item, `${part} ${Math.round(share * 100)}%`);
  });
}

function drawColumn(it, column) {
  it.root.dataset.state = column.state;
  put(it.state, column.status);
  it.fill.classList.toggle("dd-prefilling", column.state === "prefill");
  drawText(it, column);
  drawSpeed(it, column);
  it.verdict.dataset.same = column.same;
  put(it.verdict, column.verdict ? MARKS[column.same] + column.verdict : "");
  put(it.values, column.values);
  put(it.remark, column.remark);
  drawFigures(it, column);
  it.lane.dataset.state = column.state;
  it.lane.dataset.pace = it.root.dataset.pace;
  it.fill.style.width = `${100 * (column.state === "prefill" ? column.prefill : column.progress)}%`;
  put(it.laneText, column.clock ? `${column.written} in ${column.clock}` : "");
}

function drawChart(columns) {
  const best = Math.max(...columns.map((c) => c.rate), 1e-9);
  const base = columns.find((c) => c.baseline);
  const rows = columns.map((c) => {
    const row = make("div", "dd-row");
    const bar = make("div", "dd-bar");
    const fill = make("div", "dd-fill");
    fill.style.width = `${(100 * c.rate) / best}%`;
    bar.append(fill);
    if (base && base.rate) {
      const line = make("div", "dd-line");
      line.style.left = `${(100 * base.rate) / best}%`;
      bar.append(line);
    }
    row.dataset.pace = c.baseline ? "base" : c.speedup > 1.03 ? "faster" : c.speedup && c.speedup < 0.97 ? "slower" : "";
    row.append(make("span", "dd-lane-name", c.title), bar, make("span", "dd-lane-text", c.amount || "\u2013"));
    return row;
  });
  find(".dd-bars").replaceChildren(...rows);
}

function drawTable(columns) {
  const table = make("table");
  const head = table.createTHead().insertRow();
  const names = ["Column", "Speed-up", ...columns[0].figures.map(([label]) => label), "Tokens", "Time", "Text"];
  for (const name of names) {
    const cell = make("th", "", name);
    cell.scope = "col";
    head.append(cell);
  }
  const body = table.createTBody();
  for (const c of columns) {
    const row = body.insertRow();
    const name = make("th", "", c.title);
    name.scope = "row";
    const verdict = c.message ? "failed" : c.baseline ? "the baseline" : c.verdict || "\u2013";
    const values = [c.speed, ...c.figures.map(([, value]) => value), c.written.split(" ")[0], c.clock || "\u2013", verdict];
    row.append(name, ...values.map((value) => make("td", "", value)));
  }
  find(".dd-scroll").replaceChildren(table);
}

function draw() {
  const view = props.value;
  if (!view) return;
  if (view.alert) {
    put(find(".dd-alert"), view.alert);
    return;
  }
  if (view.race < latest) return;
  const fresh = view.race > latest || view.race === 0;
  if (fresh) {
    latest = view.race;
    put(find(".dd-alert"), "");
    cards = view.columns.map(card);
    find(".dd-columns").replaceChildren(...cards.map((it) => it.root));
    find(".dd-lanes").replaceChildren(...cards.map((it) => it.lane));
  }
  find(".dd-board").dataset.phase = view.phase;
  put(find(".dd-status"), view.status);
  put(find(".dd-leader"), view.leader);
  put(find(".dd-setup"), view.setup);
  view.columns.forEach((column, i) => drawColumn(cards[i], column));
  if (view.phase === "ended" && view.columns.length) {
    put(find(".dd-chart figcaption"), view.chart);
    drawChart(view.columns);
    drawTable(view.columns);
  }
  drawCosts(view.costs);
}

new ResizeObserver(drawCurve).observe(find(".dd-plot"));
watch("value", draw);
draw();
