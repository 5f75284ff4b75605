// Draws the line-up that backend/web/lineup_editor.py describes, and sends it what its reader does.
// All text goes in by textContent or as a value: none of it is markup.
import { button, finder, make, put } from "./dom.js";

const find = finder("lineup");
const PAUSE = 300; // ms without a key after which the text is read
const PATIENCE = 8000; // ms after which an answer is no longer waited for

let cards = []; // the columns on show; a card keeps its place in the page wherever it moves
let serial = 0;
let pending = null; // what an answer is awaited for
let typing = 0;
let changes = 0; // made by the reader, so far
let fields = 0; // made so far: each has an id of its own
const waiting = [];

let component, strategies, presets, most; // what gradio gave
let area, problem, list; // nodes

export const changed = () => changes;

// ---- what is sent: one thing at a time, so that each is meant for the text that it finds

// `make` returns the action when its turn has come: null to have the text read, undefined for none.
// `settle` is called once it is done, to do to the cards what was done to the text.
function send(make, card, settle) {
  changes += 1;
  waiting.push({ make, card, settle });
  next();
}

function next() {
  if (pending || !waiting.length) return;
  const { make, card, settle } = waiting.shift();
  const action = make();
  if (action === undefined) return next();
  pending = { action, card, settle, text: area.value, serial: ++serial };
  pending.timer = setTimeout(() => release(), PATIENCE);
  component.props.value = { text: pending.text, action, serial };
  component.trigger("input");
}

function release() {
  clearTimeout(pending.timer);
  pending = null;
  next();
}

// What is shown was changed after the page had asked for its form: that change stays.
function stay() {
  component.props.value = { text: area.value };
  if (!pending) return;
  const { action, card, settle } = pending;
  waiting.unshift({ make: () => action, card, settle });
  release();
}

function answered() {
  const state = component.props.value;
  if (state.asked !== undefined && state.asked !== changes) return stay();
  if (!pending && state.columns && area.value !== state.text) {
    area.value = state.text; // a line-up from elsewhere
    cards = [];
    draw(state);
  }
  if (!pending || state.serial !== pending.serial) return;
  const done = pending;
  if (area.value !== done.text) {
    // Something was typed meanwhile: this answer is to another text.
    component.props.value = { text: area.value };
    if (done.action) waiting.unshift({ make: () => done.action, card: done.card, settle: done.settle });
    return release();
  }
  if (area.value !== state.text) area.value = state.text;
  if (state.refused && done.card) refuse(done.card, state.problem);
  else if (state.refused) put(problem, state.problem);
  else {
    if (state.columns) done.settle?.();
    draw(state);
  }
  release();
}

// ---- a column

function card(strategy) {
  const declared = strategies[strategy];
  const it = { strategy, controls: new Map(), options: new Map() };
  it.root = make("li", "dd-lineup-column");
  it.root.dataset.strategy = strategy;
  it.details = make("details");
  const summary = make("summary");
  it.number = make("span", "dd-lineup-number");
  it.line = make("code");
  it.gist = make("span", "dd-note");
  summary.append(it.number, make("strong", "", declared.title), it.line, it.gist);
  const groups = [declared.fields, declared.place].map((named) => {
    const group = make("div", "dd-lineup-fields");
    group.append(...named.map((field) => control(it, field)));
    return group;
  });
  it.refusal = make("p", "dd-lineup-problem");
  it.refusal.setAttribute("role", "alert");
  it.details.append(summary, make("p", "dd-note", declared.description), ...groups, it.refusal);
  const at = () => cards.indexOf(it);
  const move = (by) => () => {
    let to;
    send(
      () => {
        to = at() + by;
        return at() >= 0 && to >= 0 && to < cards.length ? { op: "move", index: at(), to } : undefined;
      },
      it,
      () => cards.splice(to, 0, ...cards.splice(at(), 1)),
    );
  };
  const present = (action) => () => (at() < 0 ? undefined : action());
  it.up = button("\u2191", `Move ${declared.title} up`, move(-1));
  it.down = button("\u2193", `Move ${declared.title} down`, move(1));
  const twice = button("Duplicate", `Duplicate ${declared.title}`, () => {
    send(present(() => ({ op: "duplicate", index: at() })), it, () => cards.splice(at() + 1, 0, null));
  });
  const remove = button("\u00d7", `Remove ${declared.title}`, () => {
    send(present(() => ({ op: "remove", index: at() })), it, () => {
      const index = at();
      cards.splice(index, 1);
      (cards[Math.min(index, cards.length - 1)]?.details.firstChild ?? area).focus();
    });
  });
  const buttons = make("div", "dd-chips");
  buttons.append(it.up, it.down, twice, remove);
  it.root.append(it.details, buttons);
  return it;
}

