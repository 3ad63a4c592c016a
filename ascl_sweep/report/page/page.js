"use strict";
// What all parts of the page share; the theme's button, copying, and the choice of a sweep.
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

/** An element. Children are nodes or text: nothing from a ledger is ever read as HTML. */
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

// What scrolls must be reached with Tab; what does not scroll should not stop it.
const scrolls = new ResizeObserver((entries) => {
  for (const { target: box } of entries) box.tabIndex = box.scrollWidth > box.clientWidth ? 0 : -1;
});
$$(".scroll").forEach((box) => scrolls.observe(box));

function say(sentence) {
  const place = $("#said");
  place.textContent = sentence;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => (place.textContent = ""), 4000);
}

// ---------------------------------------------------------------- theme

{
  const button = $("#theme");
  const show = () => button.setAttribute("aria-pressed", theme.isDark());
  button.addEventListener("click", () => theme.toggle());
  document.addEventListener("theme", show);
  show();
}

// ---------------------------------------------------------------- copying

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Some browsers grant no clipboard to a page from disk; all of them copy what is selected.
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

for (const button of $$("button[data-copy]")) {
  button.addEventListener("click", async () => {
    const formats = JSON.parse($("script.copies", button.closest(".table")).textContent);
    try {
      await copy(formats[button.dataset.copy]);
      say(`Copied the table as ${button.textContent}.`);
    } catch {
      say("The browser does not let this page copy.");
    }
  });
}

// ---------------------------------------------------------------- one sweep or all

const sweepFilter = $("#sweep-filter");
sweepFilter.addEventListener("change", () => {
  for (const section of $$("section.sweep")) {
    section.hidden = sweepFilter.value !== "" && section.dataset.sweep !== sweepFilter.value;
  }
  for (const row of $$("#overview tbody tr")) {
    row.hidden = sweepFilter.value !== "" && row.dataset.sweep !== sweepFilter.value;
  }
  document.dispatchEvent(new Event("sweep"));
});
