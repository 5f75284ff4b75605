// The race as it was at an earlier moment of the columns' own clocks, standing or moving: each card
// shows the rounds that it had by then (rounds.js).
import { finder, put, setData } from "./dom.js";
import { race, showBeginnings, showUntil } from "./rounds.js";
import { racing } from "./stream.js";
import { drawPlace, finish, finishedBy, showResult } from "./track.js";

const find = finder("board");
export const replay = { at: null, moving: 0, last: 0 }; // at: ms, or tokens; null: as it stands

const SLOWED = 0.25; // of a page that was just opened, and of a short race
const SHORT = 2500; // ms
let chosen = false; // how fast, by its reader
let said = ""; // at the top
const opening = () => find(".dd-board").dataset.phase === "opening";
const byTokens = () => find(".dd-replay-unit").value === "tokens";

const ENDINGS = ["th", "st", "nd", "rd"];
const ordinal = (n) => `${n}${ENDINGS[n] ?? ENDINGS[0]}`; // a race has at most 16 columns

// Before the finish, by how much one leads and each lane's place are as its lane is drawn now.
function drawSaid() {
  const lanes = race.cards.filter((it) => it.column.place && it.place !== "");
  const lengths = lanes.map((it) => Number(it.lane.count.textContent));
  const [first, second = 0] = [...lengths].sort((a, b) => b - a);
  const gap = first - second;
  const amount = gap ? `by ${gap} ${race.view.track.unit}${gap === 1 ? "" : "s"}` : "";
  put(find(".dd-status strong"), said.replace(/by$/, amount));
  const standing = replay.at === null ? finish() === null : find(".dd-board").dataset.finished === "no";
  if (!standing) return;
  lanes.forEach(({ lane }, i) => {
    const place = 1 + lengths.filter((length) => length > lengths[i]).length;
    const shared = lengths.filter((length) => length === lengths[i]).length > 1;
    drawPlace(lane, `${shared ? "=" : ""}${ordinal(place)}`);
  });
}

// The verdict, or how it stands, and what else is said of the race.
export function drawTop(first, rest = "") {
  said = first;
  drawSaid();
  put(find(".dd-status span"), rest && ` ${rest}`);
}

// How much of it there is by each round, in the unit that is chosen.
const places = (it) => (byTokens() ? it.tokens.slice(1) : it.rounds.map(([clock]) => clock));

// Lanes stand still from the photo finish on: the result follows.
function lastPlace() {
  const last = Math.max(0, ...race.cards.map((it) => places(it).at(-1) ?? 0));
  return byTokens() ? last : Math.min(last, finish() ?? last);
}

// What was said at that moment, and whether lanes had places. Races that run have no story yet, and by
// tokens nobody leads. Something is always said: without a line of text, all below would move.
function storyAt(at) {
  if (racing()) return null;
  if (byTokens()) return { said: `Each lane's last pass up to token ${Math.round(at)}`, placed: false };
  const told = race.view.story.findLast(([from]) => from <= at);
  return { said: told?.[1] ?? (opening() ? "A recorded race" : "A replay"), placed: Boolean(told) };
}

export function showMoment() {
  const on = replay.at !== null;
  const story = on ? storyAt(replay.at) : null;
  setData(find(".dd-board"), "replay", on ? "on" : "off");
  const finished = !on || (!byTokens() && finishedBy(replay.at));
  setData(find(".dd-board"), "finished", finished ? "yes" : "no");
  showResult(finished);
  for (const it of race.cards) {
    it.place = finished || !story ? null : story.placed ? it.column.place : "";
    const after = on ? places(it).findIndex((place) => place > replay.at) : -1;
    it.following = !on;
    showUntil(it, after < 0 ? it.rounds.length : after);
  }
  if (finished || !story) drawTop(race.view.top, race.view.rest);
  else drawTop(story.said);
  const most = Math.max(...race.cards.map((it) => (it.column.pace === "other" ? 0 : it.share)));
  for (const it of race.cards) setData(it.lane.root, "leads", String(it.share > 0 && it.share === most));
  drawControls();
}

// How far the first lane is.
const share = () => Math.max(0.02, ...race.cards.map((it) => it.share));

