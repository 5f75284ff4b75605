// The race on show as a file, which backend/web/export.py makes, and a link with its settings. Where a
// frame forbids the clipboard, there is a field to copy from.
import { finder } from "./dom.js";
import { kept } from "./kept.js";
import { race } from "./rounds.js";
import { startMenu } from "./tabs.js";

const find = finder("board");
let component = null; // which is asked, and holds the answer
const wanted = new Set(); // the forms that are still to come; "kept": the race, for the history
let offered = -1; // the number of the race that was last asked for to be kept

function clear() {
  find(".dd-export p").textContent = "";
  find(".dd-export input").hidden = true;
}

function ask(form) {
  wanted.add(form);
  if (form !== "kept") clear();
  component.props.value = { form, race: race.number };
  component.trigger("input");
}

function save([name, kind, content]) {
  const link = document.createElement("a");
  link.download = name;
  link.href = URL.createObjectURL(new Blob([content], { type: kind }));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

async function copyLink() {
  const [field, note] = [find(".dd-export input"), find(".dd-export p")];
  clear();
  const { link } = race.view;
  if (!link) {
    note.textContent = "The settings are too long for a link: download the race as JSON.";
    return;
  }
  field.value = location.href.split(/[?#]/)[0] + link;
  try {
    await navigator.clipboard.writeText(field.value);
    note.textContent = "Link copied. It holds the settings: its reader can run the same race.";
  } catch {
    field.hidden = false;
    field.focus();
    field.select();
    note.textContent = "Copy the link from here.";
  }
  note.scrollIntoView({ block: "nearest" });
}

// What is asked for twice at nearly the same time may be the later one both times.
function answered() {
  const { form, note, file, kept: entry } = component.props.value ?? {};
  if (wanted.delete(form)) {
    if (file) save(file);
    else if (entry) kept.add(entry);
    else if (form !== "kept") find(".dd-export p").textContent = note;
  }
  const [next] = wanted;
  if (next) ask(next);
}

// A race that has ended can be taken along, and is kept in this browser, if it is not yet.
function offer(board) {
  const row = find(".dd-export");
  const ended = board.dataset.phase === "ended" && race.seen.size > 0; // something was written
  const opened = !board.querySelector(".dd-recorded").hidden; // out of the history
  // A short race may be drawn for the first time once it has ended.
  if (ended && !opened && (row.hidden || race.number !== offered)) {
    offered = race.number;
    setTimeout(() => ask("kept"), 300);
  }
  row.hidden = !ended;
  if (!ended) wanted.clear();
  find(".dd-use").hidden = race.view?.track.unit === "character"; // no other library has slots
  clear();
}

function attach() {
  const board = document.querySelector(".dd-board");
  if (!board) return setTimeout(attach, 200);
  find(".dd-export").addEventListener("click", ({ target }) => {
    const { form } = target.dataset;
    if (form) ask(form);
  });
  find(".dd-link").addEventListener("click", copyLink);
  startMenu(find("#dd-download"));
  document.addEventListener("pointerdown", ({ target }) => find(".dd-export").contains(target) || clear());
  new MutationObserver(() => offer(board)).observe(board, { attributeFilter: ["data-phase"] });
  offer(board);
}

export function start(given) {
  component = given;
  component.watch("value", answered);
  attach();
}
