// What runs for this visitor, as the server's stream tells it (page/stream.py). Whoever shows it hears
// of it by an event of the document: "dd-race", "dd-benchmark" or "dd-preparing" with the newest view,
// "dd-end" with a sentence for a page that still shows something running. A page that nobody sees
// asks for no views. The browser connects again by itself, and is told what it has missed.
const SILENCE = 45000; // ms after which a stream that says nothing is broken; it speaks every 15 s
const AGAIN = 1000; // ms after which what failed is tried again
const PRESENT = 60000; // ms after which the page says that it is open
const LOST = "The connection is lost. The race goes on, and the page reconnects every second.";
export const RUNNING = ["waiting", "preparing", "racing"];
export const views = {}; // the newest ones by name, for who comes later than the news
let source = null;
let last = 0; // the number of the latest news
let key = ""; // where the browser takes no cookie
let watchdog = 0;

export const racing = () => RUNNING.includes(document.querySelector(".dd-board")?.dataset.phase);

function tell(lost) {
  const alert = document.querySelector(".dd-alert");
  if (!alert || (!lost && alert.textContent !== LOST)) return;
  alert.textContent = lost ? LOST : "";
}

function address(what, query = {}) {
  const url = new URL(`derby/${what}`, document.baseURI);
  for (const [name, value] of Object.entries({ ...query, key })) if (value) url.searchParams.set(name, value);
  return url;
}

function leave() {
  clearTimeout(watchdog);
  source?.close();
  source = null;
}

function heard() {
  clearTimeout(watchdog);
  watchdog = setTimeout(() => listen(), SILENCE);
}

// What has changed is put where it belongs: see `changes` of backend/web/feeds.py.
function changed(view, changes) {
  for (const [path, sign, value] of changes) {
    const at = path.at(-1);
    const place = path.slice(0, -1).reduce((node, name) => node[name], view);
    place[at] = sign === "=" ? value : place[at].concat(value);
  }
  return view;
}

function news({ type, data, lastEventId }) {
  heard();
  last = Number(lastEventId);
  const told = JSON.parse(data);
  views[type] = Array.isArray(told) ? changed(views[type], told) : told;
  document.dispatchEvent(new CustomEvent(`dd-${type}`, { detail: views[type] }));
}

// Listens until nothing runs any more; quietly while nobody looks, and then once for what came of it.
export function listen(quiet = document.hidden) {
  leave();
  const stream = new EventSource(address("stream", { after: last, quiet: quiet ? 1 : 0 }));
  source = stream;
  heard();
  for (const name of ["race", "benchmark", "preparing"]) stream.addEventListener(name, news);
  stream.addEventListener("beat", heard);
  stream.addEventListener("end", ({ data }) => {
    leave();
    if (quiet) listen(false);
    else document.dispatchEvent(new CustomEvent("dd-end", { detail: data }));
  });
  stream.addEventListener("open", () => tell(false));
  stream.addEventListener("error", () => {
    tell(true);
    if (stream.readyState === EventSource.CLOSED && source === stream) setTimeout(listenAgain, AGAIN);
  });
}

function listenAgain() {
  if (!source || source.readyState === EventSource.CLOSED) listen();
}

// What has begun for this visitor is shown.
export function listenTo(begun) {
  key = begun.key ?? key;
  listen();
}

// Sent until it is answered: to stop twice is to stop.
async function stop() {
  for (;;) {
    try {
      await fetch(address("stop"), { method: "POST" });
      return tell(false);
    } catch {
      tell(true);
      await new Promise((resolve) => setTimeout(resolve, AGAIN));
    }
  }
}

// Once, for the whole page.
export function startStream() {
  document.addEventListener("click", ({ target }) => {
    if (target.closest?.("#stop, #benchmark-stop")) stop();
  });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden || source) listen();
  });
  window.addEventListener("online", () => source && listen());
  setInterval(() => fetch(address("here"), { method: "POST" }).catch(() => {}), PRESENT);
}
