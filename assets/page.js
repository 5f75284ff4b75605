// Theme toggle, the skip link and keyboard shortcuts: what the header begins.
import { FRAMED, kept } from "./kept.js";
import { closeSettings, settingsOpen } from "./settings.js";
import { racing, startStream } from "./stream.js";
import { tabsIn } from "./tabs.js";

const KEY = "decode-derby-theme";

export function start({ element, trigger }) {
  startStream();
  document.addEventListener("dd-open", () => {
    press("tab-race");
    trigger("input");
  });
  startTheme(element.querySelector(".dd-theme"));
  startViews(element.querySelector("[role=tablist]"));
  // The skip link's address would load the page anew where that has a query.
  element.querySelector(".dd-skip").addEventListener("click", (event) => {
    event.preventDefault();
    document.querySelector(".dd-board").focus();
  });
  document.addEventListener("keydown", shortcut, true);
  if (FRAMED) startFrame();
}

// The page's own tabs. Their panels are gradio's, and may come a moment later.
function startViews(list) {
  for (const tab of list.children) {
    const view = document.getElementById(tab.getAttribute("aria-controls"));
    if (!view) return setTimeout(() => startViews(list), 30);
    view.setAttribute("role", "tabpanel");
    view.setAttribute("aria-labelledby", tab.id);
  }
  tabsIn(list);
}

function press(id) {
  document.getElementById(id)?.click();
}

function startTheme(toggle) {
  const show = (dark) => {
    document.body.classList.toggle("dark", dark);
    toggle.title = dark ? "Light mode" : "Dark mode";
    toggle.setAttribute("aria-label", toggle.title);
  };
  const chosen = new URLSearchParams(location.search).get("__theme") || kept.read(KEY);
  show(chosen ? chosen === "dark" : document.body.classList.contains("dark"));
  toggle.addEventListener("click", () => {
    const dark = !document.body.classList.contains("dark");
    kept.write(KEY, dark ? "dark" : "light");
    show(dark);
  });
}

// ---- the keyboard
function escape(event) {
  // Escape that closes an open list of choices, or a line of help, is not meant for the race.
  if (event.target.matches?.("input[aria-expanded=true]") || document.querySelector(":popover-open")) return;
  if (settingsOpen()) closeSettings();
  else if (racing()) press("stop");
}

function shortcut(event) {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    event.stopPropagation();
    if (event.target.closest?.("#prompt")) document.getElementById("run").focus(); // it lies over the race
    press("run");
  } else if (event.key === "Escape") {
    escape(event);
  }
}

// ---- a frame may be made as high as its page: then it is no window, by whose height a page could
// go, and its lower edge, where alerts stand, may be out of sight.
function startFrame() {
  const height = Math.min(window.innerHeight, window.screen.availHeight);
  document.documentElement.style.setProperty("--dd-window", `${height}px`);
  const watched = () => {
    const alert = document.querySelector(".dd-alert");
    if (!alert) return setTimeout(watched, 200);
    new MutationObserver(() => {
      if (alert.textContent) alert.scrollIntoView({ block: "nearest" });
    }).observe(alert, { childList: true });
  };
  watched();
}
