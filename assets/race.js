// Draws one race at a moment t of its steps: live, replayed, opened from a file, or the race of a new
// page. `drawing` is what backend/results/drawing.py makes. All text goes in by textContent.
const LEAST = 20; // tokens below which there is no ratio, as in backend/results/result.py
const ENDS = [1.5, 2, 3, 4, 6, 8, 10, 15, 20, 30, 50, 100]; // of the axis
const FRAME = 30; // ms between two drawings of a replay
const RUNNING = ["waiting", "preparing", "running"];
const ORIGINS = { __proto__: null, drafted: "guessed right", forced: "forced by the grammar", fixed: "text of the program" };
const AFTER = "written after the finish: compared, not timed";
const INTERVAL = "95% interval";
const FATES = { __proto__: null, accepted: "\u2713 accepted", rejected: "\u2717 rejected", cut: "\u2717 against the grammar" };
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const find = (name) => element.querySelector(name);

let drawing = null;
let columns = []; // of what is drawn: nodes, and steps as they were read
let at = null; // the moment of a replay; null: now, or the result
let playing = null; // since when, and from which moment
let last = ENDS[0]; // end of the axis: it only grows, so that nothing is scaled anew at the end
let seen = new Set(); // origins of what is drawn, and whether any of it is "after" the finish
let sighted = null; // the race that was last brought into sight
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
const span = ([low, high], digits) => `${low.toFixed(digits)}\u2013${high.toFixed(digits)}`;
const counted = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;
const base = () => drawing.columns.findIndex((column) => column.verdict === "baseline");
const over = () => !RUNNING.includes(drawing.phase);

const percent = (p) => (p < 0.0005 ? "under 0.1%" : `${(100 * p).toFixed(p < 0.1 ? 1 : 0)}%`);

// A token so that its spaces show.
const visible = (text) =>
  text.replace(/\n/g, "\u21b5").replace(/\t/g, "\u21e5").replace(/^ +| +$/g, (spaces) => "\u2423".repeat(spaces.length));

// --- a race's numbers ----------------------------------------------------------------------------

const end = ({ steps }) => steps.at(-1)?.[0] ?? 0;

// How many of a column's steps had ended by a moment.
function ended({ steps }, moment) {
  let [low, high] = [0, steps.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle][0] <= moment) low = middle + 1;
    else high = middle;
  }
  return low;
}

// What a column had written at a moment; a step that was under way counts by its share.
function amount(column, moment) {
  const n = ended(column, moment);
  const [before, had] = column.steps[n - 1] ?? [0, 0];
  if (n === column.steps.length) return had;
  const [after, has] = column.steps[n];
  return had + ((has - had) * (moment - before)) / (after - before || 1);
}

// A column's speed-up as it is drawn, and whether it is sure enough for a number.
function speedup(column, i) {
  const { speedup: value, interval } = drawing.columns[i];
  const sure = value !== null && !(drawing.noisy && over());
  if (at === null && value !== null) return { value, sure, interval };
  const baseline = columns[base()];
  if (!baseline?.steps.length || !column.steps.length) return { value: 0, sure: false };
  if (column === baseline) return { value: 1, sure };
  const moment = Math.min(at ?? Infinity, drawing.moment ?? Infinity, end(column), end(baseline));
  const [own, other] = [amount(column, moment), amount(baseline, moment)];
  return { value: other ? own / other : 0, sure: sure && Math.max(own, other) >= LEAST };
}

// --- lanes ---------------------------------------------------------------------------------------

function lane(column) {
  const root = make("li", "lane");
  const name = make("div", "name", "", make("strong", "", column.name), make("span", "", column.note));
  const [bar, band] = [make("div", "bar"), make("div", "band")];
  const [number, aside, mark, rest] = [make("strong"), make("span", "aside"), make("span", "mark"), make("span")];
  band.setAttribute("role", "img");
  root.append(name, make("div", "track", "", bar, band), make("div", "figure", "", number, " ", aside), make("div", "about", "", mark, rest));
  return { root, bar, band, number, aside, mark, rest };
}

// What stands beside a bar without a number.
function instead({ state, verdict, doing }) {
  if (at !== null || state === "decoding") return "";
  return verdict === "short" ? "too short to tell" : state === "done" ? "" : doing;
}

