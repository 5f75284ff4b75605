// Finding, making and changing nodes. All text goes in by textContent: none of it is markup.
const SVG = "http://www.w3.org/2000/svg";

// Finds nodes below the component with this id.
export const finder = (id) => (selector) => document.getElementById(id).querySelector(selector);

export function make(tag, name, text) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  if (text !== undefined) node.textContent = text;
  return node;
}

export function shape(name, attributes, text, tip) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  if (tip) node.append(shape("title", {}, tip));
  return node;
}

export function button(text, label, act) {
  const node = make("button", "dd-chip", text);
  node.type = "button";
  if (label) node.title = label;
  if (label) node.setAttribute("aria-label", label);
  node.addEventListener("click", act);
  return node;
}

export function cell(tag, content, scope) {
  const node = make(tag);
  node.append(content);
  if (scope) node.scope = scope;
  return node;
}

// A table of texts or nodes. `named`: a line's first cell is its heading.
export function table(headings, lines, { caption, named = false } = {}) {
  const node = make("table", "dd-table");
  if (caption) node.createCaption().textContent = caption;
  node.createTHead().insertRow().append(...headings.map((content) => cell(content ? "th" : "td", content, content && "col")));
  const body = node.createTBody();
  for (const line of lines) {
    body.insertRow().append(...line.map((content, i) => (named && !i ? cell("th", content, "row") : cell("td", content))));
  }
  return node;
}

// Whatever is written makes the browser work, even if it was there before: on the machine that races,
// that is time of the race.
export function put(node, text) {
  const own = node.firstChild;
  if (node.textContent === text) return;
  if (own?.nodeType === Node.TEXT_NODE && own === node.lastChild) own.data = text;
  else node.textContent = text;
}

export function setData(node, name, value) {
  if (node.dataset[name] !== value) node.dataset[name] = value;
}

export function setStyle(node, name, value) {
  if (node.style[name] !== value) node.style[name] = value;
}

// As many children as there are entries; those that stay are changed in place.
export function fit(box, entries, build) {
  if (box.children.length !== entries.length) box.replaceChildren(...entries.map(build));
}
