// The charts and controls of the report. ``charts.js`` stands before it.
const DATA = JSON.parse(document.getElementById("data").textContent);
const state = { table: 0, filter: "" };
const table = () => DATA.tables[state.table];

// ---- small helpers ---------------------------------------------------------------------------------------------

const one = (value) => value.toFixed(1);
const signed = (value) => (Math.abs(value) < 0.05 ? "" : value > 0 ? "+" : "−") + Math.abs(value).toFixed(1);
const seconds = (value) => (value < 60 ? `${number(value)} s` : value < 5400 ? `${number(value / 60)} min` : `${number(value / 3600)} h`);

function options(select, entries, keep) {
  const before = keep ? select.value : null;
  select.replaceChildren(...entries.map(([value, label]) => html("option", { value, text: label })));
  if (before !== null && entries.some(([value]) => String(value) === before)) select.value = before;
}

// Those in front have a colour each, the others are grey.
function colour(algorithm) {
  const place = inFront().indexOf(algorithm);
  return place < 0 ? "var(--muted)" : `var(--c${place % 8})`;
}

// The algorithms whose curves stand in front: all that are shown if they are few, else the best and the baseline.
const MOST_IN_FRONT = 6;
function inFront() {
  const names = byAverage(shown());
  if (names.length <= MOST_IN_FRONT) return names;
  const baseline = $("baseline").value || table().algorithms[0];
  return [...new Set([...names.slice(0, MOST_IN_FRONT - 1), ...names.filter((name) => name === baseline)])];
}
// Lines differ without colour too: each in front has its own dashes.
const pattern = (algorithm) => ["", "7 3", "2 3", "9 3 2 3", "12 4", "4 2 1 2"][Math.max(0, inFront().indexOf(algorithm)) % 6];

function visible(algorithm) {
  const words = state.filter.toLowerCase().split(",").map((word) => word.trim()).filter(Boolean);
  return words.length === 0 || words.some((word) => algorithm.toLowerCase().includes(word));
}
const shown = () => table().algorithms.filter(visible);

// ---- overview: sorting, filtering ------------------------------------------------------------------------------

function sortable(node) {
  const headings = [...node.querySelectorAll("thead th")];
  headings.forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => {
      const now = heading.getAttribute("aria-sort");
      const lowFirst = column === 0 || /^(mean rank|seconds)$/.test(heading.textContent);
      const order = now ? (now === "descending" ? "ascending" : "descending") : lowFirst ? "ascending" : "descending";
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      const body = node.querySelector("tbody");
      const value = (row) => (column === 0 ? row.dataset.algorithm.toLowerCase() : parseFloat(row.children[column].dataset.v));
      const rows = [...body.rows].sort((a, b) => {
        const [left, right] = [value(a), value(b)];
        if (column === 0) return sign * left.localeCompare(right);
        if (Number.isNaN(left) || Number.isNaN(right)) return Number.isNaN(left) - Number.isNaN(right); // what is missing comes last
        return sign * (left - right);
      });
      body.append(...rows);
    });
  });
}

function applyFilter() {
  let count = 0, all = 0;
  for (const row of document.querySelectorAll(".figures tbody tr")) {
    const keep = visible(row.dataset.algorithm);
    row.hidden = !keep;
    if (row.closest(".overview")?.dataset.table === String(state.table)) { all += 1; count += keep; }
  }
  $("shown").textContent = state.filter ? `${count} of ${all} rows` : "";
}

// ---- charts ----------------------------------------------------------------------------------------------------

// Rows of dots with error bars; several panels share their scale so that lengths compare.
function dots(root, columns, algorithms) {
  clear(root);
  const cells = columns.map((column) => algorithms.map((name) => ({ name, ...table().figures[name][column] })).filter((c) => c.mean !== undefined));
  const spread = (c) => [c.mean - (c.error || 0), c.mean + (c.error || 0), ...Object.values(c.values), ...(c.published !== undefined ? [c.published] : [])];
  const span = Math.max(2, ...cells.filter((c) => c.length).map((c) => { const [low, high] = padded(c.flatMap(spread), 0.06, 0.3); return high - low; }));
  columns.forEach((column, k) => {
    const { drawing, width, size } = figure(root, column, `Accuracy of each algorithm: ${column}`);
    if (cells[k].length === 0) { drawing.remove(); empty(root.lastChild, "missing runs"); return; }
    const values = cells[k].flatMap(spread);
    const middle = (Math.min(...values) + Math.max(...values)) / 2;
    const label = Math.min(130, 12 + 6.6 * Math.max(...algorithms.map((name) => name.length)));
    const box = { left: label, right: width - 12, top: 8, bottom: 14 + 22 * algorithms.length };
    size(box.bottom + 24);
    const x = linear(middle - span / 2, middle + span / 2, box.left, box.right);
    for (const tick of x.ticks) {
      drawing.append(svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: box.top, y2: box.bottom }));
      drawing.append(svg("text", { x: x(tick), y: box.bottom + 14, "text-anchor": "middle", text: number(tick) }));
    }
    const marks = [];
    algorithms.forEach((name, row) => {
      const y = 22 + 22 * row, cell = table().figures[name][column];
      const text = svg("text", { x: 0, y: y + 4, class: "ink", text: name });
      if (cell.bold) text.setAttribute("font-weight", "700");
      drawing.append(text);
      if (cell.mean === undefined) {
        drawing.append(svg("text", { x: box.left + 4, y: y + 4, text: cell.missing ? "missing" : "–" }));
        return;
      }
      for (const value of Object.values(cell.values)) {
        drawing.append(svg("line", { x1: x(value), x2: x(value), y1: y - 5, y2: y + 5, stroke: colour(name), "stroke-opacity": 0.45 }));
      }
      if (cell.error) {
        drawing.append(svg("line", { x1: x(cell.mean - cell.error), x2: x(cell.mean + cell.error), y1: y, y2: y, stroke: colour(name), "stroke-width": 3, "stroke-opacity": 0.4, "stroke-linecap": "round" }));
      }
      if (cell.published !== undefined) {
        const px = x(cell.published);
        drawing.append(svg("path", { d: `M${px} ${y - 5}L${px + 5} ${y}L${px} ${y + 5}L${px - 5} ${y}Z`, fill: "none", stroke: "var(--muted)" }));
      }
      const node = svg("circle", { class: "mark", cx: x(cell.mean), cy: y, r: 5, fill: colour(name) });
      const published = cell.published === undefined ? "" : `\npublished ${one(cell.published)} (diamond)`;
      marks.push({ node, text: `${name}, ${column}: ${one(cell.mean)}${cell.error === null ? "" : ` ± ${one(cell.error)}`}${published}` });
      drawing.append(node);
    });
    interactive(drawing, marks);
  });
}

