// Draws one race at a moment t of its steps: live, replayed, opened from a file, or the race of a new
// page. `drawing` is what backend/results/drawing.py makes. All text goes in by textContent.
const LEAST = 20; // tokens below which there is no ratio, as in backend/results/result.py
const ENDS = [1.5, 2, 3, 4, 6, 8, 10, 15, 20, 30, 50, 100]; // of the axis
const ORIGINS = { drafted: "guessed right", forced: "forced by the grammar", fixed: "text of the program" };
const FATES = { accepted: "\u2713 accepted", rejected: "\u2717 rejected", cut: "\u2717 against the grammar" };
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const find = (name) => element.querySelector(name);

let drawing = null;
let columns = []; // of what is drawn: nodes, and steps as they were read
let at = null; // the moment of a replay; null: now, or the result
let playing = null; // since when, and from which moment
let explained = false; // a step has opened by itself

function make(tag, name = "", text = "", ...children) {
  const node = document.createElement(tag);
  node.className = name;
  node.append(text, ...children);
  return node;
}

function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const factor = (value) => `${value.toFixed(2)}\u00d7`;
const base = () => drawing.columns.findIndex((column) => column.verdict === "baseline");
const finite = (value) => (Number.isFinite(value) ? value : 0);

// A token so that its spaces show.
const visible = (text) =>
  text.replace(/\n/g, "\u21b5").replace(/\t/g, "\u21e5").replace(/^ +| +$/g, (spaces) => "\u2423".repeat(spaces.length));

// --- a race's numbers ----------------------------------------------------------------------------

const end = (i) => columns[i].steps.at(-1)?.[0] ?? 0;

// What a column had written at a moment; a step that was under way counts by its share.
function amount(i, moment) {
  const { steps } = columns[i];
  let [low, high] = [0, steps.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle][0] <= moment) low = middle + 1;
    else high = middle;
  }
  const [before, had] = steps[low - 1] ?? [0, 0];
  if (low === steps.length) return had;
  const [after, has] = steps[low];
  return had + ((has - had) * (moment - before)) / (after - before || 1);
}

// A column's speed-up as it is drawn, and whether it is sure enough for a number.
function speedup(i) {
  const column = drawing.columns[i];
  if (at === null && column.speedup !== null) return { value: column.speedup, sure: true, interval: column.interval };
  const baseline = base();
  if (baseline < 0 || !columns[i].steps.length || !columns[baseline].steps.length) return { value: 0 };
  const moment = Math.min(at ?? Infinity, drawing.moment ?? Infinity, end(i), end(baseline));
  const [own, other] = [amount(i, moment), amount(baseline, moment)];
  if (i === baseline) return { value: 1, sure: other >= LEAST };
  return { value: other ? own / other : 0, sure: Math.max(own, other) >= LEAST };
}

// --- lanes ---------------------------------------------------------------------------------------

function lane(column) {
  const root = make("li", "lane");
  const name = make("div", "name", "", make("strong", "", column.name), make("span", "", column.note));
  const [bar, band, number, interval, rest] = [
    make("div", "bar"), make("div", "band"), make("strong"), make("span", "interval"), make("span", "rest"),
  ];
  const mark = make("span", "mark");
  root.append(name, make("div", "track", "", bar, band), make("div", "figure", "", number, " ", interval), make("div", "about", "", mark, rest));
  return { root, bar, band, number, interval, mark, rest };
}

