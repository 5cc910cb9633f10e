// Elements, made with text only: nothing that comes from a document is ever markup.

// The namespace as the browser knows it, so that no address stands in the file.
const SVG = new DOMParser().parseFromString("<svg></svg>", "text/html").body.firstChild.namespaceURI;

export function byId(id) { return document.getElementById(id); }

export function element(name, { text = null, title = null, className = null, attributes = {} } = {}, children = []) {
  const made = document.createElement(name);
  if (text !== null) made.textContent = text;
  if (title !== null) made.title = title;
  if (className !== null) made.className = className;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export function svgElement(name, attributes = {}, children = []) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export function button(text, { onClick, className = null, title = null, attributes = {} }) {
  const made = element("button", { text, title, className, attributes: { type: "button", ...attributes } });
  made.addEventListener("click", onClick);
  return made;
}

export function factList(facts) {
  return element("dl", {}, facts.flatMap(([name, value]) => [element("dt", { text: name }), element("dd", { text: value })]));
}

export function card(id, title, children = [], note = "") {
  const heading = element("h2", { text: title, attributes: { id: `${id}-title` } });
  const head = element("div", { className: "card-head" }, note ? [heading, element("p", { text: note, className: "hint" })] : [heading]);
  return element("section", { className: "card", attributes: { id, "aria-labelledby": `${id}-title` } }, [head, ...children]);
}
