// The examples as chips: a few in sight, the others behind "More". The one whose prompt stands in the box
// is marked.
import { button } from "./dom.js";

const IN_SIGHT = 5;

export function start({ element, props, trigger }) {
  const box = element.querySelector(".dd-examples");
  const chips = props.examples.map(([label, prompt], i) => {
    const chip = button(label, "", () => {
      props.value = label;
      mark(prompt);
      trigger("input");
    });
    chip.hidden = i >= IN_SIGHT;
    return chip;
  });
  const more = button("More", "More examples", () => {
    const open = more.getAttribute("aria-expanded") === "false";
    more.setAttribute("aria-expanded", open);
    chips.forEach((chip, i) => (chip.hidden = !open && i >= IN_SIGHT));
  });
  more.setAttribute("aria-expanded", false);
  const mark = (text) => chips.forEach((chip, i) => chip.setAttribute("aria-pressed", props.examples[i][1] === text));
  box.append(...chips, more);
  mark(props.examples[0][1]);
  document.addEventListener("dd-form", ({ detail: [prompt] }) => mark(prompt)); // as kept.js hears of it
}
