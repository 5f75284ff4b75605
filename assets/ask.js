// The examples as chips, the prompt, Run, and the chip that says what the next race runs on. It is there
// from the start, so it also has the settings loaded when they are opened for the first time.
import { button, finder, make } from "./dom.js";
import { openSettings } from "./settings.js";
import { startStale } from "./stale.js";

const find = finder("ask");
const IN_SIGHT = 5; // examples; the others are behind "More"
let models = {}; // titles by key

export function showForm(key, hub, precision, tokens, temperature) {
  const sampling = temperature ? `temperature ${temperature}` : "greedy";
  const rest = [precision, `${tokens} tokens`, sampling].join(" \u00b7 ");
  const parts = [make("span", "", models[key] ?? hub), make("i", "", " \u00b7 "), make("span", "", rest)];
  find(".dd-chip-model").replaceChildren(...parts); // two lines where there is room
  return [];
}

// A long prompt that nobody edits shows how it begins and its last paragraph: after worked examples,
// that is the question.
function gist(text) {
  const parts = text.trim().split(/\n\s*\n/);
  return parts.length > 2 ? `${parts[0].split("\n")[0]} \u2026 ${parts.at(-1)}` : text;
}

function startExamples({ props, trigger }, show) {
  const chips = props.examples.map(([label, prompt], i) => {
    const chip = button(label, "", () => {
      props.value = prompt;
      show();
      trigger("select");
    });
    chip.hidden = i >= IN_SIGHT;
    return chip;
  });
  const more = button("More", "More examples", () => {
    const open = more.getAttribute("aria-expanded") === "false";
    more.setAttribute("aria-expanded", open);
    more.textContent = open ? "Less" : "More";
    chips.forEach((chip, i) => (chip.hidden = !open && i >= IN_SIGHT));
  });
  more.setAttribute("aria-expanded", false);
  find(".dd-examples").append(...chips, more);
  return (text) => chips.forEach((chip, i) => chip.setAttribute("aria-pressed", props.examples[i][1] === text));
}

export function start(component) {
  const { props, trigger, watch } = component;
  const [box, area] = [find("#prompt"), find("textarea")];
  let mark = null; // marks the example whose prompt stands in the box
  const show = () => {
    const text = String(props.value ?? "");
    if (area.value !== text) area.value = text;
    box.dataset.gist = gist(text);
    mark(text);
  };
  mark = startExamples(component, show);
  models = props.models;
  startStale();
  area.addEventListener("input", () => {
    props.value = area.value;
    show();
    trigger("input");
  });
  find("#run").addEventListener("click", () => trigger("submit"));
  find("#continue").addEventListener("click", () => trigger("play"));
  watch("value", show);
  show();
  document.addEventListener("click", ({ target }) => {
    const opener = target.closest?.(".dd-settings, .dd-chip-model");
    if (opener) openSettings(opener, () => trigger("expand"));
  });
}
