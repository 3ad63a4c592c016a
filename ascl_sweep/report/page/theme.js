"use strict";
// Runs before anything is painted, so that a page that was made dark does not open white.
const theme = (() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const changed = () => document.dispatchEvent(new Event("theme"));
  try {
    const kept = localStorage.getItem("ascl-sweep-theme");
    if (kept) root.dataset.theme = kept;
  } catch { /* a browser may keep nothing for files */ }
  dark.addEventListener("change", changed);
  return {
    isDark: () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches),
    toggle() {
      root.dataset.theme = this.isDark() ? "light" : "dark";
      try {
        localStorage.setItem("ascl-sweep-theme", root.dataset.theme);
      } catch { /* then it lasts as long as the page */ }
      changed();
    },
  };
})();