function drawLanes() {
  const all = columns.map((_, i) => speedup(i));
  const most = Math.max(1, ...all.map(({ value, interval }) => (interval ? interval[1] : value)));
  const last = ENDS.find((tick) => tick >= most) ?? most;
  const share = (value) => `${(100 * Math.min(value, last)) / last}%`;
  all.forEach(({ value, sure, interval }, i) => {
    const { root, bar, band, number, interval: ends, mark, rest } = columns[i].lane;
    const column = drawing.columns[i];
    root.dataset.winner = drawing.winner === i;
    root.dataset.sure = Boolean(sure);
    root.dataset.text = column.text;
    bar.style.width = share(value);
    band.hidden = !interval;
    if (interval) {
      band.style.left = share(interval[0]);
      band.style.width = `calc(${share(interval[1])} - ${share(interval[0])})`;
    }
    put(number, sure ? factor(value) : column.state === "decoding" || at !== null ? "" : column.state === "done" ? "\u2013" : column.doing);
    put(ends, interval ? `${interval[0].toFixed(2)}\u2013${interval[1].toFixed(2)}` : "");
    put(mark, at === null ? column.mark : "");
    put(rest, at === null ? column.beside : "");
  });
  find(".lanes").style.setProperty("--one", share(1));
  const axis = find(".axis");
  if (axis.dataset.end !== String(last)) {
    axis.dataset.end = last;
    const gap = Math.ceil(last / 4); // between ticks, which keep clear of the one at 1
    const ticks = [0, 1, last];
    for (let tick = gap; tick < last; tick += gap) if (tick - 1 > last / 6) ticks.splice(-1, 0, tick);
    axis.replaceChildren(...ticks.map((tick) => {
      const node = make("span", tick === 1 ? "one" : "", tick === 1 ? "1\u00d7 KV reuse" : `${tick}\u00d7`);
      node.style.left = share(tick);
      return node;
    }));
  }
  const leader = Math.max(0, ...columns.map((_, i) => amount(i, at ?? (drawing.finished ? drawing.moment : Infinity))));
  const written = drawing.unit === "token";
  find(".way").hidden = !leader;
  find(".done").style.width = `${written ? Math.min(100, (100 * (leader + 1)) / drawing.limit) : 0}%`;
  put(find(".goal"), written ? `${Math.round(leader) + 1} of ${drawing.limit} tokens` : `${Math.round(leader)} characters`);
}

// --- texts ---------------------------------------------------------------------------------------

function card(column, i) {
  const root = make("article", "card");
  const flow = make("p", "flow");
  flow.tabIndex = 0;
  flow.dir = "auto";
  flow.setAttribute("role", "group");
  flow.setAttribute("aria-label", `Text of ${column.name}: arrows choose a step, Enter opens it`);
  flow.addEventListener("click", (event) => {
    const node = event.target.closest("[data-step]");
    if (node) openStep(i, Number(node.dataset.step));
  });
  flow.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Enter") openStep(i, columns[i].chosen);
    else if (move) choose(i, columns[i].chosen + move);
    else return;
    event.preventDefault();
  });
  const problem = make("p", "problem");
  root.append(make("h3", "", column.name), flow, problem);
  return { root, flow, problem };
}

function choose(i, step) {
  const column = columns[i];
  if (!column.steps[step]) return;
  column.nodes[column.chosen]?.classList.remove("chosen");
  column.chosen = step;
  column.nodes[step].classList.add("chosen");
}

// Adds the steps that are new; those that are not there yet at the moment are hidden, and those
// behind the photo finish are pale.
function drawText(i) {
  const column = columns[i];
  const given = drawing.columns[i];
  const news = given.steps.slice(column.read).split("\n").filter(Boolean);
  column.read = given.steps.length;
  const added = document.createDocumentFragment();
  for (const line of news) {
    const step = JSON.parse(line);
    const node = make("span");
    node.dataset.step = column.steps.length;
    for (const [origin, text] of step[2]) {
      if (origin in ORIGINS) seen.add(origin);
      node.append(make("span", origin in ORIGINS ? origin : "", text));
    }
    column.steps.push(step);
    column.nodes.push(node);
    added.append(node);
  }
  column.card.flow.append(added);
  const until = at === null ? column.steps.length : column.steps.findIndex(([seconds]) => seconds > at);
  const visibleSteps = until < 0 ? column.steps.length : until;
  const [from, to] = [Math.min(visibleSteps, column.visible), Math.max(visibleSteps, column.visible)];
  for (let n = from; n < to; n++) column.nodes[n].hidden = n >= visibleSteps;
  column.visible = visibleSteps;
  const finish = drawing.finished ? drawing.moment : Infinity;
  for (; column.pale < column.steps.length && drawing.finished; column.pale++) {
    column.nodes[column.pale].classList.toggle("after", column.steps[column.pale][0] > finish + 1e-4);
  }
  put(column.card.problem, given.message);
  if (news.length && RUNNING.includes(drawing.phase)) column.card.flow.scrollTop = column.card.flow.scrollHeight;
}

