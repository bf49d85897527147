"use strict";
// The charts of all pages: scales, axes, tooltips, and charts that are described as plain values. Names of data, domains
// and classes are only ever set as text, never as markup. Colours are variables of the page's style sheet.

const $ = (id) => document.getElementById(id);

function make(create, tag, attributes, children) {
  const node = create(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined) continue;
    if (name === "text") node.textContent = value;
    else node.setAttribute(name, value);
  }
  for (const child of children) node.append(child);
  return node;
}
const html = (tag, attributes, ...children) => make((t) => document.createElement(t), tag, attributes, children);
const svg = (tag, attributes, ...children) =>
  make((t) => document.createElementNS("http://www.w3.org/2000/svg", t), tag, attributes, children);

const clear = (node) => node.replaceChildren();
const signedTick = (tick) => (tick > 0 ? `+${number(tick)}` : number(tick).replace("-", "−"));
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const number = (value) => {
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  return size !== 0 && (size < 0.01 || size >= 1e5) ? value.toExponential(1).replace("e+", "e") : String(+value.toPrecision(3));
};

// ---- tooltips and keyboard -------------------------------------------------------------------------------------

function tip(text, x, y) {
  const box = $("tip");
  box.hidden = !text;
  if (!text) return;
  box.textContent = text;
  const size = box.getBoundingClientRect();
  box.style.left = `${Math.max(6, Math.min(x + 12, innerWidth - size.width - 6))}px`;
  box.style.top = `${y + 16 + size.height > innerHeight ? y - size.height - 10 : y + 16}px`;
}

// Marks of a chart show their text under the pointer; with the chart focused, the arrow keys go from mark to mark.
function interactive(root, marks) {
  let at = -1;
  for (const mark of marks) {
    mark.node.addEventListener("pointerenter", (event) => tip(mark.text, event.clientX, event.clientY));
    mark.node.addEventListener("pointermove", (event) => tip(mark.text, event.clientX, event.clientY));
    mark.node.addEventListener("pointerleave", () => tip(""));
  }
  if (marks.length === 0) return;
  root.setAttribute("tabindex", "0");
  root.addEventListener("blur", () => tip(""));
  root.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") tip("");
    if (!step) return;
    event.preventDefault();
    at = (at + step + marks.length) % marks.length;
    const box = marks[at].node.getBoundingClientRect();
    tip(marks[at].text, box.left + box.width / 2, box.top + box.height / 2);
  });
}

// ---- scales ----------------------------------------------------------------------------------------------------

function linear(low, high, from, to) {
  const scale = (value) => from + ((value - low) / (high - low || 1)) * (to - from);
  const raw = (high - low) / 6 || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= raw);
  scale.ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-6; tick += step) scale.ticks.push(+tick.toPrecision(12));
  return scale;
}

function logarithmic(low, high, from, to) {
  const inner = linear(Math.log10(low), Math.log10(high), from, to);
  const scale = (value) => inner(Math.log10(value));
  scale.ticks = [];
  for (let p = Math.ceil(Math.log10(low) - 1e-9); p <= Math.log10(high) + 1e-9; p++) scale.ticks.push(10 ** p);
  if (scale.ticks.length < 2) {
    scale.ticks = [1, 2, 5].flatMap((k) => [-1, 0, 1].map((p) => k * 10 ** (Math.floor(Math.log10(low)) + p)));
    scale.ticks = scale.ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001).sort((a, b) => a - b);
  }
  return scale;
}

function padded(values, share = 0.08, least = 0.5) {
  const low = Math.min(...values), high = Math.max(...values);
  const more = Math.max((high - low) * share, least);
  return [low - more, high + more];
}

function figure(root, caption, label) {
  const frame = html("figure", {}, ...(caption ? [html("figcaption", { text: caption })] : []));
  root.append(frame);
  const width = Math.max(240, Math.floor(frame.clientWidth));
  const drawing = svg("svg", { role: "img", "aria-label": label });
  frame.append(drawing);
  return { drawing, width, size: (height) => { drawing.setAttribute("viewBox", `0 0 ${width} ${height}`); drawing.setAttribute("height", height); } };
}

