// The race on show as a link or a file, which backend/web/carry.py makes. Where a frame forbids the
// clipboard, there is a field to copy from.
const row = element.querySelector(".dd-carry");
const note = row.querySelector("p");
const field = row.querySelector("input");
const wanted = new Set(); // what the next link is for: "link" to be copied, "kept" to be kept

function ask(form) {
  wanted.add(form);
  note.textContent = "";
  field.hidden = true;
  props.value = { ask: form === "kept" ? "link" : form };
  trigger("input");
}

function save([name, kind, content], coded) {
  const data = coded ? Uint8Array.from(atob(content), (sign) => sign.charCodeAt(0)) : content;
  const link = document.createElement("a");
  link.download = name;
  link.href = URL.createObjectURL(new Blob([data], { type: kind }));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

async function copy(address, told) {
  field.value = address;
  try {
    await navigator.clipboard.writeText(address);
    note.textContent = `The link is copied. ${told}`;
  } catch {
    field.hidden = false;
    field.focus();
    field.select();
    note.textContent = `Copy the link from here. ${told}`;
  }
}

function answered() {
  const { link, note: told, file, base64, about } = props.value ?? {};
  if (file) save(file, base64);
  // One answer may be that to both, asked for at nearly the same time.
  if (link && wanted.has("kept")) window.kept.add(link, about);
  if (link && wanted.has("link")) copy(location.href.split("#")[0] + link, told);
  if (told && !link && !file && [...wanted].some((form) => form !== "kept")) note.textContent = told;
  wanted.clear();
}

row.addEventListener("click", ({ target }) => {
  if (target.dataset.form) ask(target.dataset.form);
});
watch("value", answered);

// A race that has ended can be taken along, and is kept in this browser.
const phases = new MutationObserver(() => {
  const { phase } = document.querySelector(".dd-board").dataset;
  const ended = phase === "ended";
  if (ended && row.hidden) setTimeout(() => ask("kept"), 300);
  row.hidden = !ended;
  const known = !document.querySelector(".dd-costs").hidden;
  for (const button of row.querySelectorAll("[data-form^=curve]")) button.hidden = !known;
  note.textContent = "";
  field.hidden = true;
});
const attach = () => {
  const board = document.querySelector(".dd-board");
  if (!board) return setTimeout(attach, 200);
  phases.observe(board, { attributeFilter: ["data-phase"] });
  phases.observe(board.querySelector(".dd-costs"), { attributeFilter: ["hidden"] });
};
attach();
