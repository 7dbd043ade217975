// Draw each figure when it comes into view or the page is printed; draw it again when the colour scheme changes.
(() => {
  const value = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const themed = layout => {
    const axis = ({ title, ...own } = {}) => ({ title: title ? { text: title, font: { size: 12 } } : undefined, gridcolor: value("--line"), zerolinecolor: value("--line"), linecolor: value("--line"), automargin: true, ...own });
    return {
      ...layout,
      xaxis: axis(layout.xaxis), yaxis: axis(layout.yaxis),
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: value("--ink"), family: "system-ui, sans-serif", size: 12 },
      margin: { l: 50, r: 12, t: 8, b: 44 },
      legend: { orientation: "h", y: -0.22, ...(layout.legend || {}) },
      hoverlabel: { bgcolor: value("--paper"), font: { color: value("--ink") } },
    };
  };
  const resized = new ResizeObserver(entries => entries.forEach(entry => Plotly.Plots.resize(entry.target)));
  const draw = place => {
    const figure = JSON.parse(place.nextElementSibling.textContent);
    Plotly.react(place, figure.data, themed(figure.layout), { displayModeBar: false });
    place.dataset.drawn = "yes";
    resized.observe(place);
  };
  const watcher = new IntersectionObserver(entries => {
    for (const entry of entries) if (entry.isIntersecting && !entry.target.dataset.drawn) draw(entry.target);
  }, { rootMargin: "300px" });
  document.querySelectorAll(".plot").forEach(place => watcher.observe(place));
  // A printed page shows everything.
  addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach(fold => { fold.open = true; });
    document.querySelectorAll(".plot:not([data-drawn])").forEach(draw);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
    document.querySelectorAll(".plot[data-drawn]").forEach(draw));
})();
