(() => {
  const signs = { " ": "␣", "\n": "⏎", "\r": "␍", "\t": "⇥" };
  const seen = (token) => [...token].map((c) => signs[c] ?? c).join("") || "∅";
  const share = (byte) => byte ? (100 * byte / 255).toFixed(1) + "%" : "nothing";
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const make = (kind, inside, text) => {
    const made = document.createElement(kind);
    if (text !== undefined) made.textContent = text;
    return inside.appendChild(made);
  };
  // small weights would not show at all if colour followed them in proportion
  const strength = (byte) => Math.sqrt(byte / 255);
  const thumbnail = (canvas, map, rows, columns) => {
    canvas.width = columns; canvas.height = rows;
    const pen = canvas.getContext("2d"), image = pen.createImageData(columns, rows);
    map.forEach((byte, i) => image.data.set([124, 92, 255, 255 * strength(byte)], 4 * i));
    pen.putImageData(image, 0, 0);
  };
  const cut = (text, most) => text.length > most ? text.slice(0, most - 1) + "…" : text;

  for (const box of document.querySelectorAll(".maps")) {
    const data = JSON.parse(document.getElementById(box.id + "-data").textContent);
    const numbers = (count) => Array.from({ length: count }, (_, i) => String(i + 1));
    const names = (block) => ({
      rows: block.keys === "places" ? numbers(block.rows) : block.place.startsWith("encoder")
        ? data.source.map(seen) : data.tokens.map(seen),
      columns: block.keys === "places" ? numbers(block.columns)
        : block.keys === "source" || block.place.startsWith("encoder")
          ? data.source.map(seen) : data.tokens.map(seen),
    });
    const heads = make("div", box), large = make("div", box);
    heads.className = "heads"; large.className = "large";
    const told = make("p", large), wide = make("div", large), canvas = make("canvas", wide);
    told.className = "told"; wide.className = "wide";
    canvas.setAttribute("role", "img");
    let shown = null;

    const draw = (at) => {
      const { block, map, rows, columns } = shown, most = 12;
      const cell = Math.max(4, Math.min(20, Math.floor(520 / Math.max(block.rows, block.columns))));
      const font = Math.min(12, Math.max(8, cell)), every = Math.ceil(font / cell);
      const pen = canvas.getContext("2d"), ratio = devicePixelRatio || 1;
      pen.font = font + "px ui-monospace, monospace";
      const width = (all) => Math.max(...all.map((t) => pen.measureText(cut(t, most)).width)) + 8;
      const upright = width(columns) - 8 <= cell;
      const left = width(rows), top = upright ? font + 6 : width(columns);
      Object.assign(shown, { cell, left, top });
      const size = [left + cell * block.columns + 1, top + cell * block.rows + 1];
      canvas.width = size[0] * ratio; canvas.height = size[1] * ratio;
      canvas.style.width = size[0] + "px"; canvas.style.height = size[1] + "px";
      pen.scale(ratio, ratio);
      pen.font = font + "px ui-monospace, monospace";
      pen.textBaseline = "middle";
      const label = (text, i, marked, across) => {
        if (i % every && !marked) return;
        pen.save();
        pen.fillStyle = marked ? "#7c5cff" : ink("--soft");
        if (across) pen.translate(left + (i + .5) * cell, top - (upright ? font / 2 + 2 : 4));
        if (across && upright) pen.textAlign = "center";
        else if (across) pen.rotate(-Math.PI / 2);
        else { pen.translate(left - 4, top + (i + .5) * cell); pen.textAlign = "right"; }
        pen.fillText(cut(text, most), 0, 0);
        pen.restore();
      };
      rows.forEach((text, i) => label(text, i, at && at[0] === i, false));
      columns.forEach((text, i) => label(text, i, at && at[1] === i, true));
      for (let i = 0; i < map.length; i++) {
        const row = Math.floor(i / block.columns), column = i % block.columns;
        pen.fillStyle = `rgba(124, 92, 255, ${strength(map[i])})`;
        pen.fillRect(left + column * cell, top + row * cell, cell, cell);
      }
      pen.strokeStyle = ink("--line");
      pen.strokeRect(left - .5, top - .5, cell * block.columns + 1, cell * block.rows + 1);
      if (at) {
        pen.strokeStyle = ink("--ink");
        pen.strokeRect(left + at[1] * cell, top + at[0] * cell, cell, cell);
      }
    };
    const tell = (at) => {
      const { block, head, map, rows, columns } = shown;
      told.replaceChildren();
      make("b", told, `${block.title}, head ${head + 1}. `);
      if (!at) {
        told.append(block.heads[head].words + " Rows look at columns; point at a cell for its value.");
        return;
      }
      const [row, column] = at;
      const place = block.keys === "places" ? "Place " : "";
      told.append(`${place}${rows[row]} (row ${row + 1}) looks at ${columns[column]} `
        + `(column ${column + 1}): `);
      make("b", told, share(map[row * block.columns + column]));
      told.append(" of its weight.");
    };
    const under = (event) => {
      const { block, cell, left, top } = shown, here = canvas.getBoundingClientRect();
      const column = Math.floor((event.clientX - here.left - left) / cell);
      const row = Math.floor((event.clientY - here.top - top) / cell);
      const inside = row >= 0 && column >= 0 && row < block.rows && column < block.columns;
      return inside ? [row, column] : null;
    };
    const show = (block, head, button) => {
      for (const other of heads.querySelectorAll("button")) other.ariaPressed = "false";
      button.ariaPressed = "true";
      shown = { block, head, map: bytes(block.heads[head].map), ...names(block) };
      canvas.setAttribute("aria-label", `${block.title}, head ${head + 1}: ${block.heads[head].words}`);
      draw(null); tell(null);
    };
    for (const event of ["pointermove", "pointerdown"])
      canvas.addEventListener(event, (e) => { const at = under(e); draw(at); tell(at); });
    canvas.addEventListener("pointerleave", () => { draw(null); tell(null); });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(null));

    let first = null;
    for (const block of data.blocks) {
      const title = make("p", heads, block.title);
      title.className = "of";
      make("small", title, block.words);
      block.heads.forEach((head, number) => {
        const button = make("button", heads);
        button.type = "button";
        button.title = `head ${number + 1}: ${head.words}`;
        button.setAttribute("aria-label", `${block.title}, head ${number + 1}: ${head.words}`);
        thumbnail(make("canvas", button), bytes(head.map), block.rows, block.columns);
        button.addEventListener("click", () => show(block, number, button));
        first ??= () => show(block, number, button);
      });
    }
    first?.();
  }
})();
