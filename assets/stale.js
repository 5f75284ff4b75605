// Dims the board once the form asks for another prompt or other columns than the race on show.
const SETTLED = 600; // ms after which the form is that of a race that has begun, or was opened
let asked = null; // by the race on show
let now = null; // by the form

function draw() {
  const board = document.querySelector(".dd-board");
  const stale = asked !== null && now !== asked ? "yes" : "no";
  if (!board || board.dataset.stale === stale) return;
  board.dataset.stale = stale;
  document.dispatchEvent(new CustomEvent("dd-stale", { detail: stale === "yes" })); // board.js says so
}

export function startStale() {
  let settling = 0;
  document.addEventListener("dd-form", ({ detail: [prompt, lineup] }) => {
    now = JSON.stringify([prompt, lineup?.text ?? lineup]);
    draw();
  });
  document.addEventListener("dd-begun", () => {
    asked = null;
    draw();
    clearTimeout(settling);
    settling = setTimeout(() => {
      asked = now;
      draw();
    }, SETTLED);
  });
}
