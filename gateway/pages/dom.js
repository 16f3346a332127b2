// Elements, built by calls. Strings become text nodes, so nothing that a model, a server or a file says becomes markup.

// el("a", {class: "x", href: "/", onclick: f}, "text", node...): false, null and undefined are left out.
export function el(name, properties = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === false || value === null || value === undefined) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((c) => c !== false && c !== null && c !== undefined));
  return node;
}

export const byId = (id) => document.getElementById(id);

// Says a sentence to screen readers.
export function announce(text) {
  byId("announcer").textContent = text;
}

// A button that copies what text() gives. navigator.clipboard exists on https and on localhost only.
export function copyButton(text, label) {
  const button = el("button", { type: "button", class: "small", "aria-label": label, onclick: copy }, "Copy");
  async function copy() {
    let copied = true;
    try {
      if (navigator.clipboard) await navigator.clipboard.writeText(text());
      else copied = copyBySelection(text());
    } catch {
      copied = false;
    }
    button.textContent = copied ? "Copied" : "Not copied";
    announce(copied ? "Copied." : "The browser did not allow to copy.");
    setTimeout(() => (button.textContent = "Copy"), 1500);
  }
  return button;
}

function copyBySelection(text) {
  const focused = document.activeElement;
  const area = el("textarea", { class: "offscreen", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  focused?.focus();
  return copied;
}

export function formatNumber(value, digits = 0) {
  return Number(value).toLocaleString("en", { maximumFractionDigits: digits });
}
