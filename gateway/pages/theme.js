// Runs before the page is drawn: the theme that was chosen, or that of the system; and the button that changes it.
(function () {
  const names = ["auto", "light", "dark"];
  let theme = "auto";
  try {
    theme = localStorage.getItem("swarm.theme") || theme;
  } catch {} // a browser that keeps nothing
  function show() {
    document.documentElement.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (button) button.textContent = { auto: "Theme: auto", light: "Theme: light", dark: "Theme: dark" }[theme] || "Theme";
  }
  show();
  document.addEventListener("DOMContentLoaded", function () {
    show();
    document.getElementById("theme").addEventListener("click", function () {
      theme = names[(names.indexOf(theme) + 1) % names.length];
      try {
        localStorage.setItem("swarm.theme", theme);
      } catch {}
      show();
    });
  });
})();