function drawLanes() {
  const all = columns.map(speedup);
  const most = Math.max(...all.map(({ value, sure }) => (sure || (at === null && over()) ? value : 0)));
  last = Math.max(last, ENDS.find((tick) => tick >= 1.05 * most) ?? most);
  const share = (value) => `${(100 * Math.min(value, last)) / last}%`;
  all.forEach(({ value, sure, interval }, i) => {
    const { root, bar, band, number, aside, mark, rest } = columns[i].lane;
    const column = drawing.columns[i];
    const range = interval && !sure; // of a noisy race
    root.dataset.winner = at === null && drawing.leaders.includes(i);
    root.dataset.sure = sure;
    root.dataset.text = column.text;
    bar.style.width = share(value);
    band.hidden = !interval;
    if (interval) {
      band.title = `${INTERVAL} ${span(interval, 2)}`;
      band.setAttribute("aria-label", band.title);
      band.style.left = share(interval[0]);
      band.style.width = `calc(${share(interval[1])} - ${share(interval[0])})`;
    }
    put(number, sure ? factor(value) : range ? `${span(interval, interval[1] < 1 ? 2 : 1)}\u00d7` : "");
    aside.title = interval ? INTERVAL : "";
    put(aside, sure ? (interval ? span(interval, 2) : "") : range ? "" : instead(column));
    put(mark, at === null ? column.mark : "");
    put(rest, at === null ? column.beside : "");
  });
  drawAxis(share);
  drawWay();
}

// How far the first column has come: of the limit, and of its own end once all have ended.
function drawWay() {
  const finish = drawing.finished ? drawing.moment : Infinity;
  const written = (moment) => Math.round(Math.max(0, ...columns.map((column) => (column.steps.length ? amount(column, moment) + 1 : 0))));
  const leader = written(at ?? finish);
  const goal = over() ? written(finish) : drawing.unit === "token" ? drawing.limit : 0;
  find(".done").style.width = `${goal ? Math.min(100, (100 * leader) / goal) : 0}%`;
  put(find(".goal"), `${goal && leader < goal ? `${leader} of ` : ""}${counted(Math.max(leader, goal), drawing.unit)}`);
}

function drawAxis(share) {
  const axis = find(".axis");
  const baseline = drawing.columns[base()]?.name;
  find(".lanes").style.setProperty("--one", baseline ? share(1) : "-99px");
  if (axis.dataset.drawn === `${last} ${baseline}`) return;
  axis.dataset.drawn = `${last} ${baseline}`;
  const gap = Math.ceil(last / 4); // between ticks, which keep clear of the one at 1
  const ticks = [0, 1, last];
  for (let tick = gap; tick < last; tick += gap) if (tick - 1 > last / 6) ticks.splice(-1, 0, tick);
  axis.replaceChildren(...(baseline ? ticks : []).map((tick) => {
    const node = make("span", tick === 1 ? "one" : "", tick === 1 ? `1\u00d7 ${baseline}` : `${tick}\u00d7`);
    node.style.left = share(tick);
    return node;
  }));
  clearAxis();
}

// Keeps the baseline's label within the axis, and hides ticks that would run into it or each other.
function clearAxis() {
  const axis = find(".axis");
  const [zero, one, ...rest] = axis.children;
  if (!one) return;
  one.style.translate = "";
  const { left, right } = axis.getBoundingClientRect();
  const label = one.getBoundingClientRect();
  one.style.translate = `${Math.max(0, left - label.left) - Math.max(0, label.right - right)}px`;
  const clear = [];
  for (const tick of [one, ...rest.slice(-1), zero, ...rest.slice(0, -1)]) {
    const box = tick.getBoundingClientRect();
    const free = clear.every((other) => box.right + 8 < other.left || other.right + 8 < box.left);
    tick.style.visibility = free ? "" : "hidden";
    if (free) clear.push(box);
  }
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
    const { chosen } = columns[i];
    if (event.key === "Enter") openStep(i, chosen < 0 ? another(columns[i], chosen, 1) : chosen);
    else if (move) choose(columns[i], another(columns[i], chosen, move));
    else return;
    event.preventDefault();
  });
  const problem = make("p", "problem");
  root.append(make("h2", "", column.name), flow, problem);
  return { root, flow, problem };
}

