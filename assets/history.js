// The races that this browser keeps. All text goes in by textContent.
import { finder, make, table } from "./dom.js";
import { kept } from "./kept.js";

const find = finder("history");
const chosen = new Set(); // their numbers

function entry(race) {
  const item = make("li");
  const box = make("input");
  box.type = "checkbox";
  box.checked = chosen.has(race.id);
  box.setAttribute("aria-label", `Choose the race of ${moment(race)}`);
  box.addEventListener("change", () => {
    if (box.checked) chosen.add(race.id);
    else chosen.delete(race.id);
    drawActs();
  });
  const open = make("a", "", race.prompt || "A race");
  open.href = race.link || location.pathname;
  open.addEventListener("click", (event) => {
    if (!race.record) return; // too long to be kept: the page is loaded with its settings
    event.preventDefault();
    kept.open(race.record);
  });
  const words = make("div");
  const columns = race.columns.map(({ name, brief }) => [name, brief].filter(Boolean).join(" "));
  words.append(open, make("p", "", race.headline ?? ""), make("p", "dd-note", [race.model, ...columns].filter(Boolean).join(" \u00b7 ")));
  item.append(box, words, make("time", "dd-note", moment(race)));
  return item;
}

function moment(race) {
  const made = new Date(race.made);
  return Number.isNaN(made.valueOf()) ? "" : made.toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
}

// Two races at least can stand side by side.
function drawActs() {
  find("[data-act=compare]").disabled = chosen.size < 2;
  find("[data-act=forget]").disabled = !chosen.size;
}

function draw() {
  const wanted = find("input[type=search]").value.toLowerCase();
  const told = ({ prompt, model, headline, columns }) => JSON.stringify([prompt, model, headline, columns]);
  const found = kept.races().filter((race) => told(race).toLowerCase().includes(wanted));
  find(".dd-history").dataset.empty = kept.races().length ? "no" : "yes";
  find(".dd-races").replaceChildren(...found.map(entry));
  if (wanted && !found.length) find(".dd-races").append(make("li", "dd-note", "No race matches."));
  drawActs();
}

// What a column came to, and whether it wrote what it wrote in the first of the races.
function cell(column, first) {
  if (!column) return "";
  if (first === column || !first?.text || !column.text) return column.result;
  return `${column.result}, ${first.text === column.text ? "same text" : "different text"}`;
}

const ACTS = {
  race() {
    document.getElementById("tab-race").click();
    document.getElementById("run").click();
  },
  compare() {
    const races = kept.races().filter(({ id }) => chosen.has(id));
    const names = new Map(races.flatMap(({ columns }) => columns.map(({ setting, name }) => [setting, name])));
    const of = (race, setting) => race.columns.find((column) => column.setting === setting);
    const lines = [...names].map(([setting, name]) => [name, ...races.map((race) => cell(of(race, setting), of(races[0], setting)))]);
    const headings = races.map((race) => `${race.prompt} (${moment(race)})`);
    find(".dd-scroll").replaceChildren(table(["column", ...headings], lines, { named: true }));
  },
  forget() {
    const others = kept.races().filter(({ id }) => !chosen.has(id));
    chosen.clear();
    kept.writeRaces(others);
    find(".dd-scroll").replaceChildren();
  },
};

export function start({ element }) {
  element.addEventListener("click", ({ target }) => ACTS[target.dataset.act]?.());
  find("input[type=search]").addEventListener("input", draw);
  document.addEventListener("dd-kept", draw);
  draw();
}
