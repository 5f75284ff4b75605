// Theme toggle and keyboard shortcuts. `element` is the header.
const toggle = element.querySelector(".dd-theme");
const KEY = "decode-derby-theme";

function show(dark) {
  document.body.classList.toggle("dark", dark);
  toggle.textContent = dark ? "Light mode" : "Dark mode";
}

const asked = new URLSearchParams(location.search).get("__theme");
const chosen = asked || localStorage.getItem(KEY);
show(chosen ? chosen === "dark" : document.body.classList.contains("dark"));
toggle.addEventListener("click", () => {
  const dark = !document.body.classList.contains("dark");
  localStorage.setItem(KEY, dark ? "dark" : "light");
  show(dark);
});

function press(id) {
  document.getElementById(id)?.click();
}

document.addEventListener(
  "keydown",
  (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      event.stopPropagation();
      press("run");
    } else if (event.key === "Escape") {
      // Escape that closes an open list of choices is not meant for the race.
      if (event.target.getAttribute?.("aria-expanded") !== "true") press("stop");
    }
  },
  true,
);
