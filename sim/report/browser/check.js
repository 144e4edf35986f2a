// Checks a page from within, once its charts are drawn, and sends one line to the frame around it.
(() => {
  "use strict";
  const faults = [];
  const all = (query, inside = document) => [...inside.querySelectorAll(query)];
  const root = document.scrollingElement;
  const figures = all("figure[data-chart]");
  const titleOf = figure => figure.querySelector("h3").textContent;

  const noSidewaysScroll = when => {
    if (root.scrollWidth > root.clientWidth) faults.push(`${when}, the page is ${root.scrollWidth} px wide`);
  };

  // Labels below a chart do not touch, and on logarithmic axes are numbers of two digits.
  let logarithmic = 0;
  const axes = () => {
    for (const figure of figures) {
      const isLogarithmic = figure.textContent.includes(", logarithmic");
      logarithmic += isLogarithmic;
      for (const svg of all("svg", figure)) {
        const bottom = Number(svg.getAttribute("viewBox").split(" ")[3]) - 20;
        const labels = all("text", svg).filter(text => Number(text.getAttribute("y")) === bottom);
        labels.forEach((label, i) => {
          const box = label.getBoundingClientRect(), before = i && labels[i - 1].getBoundingClientRect();
          if (before && box.left < before.right + 2) faults.push(`${titleOf(figure)}: the labels ${labels[i - 1].textContent} and ${label.textContent} touch`);
          const digits = label.textContent.replace(/[^0-9]/g, "").replace(/^0+|0+$/g, "");
          if (isLogarithmic && digits.length > 2) faults.push(`${titleOf(figure)}: the tick ${label.textContent} is not round`);
        });
        if (isLogarithmic && labels.length < 2) faults.push(`${titleOf(figure)}: ${labels.length} ticks`);
      }
    }
  };

  // Marks of a series: lines, areas and bars.
  const marks = figure => all("svg path, svg rect", figure).length;
  const buttonsOf = key => all(".legend button").filter(button => button.dataset.key === key);
  let switches = 0;
  const legends = () => {
    for (const key of new Set(all(".legend button").map(button => button.dataset.key))) {
      switches++;
      const before = figures.map(marks);
      const concerned = figures.map(figure => buttonsOf(key).some(button => figure.contains(button)));
      const button = buttonsOf(key).pop();
      button.focus();
      button.click();
      const focused = document.activeElement;
      if (focused.dataset.key !== key) faults.push(`${key}: the focus is lost`);
      if (buttonsOf(key).some(button => button.getAttribute("aria-pressed") !== "false")) faults.push(`${key}: a legend says it is on`);
      figures.forEach((figure, i) => {
        const fewer = marks(figure) < before[i];
        if (concerned[i] && !fewer) faults.push(`${key}: nothing is hidden in ${titleOf(figure)}`);
        if (!concerned[i] && fewer && !key.startsWith("run ")) faults.push(`${key}: something is hidden in ${titleOf(figure)}`);
      });
      noSidewaysScroll(`without ${key}`);
      focused.click();
      if (figures.some((figure, i) => marks(figure) !== before[i])) faults.push(`${key}: not all is back`);
    }
    // All at once.
    const keys = [...new Set(all(".legend button").map(button => button.dataset.key))];
    for (let twice = 0; twice < 2; twice++) keys.forEach(key => buttonsOf(key)[0]?.click());
  };

  // The first column of a table that scrolls stays, and nothing behind it shows through.
  let scrolled = 0;
  const tables = () => {
    for (const box of all(".scroll")) {
      if (box.scrollWidth <= box.clientWidth) continue;
      scrolled++;
      box.scrollLeft = box.scrollWidth;
      const edge = box.getBoundingClientRect().left + box.clientLeft;
      for (const cell of all("th:first-child", box)) {
        const { left, right, width, top, height } = cell.getBoundingClientRect();
        if (Math.abs(left - edge) > 1) faults.push(`the cell '${cell.textContent}' is ${Math.round(left - edge)} px off the edge`);
        if (width > box.clientWidth / 2) faults.push(`the cell '${cell.textContent}' takes ${Math.round(width)} of ${box.clientWidth} px`);
        const colour = getComputedStyle(cell).backgroundColor;
        if (/, 0\)|transparent/.test(colour)) faults.push(`'${cell.textContent}' lets columns show through`);
        void [right, top, height];
      }
      box.scrollLeft = 0;
    }
  };

  addEventListener("load", () => {
    noSidewaysScroll("at first");
    axes();
    tables();
    legends();
    const facts = `${figures.length} charts, ${logarithmic} logarithmic axes, ${switches} series switched, ${scrolled} tables scrolled, ${root.scrollHeight} px high`;
    const shown = [...new Set(faults)];
    parent.postMessage(shown.length ? `FAULTY: ${shown.slice(0, 6).join("; ")}, ${facts}` : `good: ${facts}`, "*");
  });
})();
