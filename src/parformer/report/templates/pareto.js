(() => {
  const group = document.querySelector(".limits");
  if (!group) return;
  const known = JSON.parse(group.dataset.known);
  const find = (selector) => group.querySelector(selector);
  const inputs = [...group.querySelectorAll("input")], total = known.quality.length;
  const rows = [...document.querySelectorAll("tr[data-row]")];
  const count = find(".answer b"), words = find(".answer span"), line = find("code");
  const copy = find(".copy");
  const boxes = [...document.querySelectorAll(".plot")]
    .filter((box) => box.data.some(({ meta }) => meta === "limited"));
  let given = [], best = -1, waiting = false;
  const limits = () => inputs.flatMap((input) => {
    const stop = known.stops[input.name][+input.value];
    return stop ? [{ metric: input.name, most: stop[0], told: stop[1], option: stop[2] }] : [];
  });
  const fits = (row) => given.every(({ metric, most }) => {
    const value = known.figures[metric][row];
    return value !== null && value <= most;
  });
  // a figure redraws thousands of dots for any change; classes of a few points are changed at once
  const mark = (box) => {
    for (const { meta, uid, customdata } of box.data) {
      if (meta !== "limited") continue;
      box.querySelectorAll(".trace" + uid + " path.point").forEach((point, place) => {
        point.classList.toggle("out", !fits(customdata[place]));
        point.classList.toggle("best", given.length > 0 && customdata[place] === best);
      });
    }
  };
  const shade = (box) => {
    const { metric, size } = box.layout.meta;
    const own = given.find((limit) => limit.metric === metric);
    Plotly.relayout(box, { shapes: own ? [{ type: "rect", xref: "x", yref: "paper", layer: "below",
      x0: own.most / size, x1: box.layout.xaxis.range[1], y0: 0, y1: 1, line: { width: 0 },
      fillcolor: "rgba(128, 132, 140, 0.16)" }] : [] });
  };
  const show = () => {
    const left = [];
    given = limits();
    for (const input of inputs) {
      const told = given.find(({ metric }) => metric === input.name)?.told;
      input.parentElement.querySelector("output").value = told ? "at most " + told : "no limit";
      input.setAttribute("aria-valuetext", told ? "at most " + told : "no limit");
    }
    for (let row = 0; row < total; row++)
      if (known.quality[row] !== null && fits(row)) left.push(row);
    best = left.reduce((a, b) => a < 0 || known.quality[b] > known.quality[a] ? b : a, -1);
    count.textContent = left.length ? left.length + " of " + total + " left; best quality:"
      : "Nothing on the front keeps to these limits together; loosen one.";
    words.textContent = best < 0 ? "" : known.words[best];
    line.textContent = [known.pick, ...given.map(({ option }) => "--limit " + option)].join(" ");
    copy.disabled = best < 0;
    copy.textContent = "copy";
    for (const row of rows) {
      row.classList.toggle("out", !left.includes(+row.dataset.row));
      row.classList.toggle("best", given.length > 0 && +row.dataset.row === best);
    }
    for (const box of boxes) { mark(box); shade(box); }
  };
  const soon = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; show(); });
  };
  for (const input of inputs) input.addEventListener("input", soon);
  find(".clear").addEventListener("click", () => {
    for (const input of inputs) input.value = input.max;
    show();
  });
  copy.addEventListener("click", async () => {
    getSelection().selectAllChildren(line);
    try {
      await navigator.clipboard.writeText(line.textContent);
      copy.textContent = "copied";
    } catch { copy.textContent = "selected"; }
  });
  for (const box of boxes) box.on("plotly_afterplot", () => mark(box));
  show();
})();