function axes(drawing, x, y, box, { xLabel, yLabel, xText = number, yText = number }) {
  for (const tick of y.ticks) {
    drawing.append(svg("line", { class: "grid", x1: box.left, x2: box.right, y1: y(tick), y2: y(tick) }));
    drawing.append(svg("text", { x: box.left - 6, y: y(tick) + 4, "text-anchor": "end", text: yText(tick) }));
  }
  let free = -Infinity;
  for (const tick of x.ticks) {
    const text = xText(tick), half = text.length * 3.2;
    drawing.append(svg("line", { class: "axis", x1: x(tick), x2: x(tick), y1: box.bottom, y2: box.bottom + 4 }));
    if (x(tick) - half < free) continue;
    free = x(tick) + half + 6;
    drawing.append(svg("text", { x: x(tick), y: box.bottom + 16, "text-anchor": "middle", text }));
  }
  drawing.append(svg("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
  if (xLabel) drawing.append(svg("text", { x: (box.left + box.right) / 2, y: box.bottom + 32, "text-anchor": "middle", text: xLabel }));
  if (yLabel) drawing.append(svg("text", { x: box.left - 36, y: box.top - 8, text: yLabel }));
}

const empty = (root, text) => root.append(html("p", { class: "empty", text }));

// ---- charts described as plain values --------------------------------------------------------------------------

// A chart: { height, data: [trace], layout: { xaxis, yaxis, barmode, showlegend } }. Types of traces: "bar" (lying),
// "waterfall", "heatmap", "scatter" (markers or lines, with error_x). A colour is a token such as "@up", the variable --up of
// the style sheet, or "@domain12", which repeats after ten. hover: what a mark says under the pointer.
function tokenColour(token) {
  const domain = /^@domain(\d+)$/.exec(token);
  return `var(--${domain ? `domain${Number(domain[1]) % 10}` : token.slice(1)})`;
}

// The colour at t from 0 to 1 of a scale that runs from one variable to another, over a middle one where it diverges.
function scaleColour(scale, t) {
  const mix = (from, to, share) => `color-mix(in srgb, var(--${to}) ${(100 * share).toFixed(1)}%, var(--${from}))`;
  if (scale === "@diverging") return t < 0.5 ? mix("cold", "middle", 2 * t) : mix("middle", "warm", 2 * t - 1);
  return mix("low", "high", t);
}

const TEXT_WIDTH = 6.7; // of a letter, in pixels
const FORMATS = {
  percent: (value) => `${+(100 * value).toPrecision(3)} %`,
  signed: (value) => signedTick(value),
};

function drawChart(place, chart) {
  clear(place);
  const { xaxis = {}, yaxis = {} } = chart.layout;
  chartLegend(place, chart);
  const width = Math.max(220, Math.floor(place.clientWidth));
  const drawing = svg("svg", { role: "img", "aria-label": place.getAttribute("aria-label") });
  place.append(drawing);
  const spans = chartSpans(chart);
  const yNames = yaxis.ticktext || [];
  const box = { top: 14, right: width - 14, left: 48, bottom: chart.height - 24 };
  if (yNames.length) box.left = Math.min(width * 0.42, 14 + TEXT_WIDTH * Math.max(...yNames.map((name) => name.length)));
  else if (yaxis.title) box.top += 14;
  const slot = xaxis.ticktext ? (box.right - box.left) / xaxis.ticktext.length : 0;
  const slanted = xaxis.ticktext && xaxis.ticktext.some((name) => name.split("\n").some((word) => TEXT_WIDTH * word.length > slot + 4));
  const longest = xaxis.ticktext ? Math.max(...xaxis.ticktext.map((name) => name.length)) : 0;
  const room = !xaxis.ticktext ? 0 : slanted ? 10 + 4.6 * longest : 4 + 13 * Math.max(...xaxis.ticktext.map((name) => name.split("\n").length));
  if (xaxis.side === "top") box.top += room;
  else if (xaxis.ticktext) box.bottom -= Math.max(0, room - 14);
  if (xaxis.title) box.bottom -= 16;
  drawing.setAttribute("viewBox", `0 0 ${width} ${chart.height}`);
  drawing.setAttribute("height", chart.height);
  const x = linear(...spans.x, box.left, box.right);
  const y = yaxis.autorange === "reversed" ? linear(...spans.y, box.top, box.bottom) : linear(...spans.y, box.bottom, box.top);
  chartAxes(drawing, chart, x, y, box, slanted);
  const marks = [];
  const reach = new Map(); // of the bars that are stacked so far, by row and side
  for (const trace of chart.data) CHART_TRACES[trace.type](drawing, trace, x, y, box, marks, { chart, reach });
  interactive(drawing, marks);
  place.dataset.drawn = "yes";
}

function chartSpans({ data, layout }) {
  const found = { x: [], y: [] };
  const sums = new Map();
  for (const trace of data) {
    if (trace.type === "heatmap") {
      found.x.push(-0.5, trace.x.length - 0.5);
      found.y.push(-0.5, trace.y.length - 0.5);
    } else if (trace.type === "waterfall") {
      found.x.push(-0.5, trace.x.length - 0.5);
    } else if (trace.type === "bar") {
      found.x.push(0);
      trace.y.forEach((row, k) => {
        const key = `${row} ${trace.x[k] < 0}`, sum = (layout.barmode ? sums.get(key) || 0 : 0) + trace.x[k];
        sums.set(key, sum);
        found.x.push(sum);
        found.y.push(row - 0.6, row + 0.6);
      });
    } else {
      found.x.push(...trace.x.flatMap((value, k) => [value - (trace.error_x?.arrayminus[k] || 0), value + (trace.error_x?.array[k] || 0)]));
      found.y.push(...(layout.yaxis?.ticktext ? trace.y.flatMap((row) => [row - 0.6, row + 0.6]) : trace.y));
    }
  }
  const lined = data.every((trace) => trace.type === "scatter" && trace.mode === "lines");
  const span = (axis, values, tight) => {
    if (axis?.range) return axis.range;
    const all = axis?.rangemode === "tozero" ? [0, ...values] : values;
    const low = Math.min(...all), high = Math.max(...all), more = tight ? 0 : 0.05 * (high - low) || 0.5;
    return [low === 0 && axis?.rangemode === "tozero" ? 0 : low - more, high + more];
  };
  const whole = data.some((trace) => trace.type === "heatmap" || trace.type === "waterfall");
  return { x: span(layout.xaxis, found.x, whole || lined), y: span(layout.yaxis, found.y, whole || Boolean(layout.yaxis?.ticktext)) };
}

function chartAxes(drawing, { layout }, x, y, box, slanted) {
  const { xaxis = {}, yaxis = {} } = layout;
  if (xaxis.ticktext) {
    const top = xaxis.side === "top";
    xaxis.ticktext.forEach((name, k) => {
      const at = top ? box.top - 8 : box.bottom + 15;
      if (slanted) drawing.append(svg("text", { class: "ink", transform: `translate(${x(k) + 4} ${at}) rotate(${top ? -40 : 40})`, text: name.replace("\n", " ") }));
      else name.split("\n").forEach((word, line) => drawing.append(svg("text", { class: "ink", x: x(k), y: at + 13 * line, "text-anchor": "middle", text: word })));
    });
  } else {
    const text = FORMATS[xaxis.format] || number;
    let free = -Infinity;
    for (const tick of x.ticks) {
      drawing.append(svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: box.top, y2: box.bottom }));
      const half = text(tick).length * 3.4;
      if (x(tick) - half < free || x(tick) + half > box.right + 14) continue;
      free = x(tick) + half + 6;
      drawing.append(svg("text", { x: x(tick), y: box.bottom + 15, "text-anchor": "middle", text: text(tick) }));
    }
  }
  if (yaxis.ticktext) {
    const fits = Math.floor((box.left - 8) / TEXT_WIDTH);
    yaxis.ticktext.forEach((name, k) => {
      const shown = name.length > fits ? `${name.slice(0, fits - 1)}…` : name;
      drawing.append(svg("text", { class: "ink", x: box.left - 8, y: y(k) + 4, "text-anchor": "end", text: shown }));
    });
  } else {
    for (const tick of y.ticks) {
      drawing.append(svg("line", { class: "grid", x1: box.left, x2: box.right, y1: y(tick), y2: y(tick) }));
      drawing.append(svg("text", { x: box.left - 6, y: y(tick) + 4, "text-anchor": "end", text: number(tick) }));
    }
    if (yaxis.title) drawing.append(svg("text", { x: 0, y: 12, text: yaxis.title }));
  }
  if (xaxis.zeroline) drawing.append(svg("line", { class: "zero", x1: x(0), x2: x(0), y1: box.top, y2: box.bottom }));
  if (xaxis.title) drawing.append(svg("text", { x: (box.left + box.right) / 2, y: box.bottom + 33, "text-anchor": "middle", text: xaxis.title }));
}