// Scrolls a text, not the page, until a step is in sight.
function reveal({ card: { flow }, nodes }, step) {
  const { offsetTop: top, offsetHeight: height } = nodes[step];
  flow.scrollTop = Math.min(top, Math.max(flow.scrollTop, top + height - flow.clientHeight));
}

// The next step in a direction that is one: text that a program gives is none.
function another({ steps }, from, move) {
  let step = from + move;
  while (steps[step] && !steps[step][3]) step += move;
  return step;
}

function choose(column, step) {
  if (!column.steps[step]) return;
  column.nodes[column.chosen]?.classList.remove("chosen");
  column.chosen = step;
  column.nodes[step].classList.add("chosen");
  reveal(column, step);
}

// Adds the steps that are new. Those that are not there yet at the moment keep their places, so that
// a replay moves nothing; those behind the photo finish are pale.
function drawText(column, i) {
  const { steps, nodes, card: { flow, problem } } = column;
  const { steps: lines, message } = drawing.columns[i];
  const added = document.createDocumentFragment();
  for (const line of lines.slice(column.read).split("\n").filter(Boolean)) {
    const step = JSON.parse(line);
    const node = make("span");
    if (step[3]) node.dataset.step = steps.length;
    for (const [origin, text] of step[2]) {
      const known = origin in ORIGINS;
      if (known) seen.add(origin);
      if (known && node.lastChild?.className === origin) node.lastChild.append(text);
      else node.append(make(known ? "mark" : "span", known ? origin : "", text));
      if (known) node.lastChild.title = ORIGINS[origin];
    }
    steps.push(step);
    nodes.push(node);
    added.append(node);
  }
  column.read = lines.length;
  const grown = added.childElementCount > 0;
  flow.append(added);
  const until = at === null ? steps.length : ended(column, at);
  for (let n = Math.min(until, column.until); n < Math.max(until, column.until); n++) {
    nodes[n].classList.toggle("later", n >= until);
  }
  if (until && until !== column.until && (at !== null || (grown && !over()))) reveal(column, until - 1);
  column.until = until;
  for (; drawing.finished && column.pale < steps.length; column.pale++) {
    const after = steps[column.pale][0] > drawing.moment + 1e-4;
    nodes[column.pale].classList.toggle("after", after);
    if (after) seen.add("after");
  }
  put(problem, message);
}

// --- a step --------------------------------------------------------------------------------------

