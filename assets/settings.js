// The settings: sections in a list, in a drawer over the race.
import { make } from "./dom.js";
import { tabsIn } from "./tabs.js";

const drawer = () => document.querySelector("#settings");
const openers = () => document.querySelectorAll(".dd-settings, .dd-chip-model, .dd-use");
let tabs = null; // null before the drawer is loaded
let wanted = null; // the section to be shown as soon as it is there
let opener = null; // what gets the focus back

export const settingsOpen = () => drawer()?.dataset.open === "true";

// Opens the drawer at the section that its opener names; `load` has it loaded.
export function openSettings(by, load) {
  opener = by;
  wanted = by.dataset.section ?? null;
  if (tabs) show();
  else load();
}

function show() {
  document.dispatchEvent(new Event("dd-closed"));
  drawer().dataset.open = "true";
  for (const each of openers()) each.setAttribute("aria-expanded", true);
  document.querySelector(".gradio-container").dataset.covered = "true";
  tabs.open(wanted);
}

export function closeSettings() {
  if (!settingsOpen()) return;
  const inside = drawer().contains(document.activeElement);
  drawer().dataset.open = "false";
  for (const each of openers()) each.setAttribute("aria-expanded", false);
  delete document.querySelector(".gradio-container").dataset.covered;
  if (inside) opener?.focus();
}

// The focus stays in what lies over all else.
function keepFocus(event) {
  if (event.key !== "Tab") return;
  const can = [...drawer().querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']")];
  const reached = can.filter((node) => node.tabIndex >= 0 && !node.disabled && node.checkVisibility({ visibilityProperty: true }));
  const [first, last] = [reached[0], reached.at(-1)];
  const from = event.shiftKey ? first : last;
  if (document.activeElement !== from) return;
  event.preventDefault();
  (event.shiftKey ? last : first).focus();
}

export function start({ element, props, trigger }) {
  const panels = () => props.sections.map((_, i) => document.querySelector(`#section-${i}`));
  if (panels().some((panel) => !panel)) return setTimeout(() => start({ element, props, trigger }), 30);
  const list = element.querySelector("[role=tablist]");
  list.replaceChildren(
    ...props.sections.map(([title], i) => {
      const tab = make("button", "", title);
      Object.assign(tab, { type: "button", id: `section-tab-${i}`, role: "tab" });
      tab.setAttribute("aria-controls", `section-${i}`);
      return tab;
    }),
  );
  panels().forEach((panel, i) => {
    panel.setAttribute("role", "tabpanel");
    panel.setAttribute("aria-labelledby", `section-tab-${i}`);
  });
  drawer().setAttribute("role", "dialog");
  drawer().setAttribute("aria-label", "Settings");
  drawer().setAttribute("aria-modal", "true");
  const all = [...list.children];
  const told = (tab) => {
    const [, event] = props.sections[all.indexOf(tab)];
    if (event) trigger(event); // it asks the server as it is shown
  };
  tabs = tabsIn(list, told);
  tabs.open = (section) => {
    const tab = all[section] ?? list.querySelector("[aria-selected=true]");
    tabs.choose(tab);
    tab.focus();
  };
  element.querySelector(".dd-close").addEventListener("click", closeSettings);
  drawer().addEventListener("click", ({ target }) => target === drawer() && closeSettings());
  drawer().addEventListener("keydown", keepFocus);
  document.addEventListener("dd-begun", closeSettings);
  show();
}
