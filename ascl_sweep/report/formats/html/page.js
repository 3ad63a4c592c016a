"use strict";
// Shared helpers, theme button, copy buttons and sweep filter. The event `content` follows a change of
// the page's content; it occurs only in a live page.
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

/** Create an element. Children are nodes or text, so text from a store is never parsed as HTML. */
function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "path", "line", "text", "circle", "g"].includes(tag);
  const element = svg
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

// Only boxes that scroll are in the tab order.
const scrolls = new ResizeObserver((entries) => {
  for (const { target: box } of entries) box.tabIndex = box.scrollWidth > box.clientWidth ? 0 : -1;
});
const observeBoxes = () => $$(".scroll").forEach((box) => scrolls.observe(box));
document.addEventListener("content", observeBoxes);
observeBoxes();

function announce(sentence) {
  const place = $("#said");
  place.textContent = sentence;
  clearTimeout(announce.timer);
  announce.timer = setTimeout(() => (place.textContent = ""), 4000);
}

// ---------------------------------------------------------------- theme

{
  const button = $("#theme");
  const show = () => button.setAttribute("aria-pressed", theme.isDark());
  button.addEventListener("click", () => theme.toggle());
  document.addEventListener("theme", show);
  show();
}

// ---------------------------------------------------------------- copy buttons

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Some browsers deny clipboard access to local files; copying a selection always works.
    const area = make("textarea", { readonly: true, class: "unseen" });
    area.value = text;
    const focused = document.activeElement;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    focused?.focus();
    if (!done) throw new Error("refused");
  }
}

document.addEventListener("click", async ({ target }) => {
  const button = target.closest("button[data-copy]");
  if (!button) return;
  const formats = JSON.parse($("script.copies", button.closest(".table")).textContent);
  try {
    await copy(formats[button.dataset.copy]);
    announce(`Copied the table as ${button.textContent}.`);
  } catch {
    announce("The browser does not allow this page to copy.");
  }
});

// ---------------------------------------------------------------- sweep filter

const sweepFilter = $("#sweep-filter");
function hideOtherSweeps() {
  for (const section of $$("section.sweep")) {
    section.hidden = sweepFilter.value !== "" && section.dataset.sweep !== sweepFilter.value;
  }
  for (const row of $$("#overview tbody tr")) {
    row.hidden = sweepFilter.value !== "" && row.dataset.sweep !== sweepFilter.value;
  }
}
sweepFilter.addEventListener("change", () => {
  hideOtherSweeps();
  document.dispatchEvent(new Event("sweep"));
});
document.addEventListener("content", hideOtherSweeps);
