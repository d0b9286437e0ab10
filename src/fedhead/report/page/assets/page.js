// The page: light or dark, and, where a board serves it, sections that are replaced as runs go on.
fedhead.stored = (name, value) => {
  try {  // not everywhere may a file from the disk store something
    if (value !== undefined) localStorage.setItem(name, value);
    return localStorage.getItem(name);
  } catch { return null; }
};

fedhead.isDark = () => {
  const { theme } = document.documentElement.dataset;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};

fedhead.start = (root) => { fedhead.startTables(root); fedhead.startCharts(root); };

fedhead.replace = (section) => {
  const old = document.getElementById(section.id);
  if (old?.dataset.digest === section.digest) return;
  const open = new Set([...(old?.querySelectorAll("details[open]") ?? [])].map((details) => details.id));
  const focus = old?.contains(document.activeElement) ? document.activeElement.id : "";
  const frame = document.createElement("template");
  frame.innerHTML = section.html;
  const fresh = frame.content.firstElementChild;
  for (const details of fresh.querySelectorAll("details")) details.open = open.has(details.id);
  for (const figure of old?.querySelectorAll("figure.chart") ?? []) {  // a plot that is there is updated, not rebuilt
    const next = fresh.querySelector(`#${CSS.escape(figure.id)}`);
    if (next && figure.drawn) {
      next.querySelector(".plot").replaceWith(figure.querySelector(".plot"));
      next.drawn = true;
    } else if (figure.drawn) Plotly.purge(figure.querySelector(".plot"));
    fedhead.observer.unobserve(figure);
  }
  if (old) old.replaceWith(fresh); else document.querySelector("main").append(fresh);
  fedhead.start(fresh);
  for (const figure of fresh.querySelectorAll("figure.chart")) if (figure.drawn) fedhead.draw(figure);
  if (focus) document.getElementById(focus)?.focus({ preventScroll: true });
};

fedhead.poll = async () => {
  const status = document.getElementById("status");
  try {
    const answer = await fetch("sections");
    if (!answer.ok) throw new Error(answer.status);
    const found = await answer.json();
    found.sections.forEach(fedhead.replace);
    const ids = found.sections.map((section) => section.id);
    for (const section of document.querySelectorAll("main > section")) if (!ids.includes(section.id)) section.remove();
    const main = document.querySelector("main"), now = [...main.children].map((section) => section.id);
    if (now.join() !== ids.join()) main.append(...ids.map((id) => document.getElementById(id)));
    for (const [tag, html] of [["header", found.header], ["nav", found.navigation]]) {
      const place = document.querySelector(tag);
      if (place.shown !== html) place.innerHTML = place.shown = html;
    }
    document.title = found.title;
    status.textContent = "live";
  } catch { status.textContent = "the board does not answer"; }
  setTimeout(fedhead.poll, Number(document.body.dataset.live));
};

document.addEventListener("DOMContentLoaded", () => {
  const before = fedhead.stored("fedhead-theme"), toggle = document.getElementById("theme");
  if (before) document.documentElement.dataset.theme = before;
  const name = () => { toggle.textContent = fedhead.isDark() ? "Light" : "Dark"; };
  const repaint = () => { name(); fedhead.redraw(); };
  toggle.addEventListener("click", () => {
    fedhead.stored("fedhead-theme", (document.documentElement.dataset.theme = fedhead.isDark() ? "light" : "dark"));
    repaint();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  name();
  const fold = document.getElementById("fold"), nav = document.getElementById("sections");
  const unfold = (open) => { fold.setAttribute("aria-expanded", String(open)); nav.classList.toggle("open", open); };
  fold.addEventListener("click", () => unfold(!nav.classList.contains("open")));
  nav.addEventListener("click", () => unfold(false));
  fedhead.start(document);
  if (document.body.dataset.live) setTimeout(fedhead.poll, Number(document.body.dataset.live));
});