// Names of the traces, and the colours of a scale with its ends, above the drawing: on a narrow screen they wrap.
function chartLegend(place, { data, layout }) {
  const entries = layout.showlegend === false ? [] : data.filter((trace) => trace.name && trace.showlegend !== false && trace.type !== "heatmap");
  const legend = html("div", { class: "legend" });
  for (const trace of entries) {
    const colour = tokenColour(trace.line?.color || trace.marker.color);
    legend.append(html("span", {}, html("i", { style: `border-color:${colour};border-top-style:${trace.line?.dash === "dash" ? "dashed" : "solid"}` }), trace.name));
  }
  for (const trace of data) {
    const scale = trace.type === "heatmap" ? [trace.colorscale, trace.zmin, trace.zmax, ""]
      : trace.marker?.colorscale ? [trace.marker.colorscale, Math.min(...trace.marker.color), Math.max(...trace.marker.color), trace.scale_title] : null;
    if (!scale || (trace.type === "heatmap" && trace.text)) continue;
    const steps = [0, 0.25, 0.5, 0.75, 1].map((t) => scaleColour(scale[0], t)).join(",");
    legend.append(html("span", {}, `${scale[3] ? `${scale[3]} ` : ""}${number(scale[1])} `, html("i", { class: "ramp", style: `background:linear-gradient(to right,${steps})` }), number(scale[2])));
  }
  if (legend.childNodes.length) place.append(legend);
}

