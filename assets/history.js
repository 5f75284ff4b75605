// The races that this browser keeps, as links that hold them. All text goes in by textContent.
import { finder, make, table } from "./dom.js";
import { kept } from "./kept.js";

const find = finder("history");
const chosen = new Set(); // their links

function entry(race) {
  const item = make("li");
  const box = make("input");
  box.type = "checkbox";
  box.checked = chosen.has(race.link);
  const made = new Date(race.made);
  const when = Number.isNaN(made.valueOf()) ? "" : made.toLocaleString();
  box.setAttribute("aria-label", `Choose the race of ${when}`);
  box.addEventListener("change", () => (box.checked ? chosen.add(race.link) : chosen.delete(race.link)));
  const open = make("a", "", race.prompt || "A race");
  open.href = race.link;
  open.addEventListener("click", () => document.querySelector("#views button[role=tab]")?.click());
  const words = make("div");
  words.append(open, make("p", "dd-note", `${when}: ${race.columns.join(", ")}. ${race.headline ?? ""}`));
  item.append(box, words);
  return item;
}

function draw() {
  const wanted = find("input[type=search]").value.toLowerCase();
  const found = kept.races().filter((race) => JSON.stringify(race).toLowerCase().includes(wanted));
  const list = find(".dd-races");
  list.replaceChildren(...found.map(entry));
  if (!found.length) list.append(make("li", "dd-note", wanted ? "No race matches." : "No race yet."));
}

const ACTS = {
  compare({ props, trigger }) {
    props.value = { links: kept.races().map((race) => race.link).filter((link) => chosen.has(link)) };
    trigger("input");
  },
  forget() {
    kept.writeRaces(kept.races().filter((race) => !chosen.has(race.link)));
    chosen.clear();
    find(".dd-scroll").replaceChildren();
  },
};

export function start(component) {
  const { element, props, watch } = component;
  element.addEventListener("click", ({ target }) => ACTS[target.dataset.act]?.(component));
  find("input[type=search]").addEventListener("input", draw);
  document.addEventListener("dd-kept", draw);
  watch("value", () => {
    const { note, headings, lines } = props.value ?? {};
    find("[role=status]").textContent = note ?? "";
    if (lines) find(".dd-scroll").replaceChildren(table(headings, lines, { named: true }));
  });
  draw();
}
