// The examples as chips, the prompt, Run, and the chip that says what the next race runs on. It is there
// from the start, so it also has the settings loaded when they are opened for the first time.
import { button, finder, make } from "./dom.js";
import { openSettings } from "./settings.js";
import { startStale } from "./stale.js";

const find = finder("ask");
const IN_SIGHT = 5; // examples; the others are behind "More"
const HEAD = 12; // characters with which a prompt that is still the example's begins
const PATIENCE = 1000; // ms for which Run waits for the columns that go with a prompt
let models = {}; // titles by key
let settling = false; // they are awaited
let run = false; // Run was pressed meanwhile
let submit = null;

// The columns are there, or late.
export function settle() {
  settling = false;
  if (run) submit();
  run = false;
  return [];
}

export function showForm(key, hub, precision, tokens, temperature) {
  const sampling = temperature ? `temperature ${temperature}` : "greedy";
  const rest = [precision, `${tokens} tokens`, sampling].join(" \u00b7 ");
  find(".dd-chip-model").replaceChildren(make("span", "", models[key] ?? hub), make("span", "", rest));
  return [];
}

// Whether the reader has another prompt in mind, instead of a change to the example's.
function replaces(text, example) {
  const [head, begun] = [example.slice(0, HEAD), text.trimStart()];
  return begun !== "" && !begun.startsWith(head) && !head.startsWith(begun);
}

// A long prompt that nobody edits shows how it begins and its last paragraph: after worked examples,
// that is the question.
function gist(text) {
  const parts = text.trim().split(/\n\s*\n/);
  return parts.length > 2 ? `${parts[0].split("\n")[0]} \u2026 ${parts.at(-1)}` : text;
}

function startExamples({ props }, show, choose) {
  const isChosen = (i) => props.examples[i][1] === props.value;
  const chips = props.examples.map(([label, prompt]) =>
    button(label, "", () => {
      props.value = prompt;
      show();
      choose();
      unfold(false);
    }),
  );
  // The one that is chosen stays in sight.
  const unfold = (open) => {
    more.setAttribute("aria-expanded", open);
    more.textContent = open ? "Less" : "More";
    chips.forEach((chip, i) => (chip.hidden = !open && i >= IN_SIGHT && !isChosen(i)));
  };
  const more = button("More", "More examples", () => unfold(more.getAttribute("aria-expanded") === "false"));
  unfold(false);
  find(".dd-examples").append(...chips, more);
  return () => chips.forEach((chip, i) => chip.setAttribute("aria-pressed", isChosen(i)));
}

export function start(component) {
  const { props, trigger, watch } = component;
  const [box, area] = [find("#prompt"), find("textarea")];
  let mark = null; // marks the example whose prompt stands in the box
  let example = ""; // the prompt of the last one that stood there, until there is quite another
  const show = () => {
    const text = String(props.value ?? "");
    if (area.value !== text) area.value = text;
    box.dataset.gist = gist(text);
    mark(text);
    if (props.examples.some(([, prompt]) => prompt === text)) example = text;
  };
  const choose = () => {
    settling = true;
    setTimeout(settle, PATIENCE);
    trigger("select");
  };
  submit = () => trigger("submit");
  mark = startExamples(component, show, choose);
  models = props.models;
  startStale();
  area.addEventListener("input", () => {
    props.value = area.value;
    show();
    trigger("input");
    if (!replaces(area.value, example)) return;
    example = "";
    choose();
  });
  find("#run").addEventListener("click", () => {
    if (settling) run = true;
    else submit();
  });
  watch("value", show);
  show();
  document.addEventListener("click", ({ target }) => {
    const opener = target.closest?.(".dd-settings, .dd-chip-model, .dd-use");
    if (opener) openSettings(opener, () => trigger("expand"));
  });
}
