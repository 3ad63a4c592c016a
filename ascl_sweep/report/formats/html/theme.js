"use strict";
// Runs before the first paint, so that a page in dark mode does not flash white.
const theme = (() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const changed = () => document.dispatchEvent(new Event("theme"));
  try {
    const kept = localStorage.getItem("ascl-sweep-theme");
    if (kept) root.dataset.theme = kept;
  } catch { /* browsers may deny storage to local files */ }
  dark.addEventListener("change", changed);
  return {
    isDark: () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches),
    toggle() {
      root.dataset.theme = this.isDark() ? "light" : "dark";
      try {
        localStorage.setItem("ascl-sweep-theme", root.dataset.theme);
      } catch { /* the choice then lasts until the page is closed */ }
      changed();
    },
  };
})();
