// Draws the view that backend/web/view.py makes, which holds every word and figure; nothing is decided
// here. All text goes in by textContent: none of it is markup.
import { card, drawColumn } from "./card.js";
import { finder, fit, make, put, setData } from "./dom.js";
import { keepAddress } from "./kept.js";
import { beginReplay, drawControls, drawTop, playOnce, replay, showMoment, startReplay } from "./replay.js";
import { race, showBeginnings, sight } from "./rounds.js";
import { drawLane, drawScale } from "./track.js";
import { listenTo, RUNNING, views } from "./stream.js";
import { drawGlossary, drawWhy, startWhy } from "./why.js";

const find = finder("board");
const STILL = 10000; // ms after which the page says why nothing moves
const LINES = 90; // pixels: of the texts, their names and a few lines
const ORIGINS = {
  drafted: "guessed right",
  forced: "forced by the grammar",
  fixed: "text of the program",
};
let answer = null; // the component, which holds what the server answered
let about = ""; // what the line-up on show is for
let purpose = ""; // what the line-up is for that was chosen beside a race
let stillness = 0; // the timer of what is said when nothing has moved for long
let undrawn = null; // the newest view, where nobody looks
let won = ""; // the title of the column that was first in the last race that had one

// The legend tells of the marks that there are to see.
function drawLegend() {
  const shown = Object.keys(ORIGINS).filter((origin) => race.seen.has(origin));
  fit(find(".dd-legend"), shown, (origin) => {
    const entry = make("li");
    entry.append(make("span", `dd-${origin}`, ORIGINS[origin]));
    return entry;
  });
}

// From the prompt, beside which there is Stop, to the first lines of the texts.
function bringToSight(board) {
  document.dispatchEvent(new Event("dd-begun")); // page.js closes the settings
  const first = document.getElementById("bar") ?? board;
  const { top } = first.getBoundingClientRect();
  const texts = find(".dd-columns").getBoundingClientRect();
  if (top < 0 || texts.top + LINES > window.innerHeight) first.scrollIntoView({ block: "start" });
}

// Run and Stop are one place: whoever has the focus there, or on what vanishes, has it there.
function setPhase(board, phase) {
  if (board.dataset.phase === phase) return;
  const [from, to] = RUNNING.includes(phase) ? ["run", "stop"] : ["stop", "run"];
  const vanish = `#${from}, .dd-recorded button, .dd-again`;
  const kept = document.activeElement?.matches(vanish);
  board.dataset.phase = phase;
  if (kept) document.getElementById(to)?.focus();
}

// What a race that runs says at the top changes with every token: it is not read out, but which columns
// are faster is.
function say({ phase, status, top, rest }) {
  const live = phase === "racing";
  find(".dd-status").setAttribute("aria-live", live ? "off" : "polite");
  put(find(".dd-spoken"), live ? status : "");
  if (replay.at === null) drawTop(top, rest);
}

function drawEnd(view) {
  find(".dd-doubt").hidden = !view.doubt;
  put(find(".dd-doubt span"), view.status.startsWith(view.doubt) ? "" : view.doubt);
  find(".dd-again").hidden = !view.doubt || Boolean(view.recorded);
}

function begin(board, view) {
  board.dataset.phase = ""; // so that whoever watches it hears of another race in the same phase
  race.number = view.race;
  race.seen = new Set();
  setData(board, "code", "no");
  about = view.race ? about : view.status;
  purpose = "";
  put(find(".dd-alert"), "");
  race.cards = view.columns.map(card);
  markFirst();
  find(".dd-lanes").replaceChildren(...race.cards.map((it) => it.lane.root));
  find(".dd-columns").replaceChildren(...race.cards.map((it) => it.root));
  sight.disconnect();
  for (const it of race.cards) sight.observe(it.strip.svg);
  beginReplay();
}

// On a phone, where texts stand beside one another, the winner's is the first; while the next race runs
// it still is.
function markFirst() {
  for (const { root, column } of race.cards) setData(root, "first", column.title === won ? "yes" : "no");
}

function showWinner() {
  won = race.cards.find(({ column }) => column.place.endsWith("1st"))?.column.title ?? won;
  markFirst();
  const columns = find(".dd-columns");
  void columns.offsetWidth; // or it would follow the text that was the first
  columns.scrollLeft = 0;
}

// Whole texts are as high as the highest: asked for, as all below moves.
function offerWhole(whole) {
  const button = find(".dd-whole");
  button.setAttribute("aria-pressed", String(whole));
  const cut = () => race.cards.some(({ text: { box } }) => box.scrollHeight > box.clientHeight + 1);
  button.hidden = !whole && !cut();
}

// Of a race that was run elsewhere or earlier. The address is that of its settings.
function drawRecorded({ phase, recorded, place, link }) {
  if (link) keepAddress(link);
  put(find(".dd-recorded span"), recorded ?? "");
  find(".dd-recorded span").title = place ?? "";
  find(".dd-recorded").hidden = !recorded;
  find(".dd-recorded button").hidden = phase === "opening";
}

