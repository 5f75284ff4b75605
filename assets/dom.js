// What every component's script begins with: finding and making nodes. All text goes in by textContent:
// none of it is markup.
const SVG = "http://www.w3.org/2000/svg";
const find = (selector) => element.querySelector(selector);

function make(tag, name, text) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  if (text !== undefined) node.textContent = text;
  return node;
}

// Whatever is written makes the browser work, even if it was there before: on the machine that races,
// that is time of the race.
function put(node, text) {
  const own = node.firstChild;
  if (node.textContent === text) return;
  if (own?.nodeType === Node.TEXT_NODE && own === node.lastChild) own.data = text;
  else node.textContent = text;
}

function shape(name, attributes, text, tip) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  if (tip) node.append(shape("title", {}, tip));
  return node;
}