const RUNNING = ["waiting", "preparing", "running"];
const seen = new Set();

// --- a step --------------------------------------------------------------------------------------

function openStep(i, number, quietly = false) {
  const step = columns[i].steps[number];
  const detail = step?.[3];
  const panel = find(".step");
  if (!detail) return;
  choose(i, number);
  const row = (...cells) => make("tr", "", "", ...cells.map((cell) => make("td", "", cell)));
  const likely = (top) => (top ?? []).slice(0, 5).map(([text, p]) => `${visible(text)} ${(100 * p).toFixed(p < 0.1 ? 1 : 0)}%`).join("  \u00b7  ");
  const accepted = detail.guesses.filter(([, , fate]) => fate === "accepted").length;
  const tree = detail.guesses.some(([, , , depth], n) => depth && depth !== n + 1);
  let place = 0;
  const rows = detail.guesses.map(([text, by, fate, depth]) => {
    const line = row("\u2003".repeat(tree ? Math.max(0, depth - 1) : 0) + visible(text), by || drawing.columns[i].name, FATES[fate] ?? fate, likely(fate === "accepted" ? detail.top[place++] : null));
    line.dataset.fate = fate;
    return line;
  });
  if (detail.chosen) rows.push(row(visible(detail.chosen), "the model", "its own choice", likely(detail.top[accepted])));
  const table = make("table", "", "", make("tr", "", "", ...["token", "by", "what became of it", "most likely there"].map((text) => make("th", "", text))), ...rows);
  const before = columns[i].steps.slice(0, number).map(([, , spans]) => spans.map(([, text]) => text).join("")).join("");
  const buttons = [["\u2190", number - 1, "Step before"], ["\u2192", number + 1, "Next step"]].map(([text, to, label]) => {
    const button = make("button", "", text);
    button.type = "button";
    button.disabled = !columns[i].steps[to]?.[3];
    button.setAttribute("aria-label", label);
    button.addEventListener("click", () => openStep(i, to));
    return button;
  });
  const close = make("button", "", "\u00d7");
  close.type = "button";
  close.setAttribute("aria-label", "Close the step");
  close.addEventListener("click", () => { panel.hidden = true; columns[i].card.flow.focus(); });
  const count = `${detail.guesses.length} guessed, ${accepted} accepted`;
  const allowed = detail.allowed === null ? "" : `; the grammar allowed ${detail.allowed} next tokens`;
  const scratch = detail.window ? `; ${detail.window} rows of the window looked for new guesses` : "";
  panel.replaceChildren(
    make("header", "", "", make("strong", "", `${drawing.columns[i].name}, pass ${detail.pass}`), make("span", "", `${detail.rows} rows in ${detail.ms} ms: ${count}${allowed}${scratch}`), ...buttons, close),
    make("p", "given", "", make("span", "", "given: "), `\u2026${before.slice(-80)}`),
    make("div", "wide", "", table),
  );
  panel.hidden = false;
  if (!quietly) panel.scrollIntoView({ block: "nearest" });
}

// The pass of the most accepted guesses teaches what speculative decoding is.
function explain() {
  let best = null;
  columns.forEach(({ steps }, i) => steps.forEach(([, , , detail], n) => {
    const accepted = (detail?.guesses ?? []).filter(([, , fate]) => fate === "accepted").length;
    const score = accepted + (i === drawing.winner ? 100 : 0);
    if (accepted > 1 && score > (best?.score ?? 0)) best = { score, i, n };
  }));
  if (best) openStep(best.i, best.n, true);
}

// --- the whole -----------------------------------------------------------------------------------

