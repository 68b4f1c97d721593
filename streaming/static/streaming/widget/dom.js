/** Elements and icons, made without markup from text. */

const SVG = "http://www.w3.org/2000/svg";

// Paths in a box of 24 × 24, drawn as strokes.
const ICONS = {
  chat: "M4 5h16v11H9.5L5 20v-4H4z",
  close: "M6 6l12 12M18 6L6 18",
  fresh: "M12 5v14M5 12h14",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h10v10H9zM5 15V5h10",
  done: "M5 12.5l4.5 4.5L19 7.5",
  again: "M19 12a7 7 0 1 1-2-5l2 2M19 4v5h-5",
  down: "M12 5v14M6 13l6 6 6-6",
  previous: "M14.5 6l-6 6 6 6",
  next: "M9.5 6l6 6-6 6",
};

/**
 * @param {string} tag
 * @param {Record<string, string | boolean | null>} attributes null and false leave one out
 * @param {...(string | Node)} children
 */
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

/** An icon for the eye only. @param {keyof typeof ICONS} name */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("class", `icon ${name}`);
  svg.append(document.createElementNS(SVG, "path"));
  svg.firstChild.setAttribute("d", ICONS[name]);
  return svg;
}

/** A button that is an icon; its label is what it is called, and its tooltip. */
export function iconButton(name, className, onClick) {
  const button = element("button", { type: "button", class: className }, icon(name));
  button.addEventListener("click", onClick);
  return button;
}

export function label(button, text) {
  button.setAttribute("aria-label", text);
  button.title = text;
}
