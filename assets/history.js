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
  const when = Number.isNaN(made.valueOf()) ? "" : made.toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
  box.setAttribute("aria-label", `Choose the race of ${when}`);
  box.addEventListener("change", () => {
    if (box.checked) chosen.add(race.link);
    else chosen.delete(race.link);
    drawActs();
  });
  const open = make("a", "", race.prompt || "A race");
  open.href = race.link;
  open.addEventListener("click", () => document.getElementById("tab-race").click());
  const words = make("div");
  words.append(open, make("p", "", race.headline ?? ""), make("p", "dd-note", [race.model, ...race.columns].filter(Boolean).join(" \u00b7 ")));
  item.append(box, words, make("time", "dd-note", when));
  return item;
}

// Two races at least can stand side by side.
function drawActs() {
  find("[data-act=compare]").disabled = chosen.size < 2;
  find("[data-act=forget]").disabled = !chosen.size;
}

function draw() {
  const wanted = find("input[type=search]").value.toLowerCase();
  const found = kept.races().filter((race) => JSON.stringify(race).toLowerCase().includes(wanted));
  find(".dd-history").dataset.empty = kept.races().length ? "no" : "yes";
  find(".dd-races").replaceChildren(...found.map(entry));
  if (wanted && !found.length) find(".dd-races").append(make("li", "dd-note", "No race matches."));
  drawActs();
}

const ACTS = {
  race() {
    document.getElementById("tab-race").click();
    document.getElementById("run").click();
  },
  compare({ props, trigger }) {
    props.value = { links: kept.races().map((race) => race.link).filter((link) => chosen.has(link)) };
    trigger("input");
  },
  forget() {
    const others = kept.races().filter((race) => !chosen.has(race.link));
    chosen.clear();
    kept.writeRaces(others);
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