function showAlert(sentence) {
  document.dispatchEvent(new Event("dd-closed")); // the inspector: it would lie over it
  put(find(".dd-alert"), sentence);
}

// What the server answered: a line-up, a race from elsewhere, a sentence, or that something has begun.
function answered() {
  const { value } = answer.props;
  if (value?.begun) listenTo(value);
  else if (value?.alert) showAlert(value.alert);
  else if (value) show(value);
}

function showPreparation({ preparing }) {
  if (find(".dd-board").dataset.phase === "idle") drawTop(preparing || about);
}

// Nothing runs any more: a race that still does so here is not there, and the sentence says so.
function showEnd(sentence) {
  const board = find(".dd-board");
  if (!RUNNING.includes(board.dataset.phase)) return;
  clearTimeout(stillness);
  put(find(".dd-alert"), sentence);
  put(find(".dd-spoken"), "");
  drawTop("");
  setPhase(board, "ended");
}

function show(view) {
  const board = find(".dd-board");
  if (view.race === 0) put(find(".dd-alert"), ""); // another line-up was chosen
  if (view.race < race.number) {
    if (view.phase === "idle") intend(view.top);
    return;
  }
  undrawn = document.hidden ? view : null;
  if (undrawn) {
    setPhase(board, view.phase); // the rest once somebody looks
    return;
  }
  const fresh = view.race > race.number || view.race === 0;
  if (view.glossary) drawGlossary(view.glossary);
  if (fresh) begin(board, view);
  const over = !RUNNING.includes(view.phase) && (fresh || RUNNING.includes(board.dataset.phase));
  const begun = view.race && (fresh || (view.phase === "racing" && board.dataset.phase !== "racing"));
  setPhase(board, view.phase);
  if (begun) bringToSight(board);
  race.view = view;
  say(view);
  clearTimeout(stillness);
  if (RUNNING.includes(view.phase)) stillness = setTimeout(() => drawTop(view.top, view.still), STILL);
  put(find(".dd-setup"), view.setup);
  drawRecorded(view);
  drawScale(view.track.flag ? view.track : undefined); // another line-up says nothing of the scale
  view.columns.forEach((column, i) => drawColumn(race.cards[i], column));
  if (over) showBeginnings();
  if (over) showWinner();
  if (over) offerWhole(false);
  if (replay.at === null) drawControls();
  else showMoment();
  drawLegend();
  if (fresh && view.phase === "opening") playOnce();
  drawEnd(view);
  drawWhy(view);
}

// The value goes too: were it there still, the same alert would be no news.
function clearAlert() {
  put(find(".dd-alert"), "");
  if (purpose) intend("");
  if (answer.props.value?.alert) answer.props.value = null;
}

// What is dimmed is of another prompt or other columns.
function sayStale(stale) {
  if (RUNNING.includes(find(".dd-board").dataset.phase) || !race.view) return;
  if (!stale) showMoment();
  else if (purpose) drawTop(purpose, "Press Run to race this. Below: the last race.");
  else drawTop("Press Run to race this.", "Below: the last race.");
}

function intend(words) {
  purpose = words;
  if (find(".dd-board").dataset.stale === "yes") sayStale(true);
}

// Beside the verdict; on a phone, which has no room there, below the replay.
function placeExport() {
  const narrow = matchMedia("(max-width: 640px)");
  const place = () => {
    const held = document.activeElement;
    find(narrow.matches ? ".dd-replay" : ".dd-status").after(find(".dd-export"));
    held.focus();
  };
  narrow.addEventListener("change", place);
  place();
}

export function start(component) {
  answer = component;
  placeExport();
  startReplay();
  // Why a race was refused may be gone once the form is changed.
  for (const change of ["input", "change"]) document.addEventListener(change, clearAlert, { capture: true });
  find(".dd-dismiss").addEventListener("click", clearAlert);
  find(".dd-recorded button").addEventListener("click", () => document.getElementById("run")?.click());
  find(".dd-whole").addEventListener("click", ({ target }) => offerWhole(target.ariaPressed !== "true"));
  find(".dd-again").addEventListener("click", () => component.trigger("retry"));
  startWhy();
  component.watch("value", answered);
  document.addEventListener("dd-race", ({ detail }) => show(detail));
  document.addEventListener("dd-preparing", ({ detail }) => showPreparation(detail));
  document.addEventListener("dd-stale", ({ detail }) => sayStale(detail));
  document.addEventListener("dd-end", ({ detail }) => showEnd(detail));
  document.addEventListener("visibilitychange", () => undrawn && show(undrawn));
  window.addEventListener("resize", () => {
    drawScale();
    race.cards.forEach(drawLane);
  });
  answered();
  if (views.preparing) showPreparation(views.preparing);
  if (views.race) show(views.race);
}
