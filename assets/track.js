// The track: a lane for each column, all of them on one scale. A lane is as long as what its column had
// written at a reading of its own clock: while they race, the latest one that all have reached. It stands
// still from the reading at which the first one had finished: the photo finish. All text goes in by
// textContent: none of it is markup.
import { finder, make, put, setData, setStyle } from "./dom.js";

const find = finder("board");
const CLOCK = 0;
const STEPS = [1, 2, 5];
const FEWEST = 4; // ticks, at least
const ROOM = 46; // pixels that a number needs between the head of its lane and the flag
const GAP = 3; // pixels, at least, from the flag to a lane that is not there yet
const LOOK = 250; // ms between two looks at a race
const ZOOM = 600; // ms in which the scale shrinks to the finish, and lanes go to their speed-ups
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const moving = new Set(); // lanes on their way
let drawn = ""; // of the scale
let width = 800; // of the lanes, in pixels
let scale = { unit: "token", flag: 0, end: "", about: "", axis: "", speeds: null, finish: null, now: null };
let end = 0; // of the scale that is drawn: `scale` changes in place
let racing = false; // when it was drawn
let result = true; // is on show, unless a moment of a replay is
let zoom = null; // of the photo finish: from which end, since when

export function laneOf(column) {
  const root = make("li", "dd-lane");
  const who = make("div", "dd-who");
  const gist = make("span", "dd-gist");
  who.title = `${column.title}: ${column.description}`;
  who.append(make("strong", "", column.title), gist);
  const course = make("div", "dd-course");
  const [rail, fill, read, runner, count] = ["rail", "fill", "read", "runner", "count"].map((name) => make("div", `dd-${name}`));
  rail.append(fill, read);
  runner.append(count);
  course.append(rail, runner);
  const place = make("span", "dd-place");
  const speed = make("p", "dd-speed");
  const [factor, pace] = [make("strong"), make("span")];
  speed.append(factor, pace);
  root.append(who, course, place, speed);
  return { root, gist, fill, read, runner, count, place, factor, pace };
}

// From which share of a lane on the flag would lie on its number.
const near = () => 1 - ROOM / width;

// Round numbers, a few: multiples of `step`, or of a larger one.
function ticks(most, step) {
  for (let i = 0; most / step > 2 * FEWEST; i++) step = STEPS[i % 3] * 10 ** Math.floor(i / 3);
  const all = [];
  for (let at = 0; at < most; at += step) all.push(at);
  return all;
}

// Where ticks stand, and their text: of tokens, or of the speeds that the bars are from the finish on.
function marks() {
  if (!result || !scale.speeds) return ticks(end, 1).map((at) => [at, String(at)]);
  return ticks(scale.speeds, 0.5).map((at) => [(at / scale.speeds) * scale.flag, `${at}\u00d7`]);
}

export const finish = () => scale.finish;
export const finishedBy = (clock) => scale.finish !== null && clock >= scale.finish;

// Where a number lies on the flag or behind it, there is its line alone.
const label = (at, text) => (width * (scale.flag - at) > end * (8 + 7 * text.length) ? text : "");

function tick(name, share, text) {
  const node = make("span", name, text);
  node.style.left = `${100 * share}%`;
  return node;
}

// Anew where only the window has changed.
export function drawScale(now = scale) {
  if (now.finish === null) zoom = null;
  else if (racing && now.flag < end && !calm.matches) zoom = { from: end, since: document.timeline.currentTime };
  racing = now.now !== null && now.finish === null;
  scale = now;
  width = find(".dd-scale").clientWidth || width;
  setData(find(".dd-track"), "finish", now.finish === null ? "" : "photo");
  setData(find(".dd-track"), "noisy", String(now.noisy));
  put(find(".dd-unit"), now.about);
  drawTicks(document.timeline.currentTime);
}

export function showResult(on) {
  if (result === on) return;
  result = on;
  drawTicks(document.timeline.currentTime);
}

function drawTicks(now) {
  const part = zoom ? Math.min(1, (now - zoom.since) / ZOOM) : 1;
  end = part < 1 ? zoom.from + part * (2 - part) * (scale.flag - zoom.from) : scale.flag;
  if (part === 1) zoom = null;
  put(find(".dd-axis-name"), result ? scale.axis : "");
  const wanted = `${end} ${scale.flag} ${scale.end} ${width} ${result && scale.speeds}`;
  if (drawn === wanted) return;
  drawn = wanted;
  const all = marks().map(([at, text]) => tick("dd-tick", at / end, label(at, text)));
  find(".dd-scale").replaceChildren(...all, tick("dd-flag", end ? scale.flag / end : 1, end ? scale.end : ""));
}

// How far the lane is after `n` rounds.
const lengthAt = (it, n) => (scale.unit === "token" ? it.tokens[n] : it.letters[n]);

// The head of a lane, and the number at it.
function drawHead(it, length) {
  const share = end && Math.min(1, length / end);
  const percent = 100 * (share < 1 ? Math.min(share, 1 - GAP / width) : 1);
  it.head = length;
  setStyle(it.lane.fill, "transform", `translateX(${percent - 100}%)`);
  setStyle(it.lane.runner, "transform", `translateX(${percent}%)`);
  put(it.lane.count, it.counts ? String(Math.floor(length) || "") : ""); // rounded down: only ties look alike
}

// A lane that races goes on until the next look, its number with it; at the finish the scale does.
function glide(now) {
  if (zoom) drawTicks(now);
  for (const it of moving) {
    const part = Math.min(1, Math.max(0, now - it.since) / it.takes);
    drawHead(it, it.from + part * (it.to - it.from));
    if (part === 1 && !zoom) moving.delete(it);
  }
  document.dispatchEvent(new Event("dd-glide"));
  if (moving.size) requestAnimationFrame(glide);
}

export function drawPlace(lane, place) {
  setData(lane.root, "place", place);
  put(lane.place, place);
  lane.place.title = place.startsWith("=") ? "Too close to tell apart" : "";
}

// The rounds that a lane shows: those up to the photo finish, and from then on how fast it is.
export function drawLane(it) {
  const { lane, column } = it;
  let n = it.shown;
  const end = scale.finish ?? (it.following ? scale.now : null) ?? Infinity;
  while (n && it.rounds[n - 1][CLOCK] > end) n -= 1;
  const settled = it.place === null ? column.settled : null;
  const length = settled ?? lengthAt(it, n);
  it.share = scale.flag && Math.min(1, length / scale.flag);
  it.counts = settled === null || it.share === 1; // a bar of a speed has no number of tokens
  const settles = settled !== null && it.head !== undefined && it.head !== settled;
  const since = performance.now();
  const takes = Math.max(LOOK, zoom ? zoom.since + ZOOM - since : 0); // together with the scale
  Object.assign(it, { from: it.head ?? 0, to: length, since, takes });
  if ((scale.finish === null || zoom || settles) && it.following && !calm.matches) {
    if (!moving.size) requestAnimationFrame(glide);
    moving.add(it);
  } else {
    moving.delete(it);
    drawHead(it, length);
  }
  setData(lane.root, "near", String(it.share > near() && it.share < 1));
  setData(lane.root, "state", column.state);
  setStyle(lane.read, "transform", `scaleX(${column.read})`);
  setData(lane.root, "pace", column.pace);
  drawPlace(lane, it.place ?? column.place); // at a moment of a replay, or as the race stands
  put(lane.gist, column.lane || column.gist);
  put(lane.factor, column.speed);
  put(lane.pace, column.pace_text);
}