// Shows a step as a table. `focus`: the label of the button that is to have the focus, "" for the
// table itself; null leaves it where it is.
function openStep(i, number, focus = "") {
  const { steps, card: { flow } } = columns[i];
  const detail = steps[number]?.[3];
  if (!detail) return;
  choose(columns[i], number);
  const panel = find(".step");
  const name = drawing.columns[i].name;
  const known = detail.top.length > 0;
  const likely = (top) => (top ?? []).slice(0, 5).map(([text, p]) => `${visible(text)} ${percent(p)}`).join("  \u00b7  ");
  const row = (tag, ...cells) => make("tr", "", "", ...cells.slice(0, known ? 4 : 3).map((cell) => make(tag, "", cell)));
  const accepted = detail.guesses.filter(([, , fate]) => fate === "accepted").length;
  const tree = detail.guesses.some(([, , , depth], n) => depth && depth !== n + 1);
  let place = 0;
  const rows = detail.guesses.map(([text, by, fate, depth]) => {
    const line = row("td", visible(text), by || name, FATES[fate] ?? fate, likely(fate === "accepted" ? detail.top[place++] : null));
    line.dataset.fate = fate;
    if (tree) line.cells[0].style.paddingLeft = `${Math.min(16, Math.max(0, depth - 1))}em`;
    return line;
  });
  if (detail.chosen) rows.push(row("td", visible(detail.chosen), "the model", "its own choice", likely(detail.top[accepted])));
  const button = (text, label, pressed) => {
    const node = make("button", "", text);
    node.type = "button";
    node.setAttribute("aria-label", label);
    node.addEventListener("click", pressed);
    return node;
  };
  const go = (text, label, to) => {
    const node = button(text, label, () => openStep(i, to, label));
    node.disabled = !steps[to];
    return node;
  };
  const close = () => {
    panel.hidden = true;
    flow.focus();
  };
  const guesses = detail.guesses.filter(([, by, fate]) => by !== "grammar" && fate !== "cut");
  const forced = detail.guesses.filter(([, by]) => by === "grammar").length;
  const right = guesses.filter(([, , fate]) => fate === "accepted").length;
  const counts = `${forced ? `${forced} forced, ` : ""}${guesses.length ? `${guesses.length} guessed, ${right} accepted` : "nothing guessed"}`;
  const parts = [["drafting", detail.draft], ["waiting for masks", detail.mask]].filter(([, ms]) => ms >= 0.05);
  const of = parts.length ? ` (${parts.map(([what, ms]) => `${what} ${ms.toFixed(1)}`).join(", ")})` : "";
  const allowed = detail.allowed === null ? "" : `; the grammar allowed ${counted(detail.allowed, "next token")}`;
  const scratch = detail.window ? `; ${counted(detail.window, "row")} of the window looked for new guesses` : "";
  const before = steps.slice(0, number).map(([, , spans]) => spans.map(([, text]) => text).join("")).join("");
  const head = row("th", "token", "by", "what became of it", "most likely there");
  const wide = make("div", "wide", "", make("table", "", "", head, ...rows));
  wide.tabIndex = 0; // it may be wider than a phone
  wide.setAttribute("role", "group");
  wide.setAttribute("aria-label", "Guesses of this step");
  panel.setAttribute("aria-label", `${name}, pass ${detail.pass}`);
  panel.replaceChildren(
    make("header", "", "",
      make("strong", "", `${name}, pass ${detail.pass}`),
      make("span", "", `${counted(detail.rows, "row")} in ${detail.ms.toFixed(1)} ms${of}: ${counts}${allowed}${scratch}`),
      go("\u2190", "Step before", another(columns[i], number, -1)), go("\u2192", "Next step", another(columns[i], number, 1)), button("\u00d7", "Close the step", close)),
    make("p", "given", `given: ${before ? `\u2026${before.slice(-80)}` : "the prompt"}`),
    wide,
  );
  panel.onkeydown = ({ key }) => {
    if (key === "Escape") close();
  };
  panel.hidden = false;
  if (focus === null) return;
  const wanted = focus && panel.querySelector(`[aria-label="${focus}"]:enabled`);
  (wanted || panel).focus({ preventScroll: true });
  panel.scrollIntoView({ block: "nearest" });
}

// The pass of the most guesses that a draft got right teaches what speculative decoding is.
function explain() {
  let best = null;
  columns.forEach(({ steps }, i) => steps.forEach(([, , spans], n) => {
    const accepted = spans.filter(([origin]) => origin === "drafted").length;
    const score = accepted + (drawing.leaders.includes(i) ? 100 : 0);
    if (accepted > 1 && score > (best?.score ?? 0)) best = { score, i, n };
  }));
  if (best) openStep(best.i, best.n, null);
}

// --- the whole -----------------------------------------------------------------------------------

function begin() {
  columns = drawing.columns.map((column, i) => ({
    lane: lane(column), card: card(column, i), steps: [], nodes: [], read: 0, until: 0, pale: 0, chosen: -1,
  }));
  [at, playing, last, seen] = [null, null, ENDS[0], new Set()];
  const texts = find(".texts");
  texts.style.minHeight = `${texts.offsetHeight}px`; // what is below stays where it is
  texts.replaceChildren(...columns.map(({ card: { root } }) => root));
  find(".lanes").replaceChildren(...columns.map(({ lane: { root } }) => root));
  find(".step").hidden = true;
}

function show() {
  columns.forEach(drawText);
  drawLanes();
  const focused = document.activeElement?.id; // of the two buttons one is hidden
  find(".race").dataset.phase = drawing.phase;
  if (focused === "run" || focused === "stop") document.getElementById(over() ? "run" : "stop").focus({ preventScroll: true });
  const recorded = drawing.phase === "recorded" ? "Recorded: " : "";
  put(find(".status"), `${recorded}${drawing.status}`); // of the race, whichever moment is drawn
  find(".doubt").hidden = !drawing.doubt;
  put(find(".doubt"), drawing.doubt);
  const { sentence = "", code = "", column = "" } = drawing.next ?? {};
  find(".next").hidden = !sentence;
  put(find(".next span"), sentence);
  put(find(".next button"), code ? "Copy code" : column ? "Race it" : "Run again");
  put(find(".asked q"), drawing.prompt ?? "");
  put(find(".asked span"), drawing.about ?? "");
  if (over()) find(".texts").style.minHeight = "";
  put(find(".play"), playing ? "Pause" : "Replay");
  const moment = at ?? drawing.moment ?? 0;
  if (drawing.moment) find(".moment").value = Math.round((1000 * moment) / drawing.moment);
  put(find(".clock"), `${moment.toFixed(2)} s`);
  find(".files").hidden = !(over() && drawing.form);
  find(".again").hidden = find(".files").hidden || Boolean(sentence && !code && !column);
  drawLegend();
  if (RUNNING.includes(drawing.phase)) bringIntoSight();
}

