// What a figure means, at the figure: its name is a button that opens the glossary's line. And the
// button that copies a text.
import { finder, make, put, shape } from "./dom.js";
import { placeBelow } from "./tabs.js";

const find = finder("board");
export const meanings = new Map();

export function helped(title) {
  const node = make("button", "dd-helped", title);
  node.type = "button";
  node.addEventListener("click", () => explain(node));
  return node;
}

function explain(node) {
  const meaning = meanings.get(node.textContent);
  const tip = find(".dd-tip");
  if (!meaning) return;
  put(tip, meaning);
  tip.showPopover();
  placeBelow(node, tip);
}

// A frame may forbid the clipboard: then the text is selected, to be copied by its reader.
export function copier(label, flow) {
  const text = () => [...flow.children].map((node) => (node.hidden ? "" : node.textContent)).join("");
  const node = make("button", "dd-copy");
  node.type = "button";
  const icon = shape("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" });
  icon.append(shape("path", { d: "M5.5 5.5h8v8h-8zM3 10.5h-.5v-8h8V3" }));
  node.append(icon);
  node.title = label;
  node.setAttribute("aria-label", label);
  node.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text());
      node.dataset.copied = "true";
      setTimeout(() => delete node.dataset.copied, 1500);
    } catch {
      getSelection().selectAllChildren(flow);
    }
  });
  return node;
}
