"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue("--" + name).trim();
  const scales = {
    "@sequential": () => [[0, value("low")], [1, value("high")]],
    "@diverging": () => [[0, value("cold")], [0.5, value("middle")], [1, value("warm")]],
  };

  // a token is a colour only where Plotly expects a colour, so that no name of the data is ever taken for one
  const colour = (token) => {
    if (typeof token !== "string" || token[0] !== "@") return token;
    if (scales[token]) return scales[token]();
    const domain = /^@domain(\d+)$/.exec(token);
    return value(domain ? "domain" + (Number(domain[1]) % 10) : token.slice(1));
  };
  const coloured = (node, key) => {
    if (key === "color" || key === "colorscale") return Array.isArray(node) ? node.map(colour) : colour(node);
    if (Array.isArray(node)) return node.map((item) => coloured(item));
    if (node === null || typeof node !== "object") return node;
    return Object.fromEntries(Object.entries(node).map(([name, item]) => [name, coloured(item, name)]));
  };

  const draw = (place) => {
    const { data, layout } = coloured(figures[place.dataset.figure]);
    const narrow = place.clientWidth < 480;
    if (narrow) for (const trace of data) if (trace.type === "heatmap" && trace.texttemplate) trace.showscale = false;
    const axis = (own) => ({ ...line, ...own, title: { standoff: 10, font: { size: 13, color: value("muted") }, ...own?.title } });
    const line = { gridcolor: value("grid"), zerolinecolor: value("muted"), linecolor: value("grid"), zeroline: false, automargin: true, fixedrange: true };
    Plotly.react(place, data, {
      ...layout,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: value("text"), family: "system-ui, sans-serif", size: narrow ? 11 : 13 },
      margin: { l: 8, r: 8, t: 12, b: 20, ...layout.margin },
      xaxis: axis(layout.xaxis),
      yaxis: axis(layout.yaxis),
      hoverlabel: { bgcolor: value("surface"), bordercolor: value("muted"), font: { color: value("text") } },
      dragmode: false,
    }, { responsive: true, displayModeBar: false });
    place.dataset.drawn = "yes";
  };
  // a chart in a hidden panel has no width yet: it is drawn when it is first seen
  const drawVisible = () => {
    for (const place of document.querySelectorAll(".chart:not([data-drawn])")) {
      if (place.offsetParent !== null) draw(place);
    }
  };
  const choose = (group, chosen) => {
    for (const button of document.querySelectorAll(`[data-choice="${group}"] button`)) {
      button.setAttribute("aria-selected", String(button.dataset.value === chosen));
    }
    for (const panel of document.querySelectorAll(`[data-panel="${group}"]`)) panel.hidden = panel.dataset.value !== chosen;
    drawVisible();
    for (const place of document.querySelectorAll(`[data-panel="${group}"]:not([hidden]) .chart`)) Plotly.Plots.resize(place);
  };

  document.documentElement.classList.add("scripted");
  for (const choice of document.querySelectorAll("[data-choice]")) {
    const group = choice.dataset.choice;
    choice.addEventListener("click", (event) => {
      if (event.target.dataset.value !== undefined) choose(group, event.target.dataset.value);
    });
    choose(group, choice.querySelector('[aria-selected="true"]').dataset.value);
  }
  drawVisible();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const place of document.querySelectorAll(".chart[data-drawn]")) delete place.dataset.drawn;
    drawVisible();
  });
})();
