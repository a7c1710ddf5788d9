(() => {
  const colours = JSON.parse(document.documentElement.dataset.colours);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const boxes = [...document.querySelectorAll(".plot")];
  const paint = (layout, ink) => {
    const changes = { "font.color": ink.ink, "hoverlabel.bgcolor": ink.card,
      "hoverlabel.bordercolor": ink.soft, "hoverlabel.font.color": ink.ink };
    for (const name of Object.keys(layout).filter((key) => /^[xy]axis[0-9]*$/.test(key)))
      for (const part of ["gridcolor", "zerolinecolor", "linecolor", "tickcolor"])
        changes[name + "." + part] = ink.line;
    return changes;
  };
  const repaint = (ink, more) => boxes.map((box) =>
    Plotly.relayout(box, { ...paint(box.layout, ink), ...more }));
  const current = () => dark.matches ? colours.dark : colours.light;
  const options = { responsive: true, displaylogo: false, modeBarButtons: [["toImage"]],
    displayModeBar: innerWidth > 600 ? "hover" : false };
  for (const box of boxes) {
    const { data, layout } = JSON.parse(document.getElementById(box.id + "-data").textContent);
    for (const [path, colour] of Object.entries(paint(layout, current()))) {
      const names = path.split("."), last = names.pop();
      names.reduce((part, name) => part[name] ??= {}, layout)[last] = colour;
    }
    Plotly.newPlot(box, data, layout, options);
  }
  dark.addEventListener("change", () => repaint(current()));
  addEventListener("beforeprint", () => repaint(colours.light, { width: 620 }));
  addEventListener("afterprint", () => repaint(current(), { width: null, autosize: true }));
})();