function begin() {
  columns = drawing.columns.map((column, i) => ({
    lane: lane(column), card: card(column, i), steps: [], nodes: [], read: 0, visible: 0, pale: 0, chosen: 0,
  }));
  [at, playing] = [null, null];
  seen.clear();
  find(".lanes").replaceChildren(...columns.map(({ lane: { root } }) => root));
  find(".texts").replaceChildren(...columns.map(({ card: { root } }) => root));
  find(".step").hidden = true;
}

function show() {
  columns.forEach((_, i) => drawText(i));
  drawLanes();
  const over = !RUNNING.includes(drawing.phase);
  find(".race").dataset.phase = drawing.phase;
  put(find(".status"), drawing.status);
  find(".doubt").hidden = !(drawing.doubt || (drawing.noisy && over));
  put(find(".doubt span"), drawing.doubt);
  find(".again").hidden = !(drawing.noisy && over);
  const player = find(".player");
  player.hidden = !over || !drawing.moment;
  find(".play").textContent = playing ? "Pause" : "Replay";
  const moment = at ?? drawing.moment ?? 0;
  if (drawing.moment) find(".moment").value = Math.round((1000 * moment) / drawing.moment);
  put(find(".clock"), `${moment.toFixed(2)} s`);
  find(".files").hidden = !drawing.files;
  const legend = [...seen].map((origin) => make("span", origin, ORIGINS[origin]));
  if (find(".legend").childElementCount !== legend.length + 1) {
    find(".legend").replaceChildren(...legend, make("span", "", "Click a word to see its step."));
  }
}

function draw(value) {
  if (!value?.columns) return;
  const another = drawing?.race !== value.race;
  const first = drawing === null;
  const ran = RUNNING.includes(drawing?.phase) && value.phase === "ended";
  drawing = value;
  if (another) begin();
  show();
  if (first && value.phase === "recorded" && !calm.matches) play();
  if (ran && !explained) {
    explained = true;
    explain();
  }
}

function play() {
  const from = at === null || at >= drawing.moment ? 0 : at;
  const race = drawing.race;
  playing = { since: performance.now(), from };
  const frame = (now) => {
    if (!playing || drawing.race !== race) return;
    at = playing.from + ((now - playing.since) / 1000) * Number(find(".speed").value);
    if (at >= drawing.moment) [at, playing] = [null, null];
    show();
    if (playing) requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
}

function pause() {
  playing = null;
  show();
}

find(".play").addEventListener("click", () => (playing ? pause() : play()));
find(".moment").addEventListener("input", ({ target }) => {
  playing = null;
  at = target.value === "1000" ? null : (finite(drawing.moment) * target.value) / 1000;
  show();
});
find(".speed").addEventListener("change", () => {
  if (playing) playing = { since: performance.now(), from: at ?? 0 };
});
find(".again").addEventListener("click", () => trigger("submit"));
find(".files").addEventListener("toggle", ({ target }) => {
  const list = target.querySelector("div");
  list.replaceChildren(...Object.entries(drawing.files ?? {}).map(([name, text]) => {
    const button = make("button", "", name);
    button.type = "button";
    button.addEventListener("click", () => {
      const link = make("a");
      link.href = URL.createObjectURL(new Blob([text]));
      link.download = name;
      link.click();
      URL.revokeObjectURL(link.href);
    });
    return button;
  }));
});

// A file of a race is opened here: nothing is sent.
element.addEventListener("dragover", (event) => event.preventDefault());
element.addEventListener("drop", async (event) => {
  event.preventDefault();
  const text = await event.dataTransfer.files[0]?.text();
  const before = drawing;
  try {
    const opened = { ...JSON.parse(text).drawing, race: Date.now(), phase: "recorded", files: { "race.json": text } };
    if (!opened.columns.length) throw new Error("no columns");
    draw(opened);
    props.value = opened;
    trigger("input");
  } catch {
    drawing = null;
    draw(before);
    put(find(".status"), "This file is not a record of a race.");
  }
});

draw(props.value);
watch("value", () => draw(props.value));
