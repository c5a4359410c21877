/** Light, dark, or as the system has it. Loaded before anything is drawn, so that nothing flashes. */

const NAME = "mediaworker.theme", THEMES = ["system", "light", "dark"];

export function theme() {
  const kept = localStorage.getItem(NAME);
  return THEMES.includes(kept) ? kept : "system";
}

export function setTheme(name) {
  localStorage.setItem(NAME, name);
  document.documentElement.dataset.theme = name;
}

document.documentElement.dataset.theme = theme();