const byAverage = (names) => [...names].sort((a, b) => (table().figures[b].average.mean ?? -1) - (table().figures[a].average.mean ?? -1));

function drawDomains() {
  dots($("domains-chart"), [...table().tested, ...table().summary], byAverage(shown()));
}

function drawShots() {
  clear($("shots-chart"));
  if (table().shots.length) dots($("shots-chart"), table().shots, byAverage(shown()));
}

function drawComparison() {
  const all = table().comparisons, names = Object.keys(all);
  $("compare").hidden = names.length === 0;
  if (names.length === 0) return;
  options($("baseline"), table().algorithms.filter((name) => all[name]).map((name) => [name, name]), true);
  const root = $("compare-chart"), against = $("baseline").value;
  clear(root);
  const rows = shown().filter((name) => all[against][name]).map((name) => ({ name, ...all[against][name] })).sort((a, b) => b.difference - a.difference);
  if (rows.length === 0) { empty(root, "Nothing to compare: figures are missing, or filtered away."); return; }
  const { drawing, width, size } = figure(root, "", `Differences to ${against}`);
  const wide = width > 560;
  const label = Math.min(150, 12 + 6.8 * Math.max(...rows.map((row) => row.name.length)));
  const box = { left: label, right: width - (wide ? 270 : 14), top: 18, bottom: 30 + (wide ? 24 : 40) * rows.length };
  size(box.bottom + 36);
  const [low, high] = padded([0, ...rows.flatMap((row) => [row.low ?? row.difference, row.high ?? row.difference])], 0.06, 0.2);
  const x = linear(low, high, box.left, box.right);
  for (const tick of x.ticks) {
    drawing.append(svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: box.top, y2: box.bottom }));
    drawing.append(svg("text", { x: x(tick), y: box.bottom + 15, "text-anchor": "middle", text: signedTick(tick) }));
  }
  drawing.append(svg("line", { class: "zero", x1: x(0), x2: x(0), y1: box.top - 4, y2: box.bottom }));
  drawing.append(svg("text", { x: (box.left + box.right) / 2, y: box.bottom + 31, "text-anchor": "middle", text: `points of accuracy against ${against}` }));
  if (wide) {
    drawing.append(svg("text", { x: width - 116, y: 12, "text-anchor": "end", text: "difference" }));
    drawing.append(svg("text", { x: width, y: 12, "text-anchor": "end", text: "wins / ties / losses" }));
  }
  const marks = [];
  rows.forEach((row, k) => {
    const y = 34 + (wide ? 24 : 40) * k;
    drawing.append(svg("text", { x: 0, y: y + 4, class: "ink", text: row.name }));
    if (row.low !== null) drawing.append(svg("line", { x1: x(row.low), x2: x(row.high), y1: y, y2: y, stroke: colour(row.name), "stroke-width": 3, "stroke-opacity": 0.45, "stroke-linecap": "round" }));
    const node = svg("circle", { class: "mark", cx: x(row.difference), cy: y, r: 5, fill: colour(row.name) });
    drawing.append(node);
    const score = `${row.wins} / ${row.ties} / ${row.losses}`;
    const interval = row.low === null ? "" : ` (${signed(row.low)} to ${signed(row.high)})`;
    if (wide) {
      drawing.append(svg("text", { class: "ink", x: width - 116, y: y + 4, "text-anchor": "end", text: signed(row.difference) + interval }));
      drawing.append(svg("text", { x: width, y: y + 4, "text-anchor": "end", text: score }));
    } else drawing.append(svg("text", { x: 0, y: y + 20, text: `${signed(row.difference)}${interval}, ${score} wins / ties / losses` }));
    marks.push({ node, text: `${row.name} against ${against}: ${signed(row.difference)}${interval}\n${row.wins} wins, ${row.ties} ties, ${row.losses} losses in ${row.pairs} pairs` });
  });
  interactive(drawing, marks);
}