// What the race on the board shows, and no more.
function drawLegend() {
  const words = { ...ORIGINS, after: AFTER };
  const entries = Object.keys(words).filter((name) => seen.has(name));
  if (drawing.columns.some(({ interval }) => interval)) entries.push("interval");
  const legend = find(".legend");
  if (legend.dataset.drawn === entries.join()) return;
  legend.dataset.drawn = entries.join();
  const nodes = entries.map((name) => make("span", name, words[name] ?? INTERVAL));
  legend.replaceChildren(...nodes, make("span", "", "Click a word to see its step."));
}

// Scrolls to the board once a race, if its lanes cannot be seen, a longer sentence above them included.
function bringIntoSight() {
  if (sighted === drawing.race) return;
  sighted = drawing.race;
  const { top } = find(".status").getBoundingClientRect();
  const { bottom } = find(".axis").getBoundingClientRect();
  if (top >= 0 && bottom + 60 <= innerHeight) return;
  find(".race").scrollIntoView({ block: "start", behavior: calm.matches ? "auto" : "smooth" });
}

function draw(value) {
  if (!value?.leaders) return; // an older version drew it
  const another = drawing?.race !== value.race;
  const first = drawing === null;
  const ran = RUNNING.includes(drawing?.phase) && value.phase === "ended";
  drawing = value;
  if (another) begin();
  show();
  if (first && value.phase === "recorded" && !calm.matches) play();
  if (ran) for (const { card: { flow } } of columns) flow.scrollTop = 0;
  if (ran && !explained) {
    explained = true;
    explain();
  }
}

function play() {
  const race = drawing.race;
  let drawn = 0;
  playing = { since: performance.now(), from: at === null || at >= drawing.moment ? 0 : at };
  const frame = (now) => {
    if (!playing || drawing.race !== race) return;
    if (now - drawn >= FRAME) {
      drawn = now;
      at = playing.from + (Math.max(0, now - playing.since) / 1000) * Number(find(".speed").value);
      if (at >= drawing.moment) [at, playing] = [null, null];
      show();
    }
    requestAnimationFrame(frame);
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
  at = target.value === "1000" ? null : (drawing.moment * target.value) / 1000;
  show();
});
find(".speed").addEventListener("change", () => {
  if (playing) playing = { since: performance.now(), from: at ?? 0 };
});
find(".again").addEventListener("click", () => trigger("submit"));
find(".next button").addEventListener("click", async ({ target }) => {
  if (!drawing.next.code) return trigger(drawing.next.column ? "select" : "submit");
  await derby.copy(drawing.next.code);
  target.textContent = "Copied"; // until something is drawn
});
find(".files div").append(...["race.json", "race.md", "race.svg"].map((name) => {
  const button = make("button", "", name);
  button.type = "button";
  button.addEventListener("click", () => {
    trigger("download", { name });
    find(".files").open = false;
  });
  return button;
}));

// A file of a race: the server draws it.
async function open(file) {
  const record = await derby.pack((await file?.text()) ?? "");
  if (record.length > 1_000_000) return put(find(".status"), "This file is too large for the page: replay it in a terminal.");
  trigger("input", { record });
}
find(".open").addEventListener("click", () => find("[type=file]").click());
find("[type=file]").addEventListener("change", ({ target }) => {
  open(target.files[0]);
  target.value = ""; // the same file may be opened once more
});
element.addEventListener("dragover", (event) => event.preventDefault());
element.addEventListener("drop", (event) => {
  event.preventDefault();
  open(event.dataTransfer.files[0]);
});

new ResizeObserver(clearAxis).observe(find(".axis"));
draw(props.value);
watch("value", () => draw(props.value));
