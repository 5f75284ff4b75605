// What this browser keeps, so that leaving the page loses nothing: the form, the address's fragment
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
    return found.filter((race) => typeof race?.link === "string" && Array.isArray(race.columns));
  } catch {
    return [];
  }
};

// As many of the newest as there is room for.
kept.writeRaces = (all) => {
  let some = all.slice(0, MOST_RACES);
  while (!kept.write(RACES, JSON.stringify(some)) && some.length) some = some.slice(0, -1);
  document.dispatchEvent(new Event("dd-kept"));
};

kept.add = (link, about) => {
  kept.writeRaces([{ link, ...about }, ...kept.races().filter((race) => race.link !== link)]);
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

// What there is to begin with: the form, a race in the address, and whether this page wrote that. The
// line-up comes back with the number of changes that it has seen.
export function keptForm(_, lineup) {
  const race = location.hash.startsWith("#race=") ? location.hash : "";
  const own = race !== "" && kept.read(ADDRESS, TAB) === race;
  return [JSON.stringify({ form: kept.read(FORM, TAB) || kept.read(FORM), race, own }), lineup && { ...lineup, asked: changed() }];
}

// A Space's page is a frame of another page, which shows its address.
export function keepAddress(fragment) {
  kept.write(ADDRESS, fragment, TAB);
  if (location.hash === fragment) return;
  history.replaceState(null, "", fragment);
  if (FRAMED) window.parent.postMessage({ hash: fragment }, "https://huggingface.co");
}
