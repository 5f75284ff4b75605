// The race on show as a link or a file, which backend/web/export.py makes. Where a frame forbids the
// clipboard, there is a field to copy from.
import { finder } from "./dom.js";
import { kept } from "./kept.js";
import { race } from "./rounds.js";
import { startMenu } from "./tabs.js";

const find = finder("board");
let component = null; // which is asked, and holds the answer
const wanted = new Set(); // the forms that are still to come; "kept": a link, to be kept
let offered = -1; // the number of the race that was last asked for to be kept

// What Share says of the address bar: for a race that a link opened, and for one that was run here.
const OPENED = "The link shows this race, as the address bar does.";
const RUN = "The link shows this race. The address bar only holds its settings.";

// What the server makes where the page makes something else of it.
const MADE_OF = { png: "svg", "curve-png": "curve-svg" };

function clear() {
  find(".dd-export p").textContent = "";
  find(".dd-export input").hidden = true;
}

function ask(form) {
  wanted.add(form);
  if (form !== "kept") clear();
  send(form);
}

function send(form) {
  component.props.value = { ask: MADE_OF[form] ?? form, form, race: race.number };
  component.trigger("input");
}

function save(name, blob) {
  const link = document.createElement("a");
  link.download = name;
  link.href = URL.createObjectURL(blob);
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

// The drawing in pixels, as the fonts here have it.
async function pixels(svg) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  const finer = image.width < 1000 ? 2 : 1;
  [canvas.width, canvas.height] = [finer * image.width, finer * image.height];
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

async function saveFile([name, kind, content], form) {
  if (form.endsWith("png")) save(name.replace("svg", "png"), await pixels(content));
  else save(name, new Blob([content], { type: kind }));
}

async function copy(address, told) {
  const [field, note] = [find(".dd-export input"), find(".dd-export p")];
  field.value = address;
  try {
    await navigator.clipboard.writeText(address);
    note.textContent = `Link copied. ${told}`;
  } catch {
    field.hidden = false;
    field.focus();
    field.select();
    note.textContent = `Copy the link from here. ${told}`;
  }
  note.scrollIntoView({ block: "nearest" });
}

function settle({ form, link, note: told, file, about }) {
  if (file) saveFile(file, form);
  else if (link && form === "kept") kept.add(link, about);
  else if (link) copy(location.href.split("#")[0] + link, told);
  else if (form !== "kept") find(".dd-export p").textContent = told;
}

// What is asked for twice at nearly the same time may be the later one both times.
function answered() {
  const answer = component.props.value ?? {};
  if (wanted.delete(answer.form)) settle(answer);
  const [next] = wanted;
  if (next) send(next);
}

// A race that has ended can be taken along, and is kept in this browser, if it is not yet.
function offer(board) {
  const row = find(".dd-export");
  const ended = board.dataset.phase === "ended" && race.seen.size > 0; // something was written
  // A short race may be drawn for the first time once it has ended.
  const opened = !board.querySelector(".dd-recorded").hidden;
  const here = opened && kept.races().some(({ link }) => link === location.hash);
  if (ended && !here && (row.hidden || race.number !== offered)) {
    offered = race.number;
    setTimeout(() => ask("kept"), 300);
  }
  row.hidden = !ended;
  if (!ended) wanted.clear();
  const known = !board.querySelector("#dd-tab-costs").hidden;
  for (const button of row.querySelectorAll("[data-form^=curve]")) button.hidden = !known;
  find(".dd-use").hidden = race.view?.track.unit === "character"; // no other library has slots
  clear();
}

function attach() {
  const board = document.querySelector(".dd-board");
  if (!board) return setTimeout(attach, 200);
  find(".dd-export").addEventListener("click", ({ target }) => {
    const form = target.closest("[data-form]")?.dataset.form; // a button's second line is a node in it
    if (form) ask(form);
  });
  find("#dd-share").addEventListener("beforetoggle", () => {
    const opened = !find(".dd-recorded").hidden; // by a link, which the address is
    find("#dd-share small").textContent = opened ? OPENED : RUN;
  });
  for (const name of ["#dd-share", "#dd-download"]) startMenu(find(name));
  document.addEventListener("pointerdown", ({ target }) => find(".dd-export").contains(target) || clear());
  const phases = new MutationObserver(() => offer(board));
  phases.observe(board, { attributeFilter: ["data-phase"] });
  phases.observe(board.querySelector("#dd-tab-costs"), { attributeFilter: ["hidden"] });
  offer(board);
}

export function start(given) {
  component = given;
  component.watch("value", answered);
  attach();
}