// A field with its label and help; `it.controls` gets what shows a value in it.
function control(it, field) {
  const box = make("div", "dd-lineup-field");
  const label = make("label", "", field.label);
  const set = (value) => {
    const make = () => (cards.includes(it) ? { op: "set", index: cards.indexOf(it), setting: field.name, value } : undefined);
    send(make, it);
  };
  const shown = field.kind === "choice" ? choice(it, field, set) : input(field, set);
  it.controls.set(field.name, shown.show);
  const help = make("p", "dd-note", field.help);
  shown.nodes[0].id = label.htmlFor = `lineup-field-${++fields}`;
  help.id = `lineup-help-${fields}`;
  shown.nodes[0].setAttribute("aria-describedby", help.id);
  box.append(label, ...shown.nodes, help);
  return box;
}

function input(field, set) {
  const node = make("input");
  if (field.kind === "flag") {
    node.type = "checkbox";
    node.addEventListener("change", () => set(String(node.checked)));
    return { nodes: [node], show: (value) => (node.checked = value === "true") };
  }
  node.type = field.kind === "number" ? "number" : "text";
  if (field.kind === "number") Object.assign(node, { min: field.low, max: field.high, step: 1, placeholder: "auto" });
  else node.maxLength = 200;
  node.addEventListener("change", () => set(node.value));
  return { nodes: [node], show: (value) => show(node, value) };
}

// A list of choices; the last of them opens a box for another, where there may be one.
function choice(it, field, set) {
  const select = make("select");
  const box = make("input");
  const OTHER = "\u0000";
  box.type = "text";
  box.maxLength = 200;
  box.hidden = true;
  box.placeholder = field.other || "";
  box.setAttribute("aria-label", `${field.label}: ${field.other}`);
  const fill = (options) => {
    const given = options.map(([value, label]) => new Option(label, value));
    if (field.other) given.push(new Option(`${field.other}...`, OTHER));
    select.replaceChildren(...given);
  };
  fill(field.options);
  select.addEventListener("change", () => {
    box.hidden = select.value !== OTHER;
    if (box.hidden) set(select.value);
    else box.focus();
  });
  box.addEventListener("change", () => set(box.value));
  const shown = (value) => {
    const named = [...select.options].some((option) => option.value === value);
    select.value = named ? value : OTHER;
    box.hidden = named;
    if (!named) show(box, value);
  };
  it.options.set(field.name, fill);
  return { nodes: field.other ? [select, box] : [select], show: shown };
}

// What is being typed stays.
function show(node, value) {
  if (node.value !== value && node !== document.activeElement) node.value = value;
}

function refuse(it, sentence) {
  it.details.open = true;
  put(it.refusal, sentence);
}

// ---- the whole

function draw(state) {
  put(problem, state.problem);
  list.classList.toggle("dd-stale", !state.columns);
  if (!state.columns) return;
  const focus = document.activeElement;
  cards.length = state.columns.length;
  state.columns.forEach((column, i) => {
    if (cards[i]?.strategy !== column.strategy) cards[i] = card(column.strategy);
    const it = cards[i];
    it.number.textContent = i + 1;
    // Not disabled, which would take the focus from whoever moves a column to an end.
    it.up.setAttribute("aria-disabled", i === 0);
    it.down.setAttribute("aria-disabled", i === cards.length - 1);
    put(it.gist, column.gist);
    put(it.line, column.line === column.strategy ? "" : column.line);
    put(it.refusal, "");
    for (const [name, options] of Object.entries(column.options)) it.options.get(name)?.(options);
    for (const [name, show] of it.controls) show(column.values[name]);
  });
  const roots = cards.map((it) => it.root);
  if (roots.some((root, i) => list.children[i] !== root) || list.children.length !== roots.length) {
    list.replaceChildren(...roots);
    if (list.contains(focus)) focus.focus(); // moving a node takes the focus from it
  }
  for (const add of find(".dd-adds").querySelectorAll("button")) add.disabled = cards.length >= most;
}

export function start(given) {
  component = given;
  ({ strategies, presets, most } = component.props.catalogue);
  [area, problem, list] = ["textarea", "#lineup-problem", ".dd-lineup-columns"].map(find);
  area.addEventListener("input", () => {
    changes += 1;
    component.props.value = { text: area.value }; // what Run would send
    clearTimeout(typing);
    typing = setTimeout(() => send(() => null), PAUSE);
  });

  find(".dd-presets").append(
    make("span", "", "Compare"),
    ...presets.map(([name, title, about]) => {
      const tell = () => put(find(".dd-about"), about);
      const choose = () => {
        cards = [];
        tell();
      };
      const node = button(title, "", () => send(() => ({ op: "preset", name }), null, choose));
      node.title = about;
      node.addEventListener("focus", tell);
      return node;
    }),
  );
  find(".dd-adds").append(
    make("span", "", "Add"),
    ...Object.entries(strategies).map(([strategy, { title, description }]) => {
      const node = button(title, `Add ${title}`, () => {
        send(() => ({ op: "add", strategy }), null);
      });
      node.title = description;
      return node;
    }),
  );
  area.value = component.props.value.text;
  draw(component.props.value);
  component.watch("value", answered);
}
