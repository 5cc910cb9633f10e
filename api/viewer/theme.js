// Light or dark: as the system says, until someone decides otherwise.

const listeners = [];

export function onTheme(listener) { listeners.push(listener); }

export function isDark() { return document.documentElement.dataset.theme === "dark"; }

function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  for (const listener of listeners) listener();
}

export function switchTheme() { setTheme(!isDark()); }

// `chosen`: "dark", "light" or null for the system's.
export function startTheme(chosen = null) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  setTheme(chosen ? chosen === "dark" : system.matches);
  system.addEventListener("change", (event) => setTheme(event.matches));
}