export function drawControls() {
  if (replay.at === null) chooseSpeed();
  const slider = find(".dd-replay-place");
  const end = lastPlace();
  const at = replay.at ?? end;
  slider.max = racing() ? end / share() : end; // so that it fills as the race goes on
  slider.step = byTokens() ? 1 : "any";
  if (slider !== document.activeElement || replay.moving) slider.value = at;
  const words = byTokens() ? `${Math.round(at)} tokens` : `${(at / 1000).toFixed(2)} s${opening() ? ", slowed" : ""}`;
  slider.setAttribute("aria-valuetext", words);
  put(find(".dd-replay-at"), replay.at === null ? "" : words);
  const button = find(".dd-replay-play");
  put(button, replay.moving ? "Pause" : "Replay");
  find(".dd-replay-live").hidden = replay.at === null;
}

function pause() {
  cancelAnimationFrame(replay.moving);
  replay.moving = 0;
}

// To a place, or with null to how it stands.
function goTo(place) {
  replay.at = place === null ? null : Math.min(Math.max(0, place), lastPlace());
  showMoment();
  if (place === null && !racing()) showBeginnings();
}

// By tokens, one lasts as long as with the fastest column.
function speed() {
  const factor = Number(find(".dd-replay-speed").value);
  if (!byTokens()) return factor;
  const rates = race.cards.map((it) => it.tokens.at(-1) / (it.rounds.at(-1)?.[0] ?? Infinity));
  return factor * Math.max(...rates);
}

function move(now) {
  const next = replay.at + (now - replay.last) * speed();
  replay.last = now;
  const over = next >= lastPlace();
  replay.moving = over ? 0 : requestAnimationFrame(move);
  goTo(over ? null : next);
}

function play() {
  if (replay.moving) {
    pause();
    drawControls();
    return;
  }
  document.dispatchEvent(new Event("dd-closed")); // the inspector shows a pass that is not yet there
  if (replay.at === null) goTo(0);
  replay.last = performance.now();
  replay.moving = requestAnimationFrame(move);
  drawControls();
}

// To the next place, forwards or back, at which something was shown in any column.
function step(forwards) {
  pause();
  const end = lastPlace();
  const here = replay.at ?? end;
  const every = [0, ...race.cards.flatMap(places)].filter((place) => place <= end);
  const beyond = every.filter((place) => (forwards ? place > here : place < here));
  if (beyond.length) goTo(forwards ? Math.min(...beyond) : Math.max(...beyond));
}

const KEYS = {
  p: play,
  ",": () => step(false),
  ".": () => step(true),
  l: () => {
    pause();
    goTo(null);
  },
};

function replayKey(event) {
  const typing = event.target.matches?.("input:not([type=range]), select, textarea");
  const act = KEYS[event.key];
  if (!act || typing || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  act();
}

// Of a page that was just opened: from the beginning, unless its reader wants nothing to move.
export function playOnce() {
  if (!matchMedia("(prefers-reduced-motion: reduce)").matches) play();
}

// A short race is slow to see, unless its reader has chosen how fast.
function chooseSpeed() {
  if (!chosen) find(".dd-replay-speed").value = opening() || (finish() ?? SHORT) < SHORT ? SLOWED : 1;
}

export function beginReplay() {
  pause();
  replay.at = null;
  find(".dd-replay-unit").value = "time";
  setData(find(".dd-board"), "replay", "off");
  setData(find(".dd-board"), "finished", "yes");
  showResult(true);
  for (const it of race.cards) it.place = null;
}

export function startReplay() {
  document.addEventListener("dd-glide", drawSaid);
  find(".dd-replay-play").addEventListener("click", play);
  find(".dd-replay-back").addEventListener("click", KEYS[","]);
  find(".dd-replay-next").addEventListener("click", KEYS["."]);
  find(".dd-replay-live").addEventListener("click", KEYS.l);
  find(".dd-replay-unit").addEventListener("change", KEYS.l);
  find(".dd-replay-speed").addEventListener("change", () => (chosen = true));
  find(".dd-replay-place").addEventListener("input", ({ target }) => {
    pause();
    goTo(Number(target.value));
  });
  find(".dd-board").addEventListener("keydown", replayKey);
}
