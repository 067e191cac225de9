"use strict";
// Sorting and picking parameters, and three charts, from the numbers in the page. Nothing is fetched.
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const table = document.getElementById("parameters");
  const body = table.tBodies[0];
  const rows = Array.from(body.rows);
  const search = document.getElementById("search");
  const counted = document.getElementById("counted");
  const across = document.getElementById("across");
  const up = document.getElementById("up");
  const MOST_SHOWN = 50;
  let everything = false;

  function show() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let found = 0;
    for (const row of Array.from(body.rows)) {
      const name = data.names[Number(row.dataset.i)].toLowerCase();
      const hit = words.every((word) => name.includes(word));
      found += hit ? 1 : 0;
      row.hidden = !hit || (!everything && found > MOST_SHOWN);
    }
    const shown = everything ? found : Math.min(found, MOST_SHOWN);
    counted.textContent = shown + " of " + data.names.length + " parameters";
    more.hidden = everything || found <= MOST_SHOWN;
  }

  function sort(column, button) {
    const head = button.parentElement;
    const rising = head.getAttribute("aria-sort") !== "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", rising ? "ascending" : "descending");
    const key = (row) => (column === 0 ? Number(row.dataset.i) : Number(row.cells[column].dataset.v));
    rows.sort((a, b) => {
      const x = key(a), y = key(b);
      if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
      return rising ? x - y : y - x;
    });
    body.append(...rows);
    show();
  }

  const SVG = "http://www.w3.org/2000/svg";
  function add(parent, kind, attributes, text) {
    const node = document.createElementNS(SVG, kind);
    for (const name in attributes) node.setAttribute(name, attributes[name]);
    if (text !== undefined) node.textContent = text;
    parent.append(node);
    return node;
  }
  function brief(x) {
    const size = Math.abs(x);
    return x === 0 ? "0" : size >= 1e5 || size < 1e-3 ? x.toExponential(1) : String(Number(x.toPrecision(3)));
  }
  function drawing(id) {
    const svg = document.getElementById(id);
    svg.replaceChildren();
    return svg;
  }
  const LEFT = 58, RIGHT = 415, TOP = 26, BOTTOM = 262;
  function axes(svg, x, y, names) {
    add(svg, "path", { class: "axis", fill: "none", d: `M${LEFT} ${TOP}V${BOTTOM}H${RIGHT}` });
    [0, 0.5, 1].forEach((t, k) => {
      const anchor = ["start", "middle", "end"][k];
      add(svg, "text", { x: LEFT + t * (RIGHT - LEFT), y: BOTTOM + 15, "text-anchor": anchor }, x[k]);
      if (y) add(svg, "text", { x: LEFT - 5, y: BOTTOM - t * (BOTTOM - TOP) + 4, "text-anchor": "end" }, y[k]);
    });
    add(svg, "text", { x: (LEFT + RIGHT) / 2, y: BOTTOM + 32, "text-anchor": "middle" }, names[0]);
    if (names[1]) add(svg, "text", { x: 4, y: 14 }, names[1]);
  }

  function marginal(i) {
    const svg = drawing("marginal");
    const [low, high, counts] = data.histograms[i];
    const top = Math.max(...counts) || 1;
    const wide = (RIGHT - LEFT) / counts.length;
    axes(svg, [low, (low + high) / 2, high].map(brief), null, [data.names[i]]);
    counts.forEach((count, k) => {
      const tall = (count / top) * (BOTTOM - TOP);
      add(svg, "rect", { class: "bar", x: LEFT + k * wide, y: BOTTOM - tall, width: wide * 0.92, height: tall });
    });
    const row = rows.find((one) => Number(one.dataset.i) === i);
    const place = (v) => LEFT + ((v - low) / (high - low || 1)) * (RIGHT - LEFT);
    const mean = Number(row.cells[1].dataset.v);
    add(svg, "path", { class: "mark", d: `M${place(mean)} ${TOP}V${BOTTOM}` });
    document.getElementById("marginal-words").textContent =
      data.names[i] + ": mean " + row.cells[1].textContent + ", sd " + row.cells[data.sd_column].textContent;
    for (const one of rows) one.classList.toggle("chosen", one === row);
  }

  function shade(t) {
    // From dark blue, far out, to yellow, where the density is highest: readable by the colour-blind.
    const stops = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
    const at = Math.min(Math.max(t, 0), 1) * 4, k = Math.min(Math.floor(at), 3), s = at - k;
    return "rgb(" + stops[k].map((v, j) => Math.round(v + s * (stops[k + 1][j] - v))).join(",") + ")";
  }
  function pairs() {
    const svg = drawing("pairs");
    const i = Number(across.value), j = Number(up.value);
    const xs = data.draws.map((row) => row[i]), ys = data.draws.map((row) => row[j]);
    const ends = (v) => [Math.min(...v), Math.max(...v)];
    const [x0, x1] = ends(xs), [y0, y1] = ends(ys);
    axes(svg, [x0, (x0 + x1) / 2, x1].map(brief), [y0, (y0 + y1) / 2, y1].map(brief), [data.names[i], data.names[j]]);
    xs.forEach((x, k) => {
      const fill = data.densities ? { fill: shade(data.densities[k]) } : { class: "dot" };
      add(svg, "circle", {
        cx: LEFT + ((x - x0) / (x1 - x0 || 1)) * (RIGHT - LEFT),
        cy: BOTTOM - ((ys[k] - y0) / (y1 - y0 || 1)) * (BOTTOM - TOP), r: 2.6, opacity: 0.75, ...fill,
      });
    });
  }

  function progress() {
    if (!document.getElementById("rounds") || !data.rounds.some((r) => r[1] > 0)) return;
    const svg = drawing("rounds");
    const xs = data.rounds.map((r) => Math.log10(r[0])), errors = data.rounds.map((r) => r[1]).filter((e) => e > 0);
    const all = errors.concat(data.goal ? [data.goal] : []).map((e) => Math.log10(e));
    const pad = (a, b) => (b > a ? [a, b] : [a - 0.5, b + 0.5]);
    const [x0, x1] = pad(Math.min(...xs), Math.max(...xs)), [y0, y1] = pad(Math.min(...all), Math.max(...all));
    const px = (x) => LEFT + ((x - x0) / (x1 - x0)) * (RIGHT - LEFT);
    const py = (y) => BOTTOM - ((y - y0) / (y1 - y0)) * (BOTTOM - TOP);
    axes(svg, [x0, (x0 + x1) / 2, x1].map((v) => brief(10 ** v)), [y0, (y0 + y1) / 2, y1].map((v) => brief(10 ** v)),
      [data.rounds_over, data.rounds_of]);
    if (data.goal) add(svg, "path", { class: "goal", d: `M${LEFT} ${py(Math.log10(data.goal))}H${RIGHT}` });
    const points = data.rounds.filter((r) => r[1] > 0).map((r) => [px(Math.log10(r[0])), py(Math.log10(r[1]))]);
    add(svg, "path", { class: "path", d: "M" + points.map((p) => p.join(" ")).join("L") });
    for (const [cx, cy] of points) add(svg, "circle", { class: "dot", cx, cy, r: 3.5 });
  }

  const more = document.getElementById("more");
  more.addEventListener("click", () => { everything = true; show(); });
  search.addEventListener("input", show);
  Array.from(table.tHead.rows[0].cells).forEach((cell, column) => {
    const button = cell.querySelector("button");
    button.addEventListener("click", () => sort(column, button));
  });
  for (const row of rows) row.addEventListener("click", () => marginal(Number(row.dataset.i)));
  for (const select of [across, up]) {
    data.names.forEach((name, i) => select.append(new Option(name, i)));
    select.addEventListener("change", pairs);
  }
  const order = data.foremost;
  across.value = order[0];
  up.value = order[Math.min(1, order.length - 1)];
  show();
  marginal(order[0]);
  pairs();
  progress();
})();
