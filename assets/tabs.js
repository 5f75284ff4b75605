// Tabs over panels, and menus that open below their button. Arrow keys, Home and End move within a
// list of tabs or the items of a menu.

const BACK = ["ArrowLeft", "ArrowUp"];
const ON = ["ArrowRight", "ArrowDown"];

// The focus within `box` moves between the nodes that `nodes` gives; `arrived` is told where it is.
export function moveByArrows(box, nodes, arrived = () => {}) {
  box.addEventListener("keydown", (event) => {
    const all = nodes();
    const at = all.indexOf(document.activeElement);
    const to = { Home: 0, End: all.length - 1 }[event.key]
      ?? (BACK.includes(event.key) ? at - 1 : ON.includes(event.key) ? at + 1 : undefined);
    if (to === undefined || !all.length) return;
    event.preventDefault();
    const next = all[(to + all.length) % all.length];
    next.focus();
    arrived(next);
  });
}

// The tabs of a list; each names its panel by aria-controls. Returns what chooses one, and what looks
// again which of them are there: a hidden tab is none. `shown` is told of the tab that is chosen.
export function tabsIn(list, shown = () => {}) {
  const all = [...list.querySelectorAll("[role=tab]")];
  const there = () => all.filter((tab) => !tab.hidden);
  let wanted = all[0]; // what was chosen comes back with its tab
  const draw = (tab) => {
    for (const each of all) {
      each.setAttribute("aria-selected", each === tab);
      each.tabIndex = each === tab ? 0 : -1;
      document.getElementById(each.getAttribute("aria-controls")).hidden = each !== tab;
    }
  };
  const refresh = () => draw(wanted.hidden ? there()[0] : wanted);
  const choose = (tab) => {
    wanted = tab;
    draw(tab);
    shown(tab);
  };
  moveByArrows(list, there, choose);
  list.addEventListener("click", ({ target }) => {
    const tab = target.closest("[role=tab]");
    if (tab) choose(tab);
  });
  refresh();
  return { choose, refresh };
}

// Below `anchor`, or above it where there is more room, and within the window.
export function placeBelow(anchor, box) {
  const { left, top, bottom } = anchor.getBoundingClientRect();
  const { width, height } = box.getBoundingClientRect();
  const below = bottom + 6;
  const y = below + height <= innerHeight - 8 ? below : Math.max(8, top - height - 6);
  box.style.left = `${Math.max(8, Math.min(left, innerWidth - width - 8))}px`;
  box.style.top = `${y}px`;
}

// A popover of menu items, which its button opens.
export function startMenu(menu) {
  const opener = document.querySelector(`[popovertarget="${menu.id}"]`);
  const items = () => [...menu.querySelectorAll("[role=menuitem]:not([hidden])")];
  menu.addEventListener("toggle", ({ newState }) => {
    opener.setAttribute("aria-expanded", newState === "open");
    if (newState !== "open") return;
    placeBelow(opener, menu);
    items()[0]?.focus();
  });
  menu.addEventListener("click", ({ target }) => target.closest("[role=menuitem]") && menu.hidePopover());
  moveByArrows(menu, items);
}
