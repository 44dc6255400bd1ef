// The colours that the reader chose, before anything is drawn.
"use strict";

(function () {
  const NAMES = ["auto", "light", "dark"];
  let theme = "auto";
  try {
    theme = localStorage.getItem("ragen-theme") || "auto";
  } catch (error) {
    // A browser may keep nothing for pages of a disk.
  }

  function apply() {
    if (!NAMES.includes(theme)) theme = "auto";
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (button) button.textContent = "Theme: " + theme;
  }

  apply();
  document.addEventListener("DOMContentLoaded", function () {
    apply();
    document.getElementById("theme").addEventListener("click", function () {
      theme = NAMES[(NAMES.indexOf(theme) + 1) % NAMES.length];
      try {
        localStorage.setItem("ragen-theme", theme);
      } catch (error) {
        // Then it holds for this page alone.
      }
      apply();
    });
  });
})();
