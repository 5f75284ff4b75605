// The chip beside Run: what the next race runs on. It is there from the start, so it also has the
// settings loaded when they are opened for the first time.
import { finder, put } from "./dom.js";
import { openSettings } from "./settings.js";
import { startStale } from "./stale.js";

const find = finder("chip");
let models = {}; // titles by key

export function showForm(key, hub, precision, tokens, temperature) {
  const model = models[key] ?? hub;
  const sampling = temperature ? `temperature ${temperature}` : "greedy";
  put(find("button"), [model, precision, `${tokens} tokens`, sampling].filter(Boolean).join(" \u00b7 "));
  find("button").title = "Model, precision, tokens, temperature: change them";
  return [];
}

export function start({ props, trigger }) {
  models = props.models;
  startStale();
  document.addEventListener("click", ({ target }) => {
    const opener = target.closest?.(".dd-settings, .dd-chip-model");
    if (opener) openSettings(opener, () => trigger("expand"));
  });
}