// lines: [{name, colour, dash, strong, points: [[step, value]], mark}]
function lines(root, caption, list) {
  clear(root);
  const { drawing, width, size } = figure(root, caption, caption);
  const values = list.flatMap((line) => [...line.points.map((point) => point[1]), ...(line.band || []).flatMap((point) => point.slice(1))]);
  if (values.length === 0) { drawing.remove(); empty(root, "No curves."); return; }
  const box = { left: 42, right: width - 10, top: 22, bottom: 250 };
  size(box.bottom + 38);
  const steps = list.flatMap((line) => line.points.map((point) => point[0]));
  const x = linear(Math.min(...steps), Math.max(...steps), box.left, box.right);
  const y = linear(...padded(values, 0.06, 1), box.bottom, box.top);
  axes(drawing, x, y, box, { xLabel: "step", yLabel: "accuracy, %", xText: (tick) => tick.toLocaleString("en") });
  const marks = [];
  for (const line of list) {
    if (line.band) {
      const around = [...line.band.map(([a, , b]) => [a, b]), ...line.band.map(([a, b]) => [a, b]).reverse()];
      drawing.append(svg("path", { d: `${around.map(([a, b], k) => `${k ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("")}Z`, fill: line.colour, "fill-opacity": 0.13 }));
    }
    const path = line.points.map(([a, b], k) => `${k ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("");
    drawing.append(svg("path", { d: path, fill: "none", stroke: line.colour, "stroke-dasharray": line.dash || null, "stroke-width": line.strong ? 2.2 : 1, "stroke-opacity": line.strong ? 1 : 0.45, "stroke-linejoin": "round" }));
    const spots = line.strong ? line.points : line.points.slice(-1);
    for (const [a, b] of spots) {
      const picked = line.mark === a;
      const node = svg("circle", { class: "mark", cx: x(a), cy: y(b), r: picked ? 5.5 : line.strong ? 2.6 : 2, fill: picked ? "var(--card)" : line.colour, stroke: line.colour, "stroke-width": picked ? 2.4 : 0 });
      const hit = svg("circle", { class: "hit", cx: x(a), cy: y(b), r: 9 });
      drawing.append(node, hit);
      marks.push({ node: hit, text: `${line.name}\nstep ${a.toLocaleString("en")}: ${one(b)} %${picked ? " (chosen)" : ""}` });
    }
  }
  interactive(drawing, marks);
}

const columnsOf = () => (table().protocol === "mdlt" ? [["", "all domains, mean"], ...table().domains.map((name) => [name, name])] : table().tested.map((name) => [name, name]));
const runsOf = (data = table()) => DATA.runs.map((run, k) => ({ ...run, k })).filter((run) => run.data === data.data && run.protocol === data.protocol);

function drawCurves() {
  const column = $("curve-column").value, every = $("curve-trial").value === "" && $("curve-show").value === "", show = $("curve-show").value;
  const mdlt = table().protocol === "mdlt";
  const trial = $("curve-trial").value === "" ? table().choices[0]?.trial : +$("curve-trial").value;
  const chosen = table().choices.filter((choice) => (every || choice.trial === trial) && (mdlt || choice.column === column));
  const test = [], validation = [];
  const add = (run, name, strong, tone, stroke, mark) => {
    const curve = DATA.curves[run];
    if (!curve) return;
    const domains = Object.keys(curve.test).filter((domain) => !mdlt || column === "" || domain === column);
    const points = (value) => curve.steps.map((step, k) => [step, value(k)]).filter((point) => point[1] !== null).map(([a, b]) => [a, 100 * b]);
    if (domains.length) test.push({ name, strong, colour: tone, dash: stroke, mark, points: points((k) => mean(domains.map((domain) => curve.test[domain][k]))) });
    validation.push({ name, strong, colour: tone, dash: stroke, mark, points: points((k) => curve.validation[k]) });
  };
  const legend = $("curve-legend");
  clear(legend);
  // The mean over trials at the steps that all of them evaluated, and the standard deviation around it.
  const addMean = (name, choices) => {
    const curves = choices.map((choice) => DATA.curves[choice.run]).filter(Boolean);
    if (curves.length === 0) return;
    const steps = curves[0].steps.filter((step) => curves.every((curve) => curve.steps.includes(step)));
    const line = (value) => {
      const points = [], band = [];
      for (const step of steps) {
        const values = curves.map((curve) => value(curve, curve.steps.indexOf(step))).filter((found) => Number.isFinite(found));
        if (values.length < curves.length) continue;
        const middle = 100 * mean(values), spread = 100 * Math.sqrt(mean(values.map((found) => (found - mean(values)) ** 2)));
        points.push([step, middle]);
        band.push([step, middle - spread, middle + spread]);
      }
      const strong = inFront().includes(name);
      return { name: `${name}, mean of ${curves.length} trials`, strong, colour: colour(name), dash: strong ? pattern(name) : "", points, band: strong ? band : null };
    };
    const tested = (curve) => Object.keys(curve.test).filter((domain) => !mdlt || column === "" || domain === column);
    if (curves.every((curve) => tested(curve).length)) test.push(line((curve, k) => mean(tested(curve).map((domain) => curve.test[domain][k] ?? NaN))));
    validation.push(line((curve, k) => curve.validation[k] ?? NaN));
  };
  const others = (count) => count && legend.append(html("span", {}, html("i", { style: "border-color:var(--muted)" }), `${count} others: filter to see one in front`));
  if (show === "") {
    for (const name of inFront()) {
      const stroke = svg("svg", { class: "key", viewBox: "0 0 28 6", width: 28, height: 6 }, svg("line", { x1: 0, x2: 28, y1: 3, y2: 3, stroke: colour(name), "stroke-width": 2.4, "stroke-dasharray": pattern(name) || null }));
      legend.append(html("span", {}, stroke, ` ${name}`));
    }
  }
  if (show === "" && every) {
    const front = inFront(), behind = shown().filter((name) => !front.includes(name));
    for (const name of [...behind, ...front.reverse()]) addMean(name, chosen.filter((choice) => choice.algorithm === name));
    others(behind.length);
  } else if (show === "") {
    const front = inFront();
    const last = (choice) => front.indexOf(choice.algorithm); // what is in front is drawn last
    for (const choice of chosen.filter((choice) => visible(choice.algorithm)).sort((a, b) => last(a) - last(b))) {
      const name = choice.algorithm, strong = front.includes(name);
      add(choice.run, name, strong, strong ? colour(name) : "var(--muted)", strong ? pattern(name) : "", choice.step);
    }
    others(shown().length - front.length);
  } else {
    const winners = new Map(chosen.map((choice) => [choice.run, choice]));
    const own = runsOf().filter((run) => run.algorithm === show && run.trial === trial && (mdlt || run.heldOut === column));
    for (const run of own.sort((a, b) => winners.has(a.k) - winners.has(b.k))) {
      const winner = winners.get(run.k);
      add(run.k, `${run.algorithm}, draw ${run.draw}`, Boolean(winner), winner ? colour(show) : "var(--muted)", "", winner?.step);
    }
    legend.append(html("span", {}, html("i", { style: `border-color:${colour(show)}` }), "chosen draw"), html("span", {}, html("i", { style: "border-color:var(--muted)" }), "other draws"));
  }
  const where = mdlt ? (column === "" ? "test parts, mean over domains" : `test part of ${column}`) : `unseen domain ${column}`;
  lines($("curve-test"), where[0].toUpperCase() + where.slice(1), test);
  lines($("curve-validation"), mdlt ? "Validation parts, mean over domains" : "Seen domains, validation parts", validation);
  $("curve-note").textContent = (every ? "Mean over trials of the chosen runs; the band is one standard deviation." : "A ring marks the chosen checkpoint.") + (DATA.curvesLeftOut ? ` Curves of ${DATA.curvesLeftOut.toLocaleString("en")} runs that were not chosen are left out to keep the page small.` : "");
}

// By value where values are many, on a logarithmic scale where they span it (0 then has a place of its own).
function hyperparameterScale(kinds, box) {
  if (!kinds.every((kind) => typeof kind === "number") || kinds.length <= 3) {
    const order = kinds.sort((a, b) => (typeof a === "number" ? a - b : String(a).localeCompare(String(b))));
    const scale = (kind) => box.left + ((order.indexOf(kind) + 0.5) / order.length) * (box.right - box.left);
    scale.ticks = order;
    return scale;
  }
  const positive = kinds.filter((kind) => kind > 0), zero = kinds.includes(0);
  if (kinds.some((kind) => kind < 0) || positive.length < 2 || Math.max(...positive) / Math.min(...positive) < 8) {
    return linear(...padded(kinds, 0.04, 0), box.left, box.right);
  }
  const inner = logarithmic(Math.min(...positive) / 1.3, Math.max(...positive) * 1.3, box.left + (zero ? 30 : 0), box.right);
  const scale = (kind) => (kind === 0 ? box.left + 10 : inner(kind));
  scale.ticks = zero ? [0, ...inner.ticks] : inner.ticks;
  return scale;
}

function drawHyperparameters() {
  const root = $("hp-chart"), algorithm = $("hp-algorithm").value, column = $("hp-column").value, which = $("hp-y").value;
  clear(root);
  const names = DATA.hparams[algorithm] || [];
  const runs = runsOf().filter((run) => run.algorithm === algorithm && run.hparams && run[which] !== null && (column === "" ? table().protocol === "mdlt" || table().tested.includes(run.heldOut) : run.heldOut === column));
  const centred = column === "" && new Set(runs.map((run) => run.heldOut)).size > 1;
  const level = new Map();
  for (const run of runs) level.set(run.heldOut, [...(level.get(run.heldOut) || []), run[which]]);
  const value = (run) => 100 * (run[which] - (centred ? mean(level.get(run.heldOut)) : 0));
  $("hp-note").textContent = names.length === 0 || runs.length === 0
    ? "All runs of this algorithm have the same hyperparameters." : (centred ? "Each point is a run: its accuracy less the mean over the runs that hold out the same domain. " : "Each point is a run. ") + "Filled: chosen.";
  if (runs.length === 0) return;
  const [low, high] = padded(runs.map(value), 0.06, 0.5);
  names.forEach((name, position) => {
    const points = runs.map((run) => ({ run, x: run.hparams[position], y: value(run) })).filter((point) => point.x !== "None");
    const kinds = [...new Set(points.map((point) => point.x))];
    if (kinds.length < 2) return;
    const { drawing, width, size } = figure(root, name, `${name} against accuracy`);
    const box = { left: 40, right: width - 12, top: 16, bottom: 180 };
    size(box.bottom + 24);
    const x = hyperparameterScale(kinds, box);
    const y = linear(low, high, box.bottom, box.top);
    axes(drawing, x, y, box, { yText: centred ? signedTick : number });
    const marks = [];
    for (const point of points.sort((a, b) => a.run.chosen - b.run.chosen)) {
      const node = svg("circle", { class: "mark", cx: x(point.x), cy: y(point.y), r: point.run.chosen ? 5 : 3.6, fill: point.run.chosen ? colour(algorithm) : "none", stroke: colour(algorithm), "stroke-opacity": 0.75, "stroke-width": 1.4, "pointer-events": "all" });
      drawing.append(node);
      marks.push({ node, text: `${name} ${number(point.x)}: ${centred ? `${signed(point.y)} points` : `${one(point.y)} %`}\n${point.run.what}${point.run.chosen ? " (chosen)" : ""}` });
    }
    interactive(drawing, marks);
  });
}

function drawCost() {
  const root = $("cost-chart");
  clear(root);
  const points = shown().map((name) => ({ name, cost: table().cost[name], ...table().figures[name].average })).filter((point) => point.cost && point.mean !== undefined);
  if (points.length === 0) { empty(root, "No algorithm has both its cost and all its runs."); return; }
  const { drawing, width, size } = figure(root, "", "Average accuracy against seconds of a run");
  const box = { left: 42, right: width - 20, top: 24, bottom: 320 };
  size(box.bottom + 40);
  const costs = points.map((point) => point.cost);
  const x = logarithmic(Math.min(...costs) / 1.25, Math.max(...costs) * 1.5, box.left, box.right);
  const y = linear(...padded(points.flatMap((point) => [point.mean - (point.error || 0), point.mean + (point.error || 0)]), 0.1, 0.3), box.bottom, box.top);
  axes(drawing, x, y, box, { xLabel: "time of a run", yLabel: "average accuracy, %", xText: seconds });
  const marks = [], taken = points.flatMap((point) => {
    const cx = x(point.cost), cy = y(point.mean), error = point.error || 0;
    return [{ x1: cx - 6, x2: cx + 6, y1: cy - 6, y2: cy + 6 }, { x1: cx - 3, x2: cx + 3, y1: y(point.mean + error), y2: y(point.mean - error) }];
  });
  for (const point of points.sort((a, b) => b.mean - a.mean)) {
    const cx = x(point.cost), cy = y(point.mean), half = 6.4 * point.name.length;
    if (point.error) drawing.append(svg("line", { x1: cx, x2: cx, y1: y(point.mean - point.error), y2: y(point.mean + point.error), stroke: colour(point.name), "stroke-opacity": 0.4, "stroke-width": 3, "stroke-linecap": "round" }));
    const node = svg("circle", { class: "mark", cx, cy, r: 5.5, fill: colour(point.name) });
    // the name goes right of its point, or left, or to the nearest free line; where all are taken, only pointing at it shows it
    const spots = [0, 13, -13, 26, -26].flatMap((shift) => [false, true].map((left) => ({ left, x1: left ? cx - 10 - half : cx + 10, x2: left ? cx - 10 : cx + 10 + half, y1: cy - 6 + shift, y2: cy + 6 + shift })));
    const free = (s) => s.x1 >= box.left && s.x2 <= width && !taken.some((t) => s.x1 < t.x2 && t.x1 < s.x2 && s.y1 < t.y2 && t.y1 < s.y2);
    const spot = spots.find(free);
    drawing.append(node);
    if (spot) {
      taken.push(spot);
      drawing.append(svg("text", { class: "ink", x: spot.left ? spot.x2 : spot.x1, y: spot.y2 - 2, "text-anchor": spot.left ? "end" : "start", text: point.name }));
    }
    marks.push({ node, text: `${point.name}: ${one(point.mean)} %${point.error === null ? "" : ` ± ${one(point.error)}`}\n${seconds(point.cost)} a run` });
  }
  interactive(drawing, marks);
}

// ---- one run: classes and confusion ----------------------------------------------------------------------------

function confusionOf(run) {
  const found = DATA.confusions[run];
  return found && { ...found, classes: DATA.classes[found.classes] };
}

function matrixOf(confusion, domains) {
  const size = confusion.classes.length;
  const matrix = Array.from({ length: size }, () => new Array(size).fill(0));
  for (const domain of domains) confusion.cells[domain].forEach((row, truth) => {
    for (let k = 0; k < row.length; k += 2) matrix[truth][row[k]] += row[k + 1];
  });
  return matrix;
}

function drawClasses() {
  const root = $("class-chart"), confusion = confusionOf($("run").value);
  clear(root);
  $("class-note").textContent = "";
  if (!confusion) { empty(root, "These runs hold no predictions by class."); return; }
  const domains = Object.keys(confusion.cells);
  const rows = confusion.classes.map((name, k) => ({
    name,
    count: mean(domains.map((domain) => confusion.counts[domain][k])),
    values: domains.map((domain) => {
      const row = matrixOf(confusion, [domain])[k], total = row.reduce((a, b) => a + b, 0);
      return total ? { domain, value: (100 * row[k]) / total, total, right: row[k], seen: confusion.counts[domain][k] } : null;
    }).filter(Boolean),
  })).filter((row) => row.values.length).sort((a, b) => b.count - a.count);
  const { drawing, width, size } = figure(root, "", "Accuracy of each class");
  const label = Math.min(width * 0.36, 14 + 6.4 * Math.max(...rows.map((row) => row.name.length)));
  const box = { left: label + 54, right: width - 12, top: 20, bottom: 30 + 22 * rows.length };
  size(box.bottom + 38);
  const x = linear(0, 100, box.left, box.right);
  for (const tick of x.ticks) {
    drawing.append(svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: box.top, y2: box.bottom }));
    drawing.append(svg("text", { x: x(tick), y: box.bottom + 15, "text-anchor": "middle", text: number(tick) }));
  }
  drawing.append(svg("text", { x: (box.left + box.right) / 2, y: box.bottom + 31, "text-anchor": "middle", text: "accuracy of the class, %" }));
  drawing.append(svg("text", { x: box.left - 8, y: 12, "text-anchor": "end", text: "training samples" }));
  const marks = [], fits = Math.floor(label / 6.4);
  rows.forEach((row, k) => {
    const y = 34 + 22 * k, name = row.name.length > fits ? `${row.name.slice(0, fits - 1)}…` : row.name;
    drawing.append(svg("text", { x: 0, y: y + 4, class: "ink", text: name }));
    drawing.append(svg("text", { x: box.left - 8, y: y + 4, "text-anchor": "end", text: number(Math.round(row.count)) }));
    const centre = mean(row.values.map((cell) => cell.value));
    const from = domains.length > 1 ? Math.min(...row.values.map((c) => c.value)) : 0;
    drawing.append(svg("line", { x1: x(from), x2: x(Math.max(...row.values.map((c) => c.value))), y1: y, y2: y, stroke: "var(--accent)", "stroke-opacity": 0.25, "stroke-width": 3, "stroke-linecap": "round" }));
    for (const cell of row.values) {
      const node = svg("circle", { class: "mark", cx: x(cell.value), cy: y, r: 4, fill: "var(--accent)", "fill-opacity": domains.length > 1 ? 0.45 : 1 });
      drawing.append(node);
      marks.push({ node, text: `${row.name}, ${cell.domain}: ${one(cell.value)} % (${cell.right} of ${cell.total})\n${number(cell.seen)} training samples` });
    }
    if (domains.length > 1) drawing.append(svg("line", { x1: x(centre), x2: x(centre), y1: y - 6, y2: y + 6, stroke: "var(--ink)", "stroke-width": 2 }));
  });
  interactive(drawing, marks);
  $("class-note").textContent = (domains.length > 1 ? "A dot is a domain, the line their mean. " : "") + `Classes by their mean number of training samples in a domain; checkpoint of step ${confusion.step.toLocaleString("en")}, the run's own choice.`;
}

const MOST_CLASSES = 36;

function drawConfusion() {
  const root = $("confusion-chart"), confusion = confusionOf($("run-again").value);
  clear(root);
  clear($("confusion-list"));
  $("confusion-note").textContent = "";
  if (!confusion) { empty(root, "These runs hold no predictions by class."); return; }
  const picked = $("confusion-domain").value;
  const matrix = matrixOf(confusion, picked === "" ? Object.keys(confusion.cells) : [picked]);
  const totals = matrix.map((row) => row.reduce((a, b) => a + b, 0));
  let classes = confusion.classes.map((_, k) => k);
  if (classes.length > MOST_CLASSES) {
    const wrong = (k) => totals[k] - matrix[k][k];
    classes = classes.sort((a, b) => wrong(b) - wrong(a)).slice(0, MOST_CLASSES).sort((a, b) => a - b);
  }
  const { drawing, width, size } = figure(root, "", "Confusion matrix");
  const longest = Math.max(...classes.map((k) => confusion.classes[k].length));
  const label = Math.min(width * 0.29, 12 + 6.4 * longest), fits = Math.floor(label / 6.4);
  const cut = (name) => (name.length > fits ? `${name.slice(0, fits - 1)}…` : name);
  const overhang = 6 + 2.8 * Math.min(longest, fits); // of the slanted names
  const cell = Math.max(8, Math.min(44, (width - label - overhang) / (classes.length - 0.5)));
  const top = Math.min(130, 14 + 5.8 * Math.min(longest, fits));
  size(top + cell * classes.length + 8);
  const marks = [];
  classes.forEach((truth, row) => {
    if (cell >= 10) {
      drawing.append(svg("text", { x: label - 6, y: top + cell * (row + 0.5) + 4, "text-anchor": "end", class: "ink", text: cut(confusion.classes[truth]) }));
      drawing.append(svg("text", { transform: `translate(${label + cell * (row + 0.5) + 3} ${top - 6}) rotate(-64)`, class: "ink", text: cut(confusion.classes[truth]) }));
    }
    classes.forEach((predicted, column) => {
      const count = matrix[truth][predicted], share = totals[truth] ? count / totals[truth] : 0;
      const tone = truth === predicted ? "var(--accent)" : "var(--c1)";
      const node = svg("rect", { class: "mark", x: label + cell * column + 0.5, y: top + cell * row + 0.5, width: cell - 1, height: cell - 1, rx: 2, fill: count ? tone : "var(--soft)", "fill-opacity": count ? 0.12 + 0.88 * share : 1 });
      drawing.append(node);
      if (cell >= 21 && share >= 0.005) {
        const strong = share > 0.55;
        const text = svg("text", { x: label + cell * (column + 0.5), y: top + cell * (row + 0.5) + 4, "text-anchor": "middle", class: "on", "pointer-events": "none", text: Math.round(100 * share) });
        text.setAttribute("style", `fill:${strong ? "var(--card)" : "var(--ink)"}`);
        drawing.append(text);
      }
      marks.push({ node, text: `${confusion.classes[truth]} taken for ${confusion.classes[predicted]}: ${count} of ${totals[truth]} (${one(100 * share)} %)` });
    });
  });
  interactive(drawing, marks);
  listConfusions(confusion, matrix, totals);
  const left = confusion.classes.length - classes.length;
  $("confusion-note").textContent = `Rows: true class; columns: predicted; numbers: per cent of the true class. Checkpoint of step ${confusion.step.toLocaleString("en")}, the run's own choice.` + (left ? ` The ${classes.length} classes with most errors; ${left} others are not shown.` : "");
}

function listConfusions(confusion, matrix, totals) {
  const pairs = [];
  matrix.forEach((row, truth) => row.forEach((count, predicted) => { if (count && truth !== predicted) pairs.push({ truth, predicted, count }); }));
  const most = pairs.sort((a, b) => b.count - a.count).slice(0, 10);
  if (most.length === 0) return;
  const items = most.map(({ truth, predicted, count }) =>
    html("li", {}, `${confusion.classes[truth]} taken for ${confusion.classes[predicted]} `, html("span", { text: `${count} of ${totals[truth]}, ${one((100 * count) / totals[truth])} %` })));
  $("confusion-list").append(html("h3", { text: "Most frequent" }), html("ol", {}, ...items));
}

function runOptions() {
  const own = runsOf().filter((run) => DATA.confusions[run.k]);
  return own.sort((a, b) => a.algorithm.localeCompare(b.algorithm)).map((run) => [run.k, run.what]);
}

function fillDomains() {
  const confusion = confusionOf($("run-again").value);
  const domains = confusion ? Object.keys(confusion.cells) : [];
  options($("confusion-domain"), domains.length > 1 ? [["", "all"], ...domains.map((name) => [name, name])] : domains.map((name) => [name, name]), true);
}

// ---- chosen hyperparameters ------------------------------------------------------------------------------------

async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = html("textarea", { style: "position:fixed;opacity:0" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  $("copied").textContent = `${what} copied.`;
}

function drawChosen() {
  const root = $("chosen-list"), algorithm = $("chosen-algorithm").value;
  clear(root);
  const own = table().choices.filter((choice) => choice.algorithm === algorithm);
  if (own.length === 0) { empty(root, "Nothing is chosen yet: runs are missing."); return; }
  for (const choice of own) {
    const run = DATA.runs[choice.run];
    const title = choice.column ? `${choice.column} held out, trial ${choice.trial}` : `trial ${choice.trial}`;
    const tests = Object.entries(choice.test).map(([name, value]) => `${name} ${one(100 * value)}`).join(", ");
    const json = JSON.stringify(choice.hparams, null, 2);
    const buttons = html("div", { class: "controls" });
    const add = (label, text, what) => {
      const button = html("button", { type: "button", class: "copy", text: label });
      button.addEventListener("click", () => copy(text, what));
      buttons.append(button);
    };
    add("Copy hyperparameters", json, "Hyperparameters");
    if (choice.command) add("Copy command", choice.command, "Command");
    root.append(html("div", { class: "choice" },
      html("h3", { text: title }),
      html("p", { class: "muted", text: `draw ${run.draw}, step ${choice.step.toLocaleString("en")}, chosen by ${one(100 * choice.score)} %. Tested: ${tests}. Run ${run.name}` }),
      html("pre", { text: Object.entries(choice.hparams).map(([name, value]) => `${name} = ${JSON.stringify(value)}`).join("\n") || "no hyperparameters recorded" }),
      buttons));
  }
}

// ---- wiring ----------------------------------------------------------------------------------------------------

function fillControls() {
  const names = table().algorithms.map((name) => [name, name]);
  options($("curve-column"), columnsOf(), true);
  const trials = [...new Set(table().choices.map((choice) => choice.trial))];
  options($("curve-trial"), [...(trials.length > 1 ? [["", "mean over trials"]] : []), ...trials.map((trial) => [trial, trial])], true);
  options($("curve-show"), [["", "chosen run of every algorithm"], ...names.map(([name]) => [name, `all draws of ${name}`])], true);
  const varied = names.filter(([name]) => DATA.hparams[name]?.length);
  options($("hp-algorithm"), varied.length ? varied : names, true);
  options($("hp-column"), table().protocol === "mdlt" ? [["", "all domains"]] : [["", "all"], ...table().tested.map((name) => [name, name])], true);
  options($("chosen-algorithm"), names, true);
  const runs = runOptions();
  for (const id of ["run", "run-again"]) options($(id), runs.length ? runs : [["", "none"]], true);
  fillDomains();
}

function drawAll() {
  applyFilter();
  for (const draw of [drawComparison, drawDomains, drawCurves, drawHyperparameters, drawCost, drawShots, drawClasses, drawConfusion, drawChosen]) draw();
}

// What is chosen on the page stands in its address, so that a link shows the same.
const KEPT = ["which", "filter", "baseline", "curve-column", "curve-trial", "curve-show", "hp-algorithm", "hp-column", "hp-y", "run", "confusion-domain", "chosen-algorithm"];

function keepState() {
  const found = new URLSearchParams();
  for (const id of KEPT) {
    const control = $(id), first = control?.tagName === "SELECT" ? control.options[0]?.value : "";
    if (control && control.value !== first) found.set(id, control.value);
  }
  const sorted = document.querySelector(".overview:not([hidden]) th[aria-sort]");
  if (sorted) found.set("sort", `${sorted.textContent}.${sorted.getAttribute("aria-sort")}`);
  history.replaceState(null, "", `#${found}`);
}

function restoreState() {
  if (!location.hash.includes("=")) return; // the anchor of a section
  const found = new URLSearchParams(location.hash.slice(1));
  for (const id of KEPT) {
    const control = $(id);
    if (!control || !found.has(id)) continue;
    if (control.tagName === "SELECT" && ![...control.options].some((option) => option.value === found.get(id))) continue;
    control.value = found.get(id);
    control.dispatchEvent(new Event(id === "filter" ? "input" : "change"));
  }
  const [name, order] = (found.get("sort") || "").split(/\.(?=[a-z]+$)/);
  const heading = [...document.querySelectorAll(".overview:not([hidden]) thead th")].find((node) => node.textContent === name);
  for (let k = 0; heading && k < 2 && heading.getAttribute("aria-sort") !== order; k++) heading.querySelector("button").click();
}

function start() {
  document.querySelectorAll("table.sortable").forEach(sortable);
  $("filter").addEventListener("input", () => {
    state.filter = $("filter").value;
    applyFilter();
    for (const draw of [drawComparison, drawDomains, drawCurves, drawCost, drawShots]) draw();
  });
  $("which")?.addEventListener("change", () => {
    state.table = +$("which").value;
    for (const view of document.querySelectorAll(".overview, .further")) view.hidden = view.dataset.table !== $("which").value;
    fillControls();
    drawAll();
  });
  const on = (ids, draw) => ids.forEach((id) => $(id).addEventListener("change", draw));
  on(["baseline"], drawComparison);
  on(["curve-column", "curve-trial", "curve-show"], drawCurves);
  on(["hp-algorithm", "hp-column", "hp-y"], drawHyperparameters);
  on(["chosen-algorithm"], drawChosen);
  on(["confusion-domain"], drawConfusion);
  for (const [id, other] of [["run", "run-again"], ["run-again", "run"]]) {
    $(id).addEventListener("change", () => {
      $(other).value = $(id).value;
      fillDomains();
      drawClasses();
      drawConfusion();
    });
  }
  fillControls();
  drawAll();
  restoreState();
  addEventListener("hashchange", restoreState); // a link to this page, followed on it
  for (const kind of ["change", "input"]) document.addEventListener(kind, keepState);
  document.querySelectorAll("table.sortable thead button").forEach((button) => button.addEventListener("click", keepState));
  let width = innerWidth, timer;
  addEventListener("resize", () => {
    if (innerWidth === width) return; // a phone's bars come and go while scrolling
    width = innerWidth;
    clearTimeout(timer);
    timer = setTimeout(drawAll, 120);
  });
  const reading = () => document.activeElement?.tagName === "svg"; // by keyboard, which itself scrolls
  addEventListener("scroll", () => reading() || tip(""), { passive: true });
  const links = new Map([...document.querySelectorAll(".bar a")].map((link) => [link.hash.slice(1), link]));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) links.get(entry.target.id)?.classList.toggle("here", entry.isIntersecting);
  }, { rootMargin: "-20% 0px -70% 0px" });
  for (const id of links.keys()) seen.observe($(id));
}

start();
