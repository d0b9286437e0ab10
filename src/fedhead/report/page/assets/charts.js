// Charts: what Python has laid out is handed to Plotly in the colors of the page; choices and legends act on groups.
const fedhead = { chosen: {}, hidden: {}, sorted: {}, filtered: {} };  // what the reader has set, by group or table

fedhead.isTouch = () => matchMedia("(pointer: coarse)").matches;

fedhead.theme = () => {
  const style = getComputedStyle(document.documentElement);
  const [ink, rule, card] = ["--ink", "--rule", "--card"].map((name) => style.getPropertyValue(name).trim());
  const axis = { gridcolor: rule, linecolor: rule, zerolinecolor: rule, automargin: true };
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hovermode: "closest",
    font: { color: ink, size: 12.5, family: "system-ui, sans-serif" }, margin: { l: 50, r: 12, t: 10, b: 40 },
    xaxis: axis, yaxis: axis, hoverlabel: { bgcolor: card, bordercolor: rule, font: { color: ink }, namelength: -1 },
    // a finger scrolls the page; a mouse draws the area to zoom into
    dragmode: fedhead.isTouch() ? false : "zoom", uirevision: "kept",
  };
};

fedhead.merged = (base, over) => {
  const out = { ...base };
  for (const [key, value] of Object.entries(over)) {
    const both = value && typeof value === "object" && !Array.isArray(value) && typeof out[key] === "object";
    out[key] = both ? fedhead.merged(out[key], value) : value;
  }
  return out;
};

fedhead.draw = (figure) => {
  const plot = figure.querySelector(".plot");
  const charts = (figure.charts ??= JSON.parse(figure.querySelector("script").textContent));
  const { group } = figure.dataset;
  const name = fedhead.chosen[group] ?? Object.keys(charts)[0];
  const chart = charts[name];
  figure.hidden = !chart;
  if (!chart) return;
  const hidden = fedhead.hidden[group] ?? new Set();
  const ink = fedhead.theme().font.color;
  const data = chart.data.map((trace) => {
    const text = trace.mode?.includes("text") ? { textfont: { color: ink } } : {};
    return { ...trace, ...text, visible: hidden.has(trace.legendgroup) ? "legendonly" : true };
  });
  const layout = fedhead.merged(fedhead.theme(), chart.layout);
  layout.uirevision = name;  // zoom stays while data arrive, not when something else is chosen
  // a double click shows everything again; what a plot began with is forgotten once new data have arrived
  const unused = ["lasso2d", "select2d"];
  const bar = fedhead.isTouch() ? false : "hover";  // on a phone it would cover the chart
  const config = { responsive: true, displaylogo: false, displayModeBar: bar, doubleClick: "autosize", modeBarButtonsToRemove: unused };
  Plotly.react(plot, data, layout, config);
  if (!figure.drawn) plot.on("plotly_afterplot", () => fedhead.fit(plot));
  figure.drawn = true;
  fedhead.fit(plot);
};

// Show the texts of a heat map's cells where the widest one fits, also after the window has changed.
fedhead.fit = (plot) => {
  const [trace] = plot.data, { xaxis, yaxis } = plot._fullLayout;
  if (!trace?.text || trace.type !== "heatmap") return;
  const widest = Math.max(...trace.text.flat().map((text) => text.length));
  const fits = xaxis._length / trace.z[0].length >= 7 * widest + 3 && yaxis._length / trace.z.length >= 14;
  if (Boolean(trace.texttemplate) !== fits) Plotly.restyle(plot, { texttemplate: fits ? "%{text}" : "" }, [0]);
};

fedhead.redraw = (group) => {
  for (const figure of document.querySelectorAll("figure.chart")) {
    if (group === undefined || figure.dataset.group === group) {
      if (figure.drawn || figure.hidden) fedhead.draw(figure);
    }
  }
};

fedhead.choose = (group, name) => {
  fedhead.chosen[group] = name;
  for (const block of document.querySelectorAll("[data-choice]")) {
    if (block.dataset.group === group) block.hidden = block.dataset.choice !== name;
  }
  fedhead.redraw(group);
};

fedhead.press = (group, key, alone) => {
  const buttons = [...document.querySelectorAll(".legend button")].filter((b) => b.dataset.group === group);
  const keys = [...new Set(buttons.map((button) => button.dataset.key))];
  const hidden = (fedhead.hidden[group] ??= new Set());
  if (alone) {
    const isolated = hidden.size === keys.length - 1 && !hidden.has(key);
    hidden.clear();
    if (!isolated) keys.filter((other) => other !== key).forEach((other) => hidden.add(other));
  } else if (!hidden.delete(key)) hidden.add(key);
  for (const button of buttons) button.setAttribute("aria-pressed", String(!hidden.has(button.dataset.key)));
  fedhead.redraw(group);
};

fedhead.observer = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting && !entry.target.drawn) fedhead.draw(entry.target);
}, { rootMargin: "600px" });

fedhead.startCharts = (root) => {
  for (const select of root.querySelectorAll("select[data-choose]")) {
    const group = select.dataset.choose, before = fedhead.chosen[group];
    if (before !== undefined && [...select.options].some((option) => option.value === before)) {
      select.value = before;
      fedhead.choose(group, before);
    } else delete fedhead.chosen[group];
    select.addEventListener("change", () => fedhead.choose(group, select.value));
  }
  for (const button of root.querySelectorAll(".legend button")) {
    const { group, key } = button.dataset;
    button.setAttribute("aria-pressed", String(!fedhead.hidden[group]?.has(key)));
    button.addEventListener("click", (event) => fedhead.press(group, key, event.shiftKey));
    button.addEventListener("dblclick", () => fedhead.press(group, key, true));
  }
  for (const figure of root.querySelectorAll("figure.chart")) fedhead.observer.observe(figure);
};

// Paper is white: print every chart in light colors, also those that were not on the screen yet.
fedhead.printing = (on) => {
  const { dataset } = document.documentElement;
  if (on) { fedhead.screenTheme = dataset.theme; dataset.theme = "light"; }
  else if (fedhead.screenTheme) dataset.theme = fedhead.screenTheme;
  else delete dataset.theme;
  for (const figure of document.querySelectorAll("figure.chart")) if (on || figure.drawn) fedhead.draw(figure);
};
addEventListener("beforeprint", () => fedhead.printing(true));
addEventListener("afterprint", () => fedhead.printing(false));
