(() => {
  const figures = JSON.parse($("figures").textContent);

  // a chart in a hidden panel has no width yet: it is drawn when it is first seen
  const drawVisible = () => {
    for (const place of document.querySelectorAll(".chart:not([data-drawn])")) {
      if (place.offsetParent !== null) drawChart(place, figures[place.dataset.figure]);
    }
  };
  const drawAnew = () => {
    for (const place of document.querySelectorAll(".chart[data-drawn]")) delete place.dataset.drawn;
    drawVisible();
  };
  const choose = (group, chosen) => {
    for (const button of document.querySelectorAll(`[data-choice="${group}"] button`)) {
      button.setAttribute("aria-selected", String(button.dataset.value === chosen));
    }
    for (const panel of document.querySelectorAll(`[data-panel="${group}"]`)) panel.hidden = panel.dataset.value !== chosen;
    drawVisible();
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
  for (const folded of document.querySelectorAll("details")) folded.addEventListener("toggle", drawVisible);
  let width = innerWidth, timer;
  addEventListener("resize", () => {
    if (innerWidth === width) return; // a phone's bars come and go while scrolling
    width = innerWidth;
    clearTimeout(timer);
    timer = setTimeout(drawAnew, 120);
  });
  addEventListener("scroll", () => document.activeElement?.tagName === "svg" || tip(""), { passive: true });
})();