const CHART_TRACES = {
  bar(drawing, trace, x, y, box, marks, { chart, reach }) {
    const thick = Math.min(26, 0.72 * Math.abs(y(1) - y(0)));
    trace.x.forEach((value, k) => {
      const key = `${trace.y[k]} ${value < 0}`, from = chart.layout.barmode ? reach.get(key) || 0 : 0, to = from + value;
      reach.set(key, to);
      const colour = Array.isArray(trace.marker.color) ? trace.marker.color[k] : trace.marker.color;
      const left = Math.min(x(from), x(to)), long = Math.abs(x(to) - x(from));
      const node = svg("rect", { class: "mark", x: left, y: y(trace.y[k]) - thick / 2, width: Math.max(long, 0.5), height: thick, rx: 2, fill: tokenColour(colour) });
      drawing.append(node);
      const text = trace.text?.[k];
      if (text) {
        const inside = long > TEXT_WIDTH * text.length + 8;
        const at = inside ? (chart.layout.barmode ? left + long / 2 : left + long - 5) : left + long + 4;
        const written = svg("text", { x: at, y: y(trace.y[k]) + 4, "text-anchor": inside ? (chart.layout.barmode ? "middle" : "end") : "start", class: inside ? "on" : "ink", "pointer-events": "none", text });
        if (inside) written.setAttribute("style", "fill:var(--onfill)");
        if (inside || !chart.layout.barmode) drawing.append(written);
      }
      marks.push({ node, text: trace.hover[k] });
    });
  },
  waterfall(drawing, trace, x, y, box, marks) {
    const wide = 0.62 * (x(1) - x(0));
    let level = 0;
    trace.x.forEach((at, k) => {
      const from = trace.measure[k] === "relative" ? level : 0, to = from + trace.y[k];
      const colour = trace.measure[k] === "relative" ? (trace.y[k] < 0 ? trace.colors.decreasing : trace.colors.increasing) : trace.colors.totals;
      const node = svg("rect", { class: "mark", x: x(at) - wide / 2, y: Math.min(y(from), y(to)), width: wide, height: Math.max(1, Math.abs(y(to) - y(from))), rx: 2, fill: tokenColour(colour) });
      drawing.append(node);
      if (k + 1 < trace.x.length) drawing.append(svg("line", { class: "axis", x1: x(at) + wide / 2, x2: x(at + 1) - wide / 2, y1: y(to), y2: y(to) }));
      drawing.append(svg("text", { class: "ink", x: x(at), y: Math.min(y(from), y(to)) - 5, "text-anchor": "middle", text: trace.text[k] }));
      marks.push({ node, text: trace.hover[k] });
      level = to;
    });
  },
  heatmap(drawing, trace, x, y, box, marks) {
    const wide = x(1) - x(0), high = y(1) - y(0);
    trace.z.forEach((row, r) => row.forEach((value, c) => {
      if (value === null) return;
      const t = Math.min(1, Math.max(0, (value - trace.zmin) / (trace.zmax - trace.zmin || 1)));
      const node = svg("rect", { class: "mark", x: x(c) - wide / 2 + 1, y: y(r) - high / 2 + 1, width: Math.max(1, wide - 2), height: Math.max(1, high - 2), rx: 2, style: `fill:${scaleColour(trace.colorscale, t)}` });
      drawing.append(node);
      const text = trace.text?.[r][c];
      if (text && wide > TEXT_WIDTH * text.length) {
        const strong = trace.colorscale === "@diverging" ? Math.abs(t - 0.5) > 0.3 : t > 0.55;
        drawing.append(svg("text", { class: "on", x: x(c), y: y(r) + 4, "text-anchor": "middle", "pointer-events": "none", style: `fill:var(--${strong ? "onfill" : "text"})`, text }));
      }
      marks.push({ node, text: trace.hover[r][c] });
    }));
  },
  scatter(drawing, trace, x, y, box, marks) {
    if (trace.mode === "lines") {
      const path = trace.x.map((value, k) => `${k ? "L" : "M"}${x(value).toFixed(1)} ${y(trace.y[k]).toFixed(1)}`).join("");
      drawing.append(svg("path", { class: "mark", d: path, fill: "none", stroke: tokenColour(trace.line.color), "stroke-width": trace.line.width, "stroke-dasharray": trace.line.dash === "dash" ? "6 4" : null, "stroke-linejoin": "round" }));
      for (const [k, text] of (trace.hover || []).entries()) {
        const node = svg("circle", { class: "hit", cx: x(trace.x[k]), cy: y(trace.y[k]), r: 7 });
        drawing.append(node);
        marks.push({ node, text });
      }
      return;
    }
    const { color, size = 6, symbol = "circle", opacity = 1, colorscale } = trace.marker;
    const [low, high] = colorscale ? [Math.min(...color), Math.max(...color)] : [0, 1];
    trace.x.forEach((value, k) => {
      const fill = colorscale ? scaleColour(colorscale, (color[k] - low) / (high - low || 1)) : tokenColour(color);
      const cx = x(value), cy = y(trace.y[k]), half = size / 2;
      if (trace.error_x) drawing.append(svg("line", { x1: x(value - trace.error_x.arrayminus[k]), x2: x(value + trace.error_x.array[k]), y1: cy, y2: cy, stroke: fill, "stroke-width": 2, "stroke-linecap": "round" }));
      const shapes = {
        circle: () => svg("circle", { class: "mark", cx, cy, r: half, style: `fill:${fill}`, "fill-opacity": opacity }),
        diamond: () => svg("path", { class: "mark", d: `M${cx} ${cy - half}L${cx + half} ${cy}L${cx} ${cy + half}L${cx - half} ${cy}Z`, fill, stroke: "var(--surface)", "stroke-width": 2 }),
        upright: () => svg("line", { class: "mark", x1: cx, x2: cx, y1: cy - half, y2: cy + half, stroke: fill, "stroke-width": 3 }),
      };
      const node = shapes[symbol]();
      drawing.append(node);
      marks.push({ node, text: trace.hover[k] });
    });
  },
};
