// What this browser keeps, so that leaving the page loses nothing: the form, the address's query
// that this page wrote itself, and past races. A tab's own is what it kept itself. Where there is no
// storage, nothing is kept and all else works.
import { changed } from "./lineup.js";

const FORM = "decode-derby-form";
const ADDRESS = "decode-derby-address";
const TAB = "sessionStorage";
export const FRAMED = window.parent !== window;

export const kept = {
  read(key, storage = "localStorage") {
    try {
      return window[storage].getItem(key) || "";
    } catch {
      return "";
    }
  },
  write(key, text, storage = "localStorage") {
    try {
      window[storage].setItem(key, text);
      return true;
    } catch {
      return false; // it is full, or refused
    }
  },
};

// ---- past races, newest first
const RACES = "decode-derby-races";
const MOST_RACES = 50;

// Whatever stands in the storage, these are races.
kept.races = () => {
  try {
    const found = JSON.parse(kept.read(RACES) || "[]");
    return found.filter((race) => Number.isFinite(race?.id) && Array.isArray(race.columns));
  } catch {
    return [];
  }
};

// As many of the newest as there is room for. A race has its number (`id`), what
// backend/web/export.py tells `about` it, its settings (`link`) and, if not too long, its `record`.
kept.writeRaces = (all) => {
  let some = all.slice(0, MOST_RACES);
  while (!kept.write(RACES, JSON.stringify(some)) && some.length) some = some.slice(0, -1);
  document.dispatchEvent(new Event("dd-kept"));
};

kept.add = (race) => kept.writeRaces([race, ...kept.races().filter(({ id }) => id !== race.id)]);

// The board shows it, and the form takes its settings.
kept.open = (record) => {
  kept.opening = record;
  document.dispatchEvent(new Event("dd-open"));
};

// ---- the benchmark: what was asked, and the last view of it, to go on from
const BENCHMARK = "decode-derby-benchmark";

const stored = () => {
  try {
    return JSON.parse(kept.read(BENCHMARK) || "null");
  } catch {
    return null;
  }
};

kept.benchmark = stored();

let benchmarkAsked = null; // by this page

// A benchmark that goes on through a reload, or in two tabs, was asked for by another page.
kept.keepBenchmark = (view) => {
  kept.benchmark = { asked: benchmarkAsked ?? stored()?.asked ?? [], view };
  if (!kept.write(BENCHMARK, JSON.stringify(kept.benchmark))) kept.write(BENCHMARK, "");
};

const promptSet = () => {
  const [prompts, repeats] = ["prompt-set", "repeats"].map((id) => document.getElementById(id).value);
  return { prompts, repeats: Number(repeats) };
};

export function beginBenchmark(_, ...form) {
  benchmarkAsked = [promptSet(), ...form];
  return [{ ...benchmarkAsked[0], before: "" }, ...form];
}

// What the form says now counts only where nothing was kept: then there is nothing to go on with.
export function resumeBenchmark(_, ...form) {
  const before = kept.benchmark;
  const fits = before?.asked?.length === form.length + 1;
  benchmarkAsked = fits ? before.asked : [promptSet(), ...form];
  const [set, ...asked] = benchmarkAsked;
  return [{ ...set, before: fits ? String(before.view?.kept ?? "null") : "null" }, ...asked];
}

export function keepForm(...values) {
  const form = JSON.stringify(values);
  kept.write(FORM, form);
  kept.write(FORM, form, TAB);
  document.dispatchEvent(new CustomEvent("dd-form", { detail: values }));
  return [];
}

// What there is to begin with: the form, the settings in the address and whether this page wrote
// those, and a race to be opened. The line-up comes back with the number of changes that it has seen.
export function keptForm(_, lineup) {
  const link = location.search;
  const own = link !== "" && kept.read(ADDRESS, TAB) === link;
  const found = { form: kept.read(FORM, TAB) || kept.read(FORM), link, own, record: kept.opening };
  kept.opening = "";
  return [JSON.stringify(found), lineup && { ...lineup, asked: changed() }];
}

// A Space's page is a frame of another page, which shows its address.
export function keepAddress(link) {
  kept.write(ADDRESS, link, TAB);
  if (location.search === link) return;
  history.replaceState(null, "", link);
  if (FRAMED) window.parent.postMessage({ queryString: link }, "https://huggingface.co");
}
