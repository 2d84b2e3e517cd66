"use strict";
// The page of a report: draws the one JSON document that is in it. It asks nobody for anything, and sends nothing.

const PAGE = 25; // rows of the table at a time
const FOUND = 8; // agents that the search offers
const LABELS = 60; // names on the map, at most
const data = JSON.parse(document.getElementById("data").textContent);

// -- small things -----------------------------------------------------------------------------------------------------

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of [].concat(children ?? [])) if (child !== null && child !== undefined) node.append(child instanceof Node ? child : String(child));
  return node;
}
const make = (tag, attributes, children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes, children) => fill(document.createElementNS(SVG, tag), attributes, children);
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const count = (value) => (isNumber(value) ? Math.round(value).toLocaleString("en") : "–");
const plural = (k, what) => `${count(k)} ${what}${k === 1 ? "" : "s"}`;
function num(value, digits = 4) {
  if (!isNumber(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en").replace("-", "−");
  if (size < 1e-4) return value.toExponential(1).replace("-", "−").replace("e−", "e-");
  return String(Number(value.toPrecision(digits))).replace("-", "−");
}
const percent = (share) => { const value = 100 * share; return `${(Math.abs(value) >= 9.95 ? value.toFixed(0) : value.toFixed(1)).replace("-", "−")}\u00a0%`; };
const size = (bytes) => (bytes >= 1e9 ? `${num(bytes / 1e9, 3)} GB` : bytes >= 1e6 ? `${num(bytes / 1e6, 3)} MB` : bytes >= 1e3 ? `${num(bytes / 1e3, 3)} kB` : `${count(bytes)} bytes`);
const roomy = (wide, narrow) => (innerWidth < 620 ? narrow : wide); // of a drawing, so that its letters stay legible
const say = (text) => { $("live").textContent = text; };

// -- agents -----------------------------------------------------------------------------------------------------------

const all = data.agents;
const N = all.name.length;
const measured = Boolean(all.together);
const nothing = new Array(N).fill(null);
const error = { alone: all.alone || nothing, one_model: all.one_model || nothing, together: all.together || nothing };
const AGAINST = { alone: "alone", one_model: "one model for all" };
const gain = {};
for (const name of ["alone", "one_model"]) gain[name] = error[name].map((value, k) => (isNumber(value) && isNumber(error.together[k]) ? Number((value - error.together[k]).toPrecision(5)) : null));
const rows = all.rows || nothing;
const outlier = new Array(N).fill(false);
const testsOf = new Map();
if (data.tests) {
  data.tests.agent.forEach((agent, i) => {
    if (!testsOf.has(agent)) testsOf.set(agent, []);
    testsOf.get(agent).push(i);
    if (isNumber(data.tests.q[i]) && data.tests.q[i] < data.threshold) outlier[agent] = true;
  });
}
const lower = all.name.map((name) => name.toLowerCase());
const numberOf = new Map(all.name.map((name, k) => [name, k]));
const KINDS = [
  ["all", "All", () => true],
  ["gained", "Gained", (k) => gain.alone[k] > 0],
  ["lost", "Lost", (k) => gain.alone[k] !== null && gain.alone[k] <= 0],
  ["unmeasured", "Not measured", (k) => gain.alone[k] === null],
  ["outlier", "Outliers", (k) => outlier[k]],
  ["few", `At most ${data.few} rows`, (k) => isNumber(rows[k]) && rows[k] <= data.few],
];
const sizes = Object.fromEntries(KINDS.map(([name, , test]) => { let total = 0; for (let k = 0; k < N; k += 1) if (test(k)) total += 1; return [name, total]; }));
const kinds = KINDS.filter(([name]) => name === "all" || (sizes[name] > 0 && !(name === "unmeasured" && !measured)));
const state = { against: "alone", kind: "all", query: "", sort: measured ? "gain_alone" : "name", down: measured, page: 0, colour: "", agent: null, theme: "auto" };
const testOf = (kind) => KINDS.find(([name]) => name === kind)[2];
const shown = (k) => testOf(state.kind)(k) && (!state.query || lower[k].includes(state.query));

function addressOf(k) {
  try { return `#agent=${encodeURIComponent(all.name[k])}`; } catch { return `#agent=@${k}`; } // halves of characters have no address
}
function agentAt(hash) {
  if (!hash.startsWith("#agent=")) return null;
  const text = hash.slice(7);
  let name = text;
  try { name = decodeURIComponent(text); } catch { /* as it is */ }
  if (numberOf.has(name)) return numberOf.get(name);
  const k = Number(name.slice(1));
  return name.startsWith("@") && Number.isInteger(k) && k >= 0 && k < N ? k : null;
}
const linkTo = (k) => make("a", { href: addressOf(k) }, all.name[k]);
const open = (k) => { location.hash = addressOf(k); };

// -- colours ----------------------------------------------------------------------------------------------------------

let palette = {};
function readColours() {
  const probe = make("span", { hidden: true });
  document.body.append(probe);
  palette = {};
  for (const name of ["panel", "raised", "ink", "quiet", "line", "edge", "together", "alone", "one", "stand", "none", "edge", "pale", "soft"]) {
    probe.style.color = `var(--${name})`;
    palette[name] = getComputedStyle(probe).color;
  }
  probe.remove();
}
const known = new Map();
function channels(colour) {
  if (!known.has(colour)) known.set(colour, (colour.match(/[\d.]+/g) || [0, 0, 0]).slice(0, 3).map(Number));
  return known.get(colour);
}
function between(from, to, share) {
  const a = channels(from), b = channels(to), t = Math.round(24 * Math.max(0, Math.min(1, share))) / 24; // few shades draw faster
  return `rgb(${a.map((value, i) => Math.round(value + t * (b[i] - value))).join(" ")})`;
}
const THEMES = { auto: ["◐ Auto", "Colours: as the system has them"], light: ["○ Light", "Colours: light"], dark: ["● Dark", "Colours: dark"] };
function setTheme(theme) {
  state.theme = theme;
  if (theme === "auto") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.dataset.theme = theme;
  $("theme").textContent = THEMES[theme][0];
  $("theme").setAttribute("aria-label", THEMES[theme][1]);
  repaint();
}
function nextTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const order = dark ? ["auto", "light", "dark"] : ["auto", "dark", "light"];
  setTheme(order[(order.indexOf(state.theme) + 1) % 3]);
  try { localStorage.setItem("coterie-report-theme", state.theme); } catch { /* not where files may not */ }
  say(THEMES[state.theme][1]);
}

// -- tip --------------------------------------------------------------------------------------------------------------

function showTip(content, x, y) {
  const tip = $("tip");
  tip.replaceChildren(...content);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(6, Math.min(innerWidth - box.width - 8, x + 14))}px`;
  tip.style.top = `${y + 16 + box.height > innerHeight ? Math.max(6, y - box.height - 12) : y + 16}px`;
}
const hideTip = () => { $("tip").hidden = true; };
function tipOf(k, more = []) {
  const line = (name, value) => make("span", {}, [name, make("i", {}, value)]);
  const lines = [make("b", {}, all.name[k])];
  if (isNumber(rows[k])) lines.push(line("rows", count(rows[k])));
  if (gain.alone[k] !== null) {
    for (const [name, label] of [["alone", "error alone"], ["one_model", "one model"], ["together", "together"]]) lines.push(line(label, num(error[name][k])));
    const share = error.alone[k] > 0 ? ` (${percent(gain.alone[k] / error.alone[k])})` : "";
    lines.push(line("gain against alone", `${num(gain.alone[k])}${share}`));
  }
  if (outlier[k]) lines.push(line("stands out", "yes"));
  return lines.concat(more.map(([name, value]) => line(name, value)));
}

// -- axes -------------------------------------------------------------------------------------------------------------

function ticksOf(low, high, about) {
  const span = high - low || 1;
  const raw = span / about, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((m) => m >= raw * 0.999);
  const out = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + 1e-9 * span; v += step) out.push(Math.abs(v) < 1e-12 * span ? 0 : v);
  return out;
}
function logTicks(low, high) {
  const wide = Math.log10(high / low);
  const heads = wide > 4 ? [1] : wide > 1.6 ? [1, 3] : [1, 2, 5];
  const out = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.log10(high); e += 1) for (const m of heads) { const v = m * 10 ** e; if (v >= low && v <= high) out.push(v); }
  return out;
}
function tickText(value) {
  const size = Math.abs(value);
  if (size >= 1e9) return `${num(value / 1e9, 3)}G`;
  if (size >= 1e6) return `${num(value / 1e6, 3)}M`;
  if (size >= 1e5) return `${num(value / 1e3, 3)}k`;
  return size >= 1000 && size < 10000 ? String(Number(value.toPrecision(6))).replace("-", "−") : num(Number(value.toPrecision(10)), 6); // years have no comma
}
function canvasOf(canvas) {
  const box = canvas.getBoundingClientRect(), scale = window.devicePixelRatio || 1;
  const width = Math.max(1, Math.round(box.width)), height = Math.max(1, Math.round(box.height));
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) { canvas.width = Math.round(width * scale); canvas.height = Math.round(height * scale); }
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "12px system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'Liberation Sans', sans-serif";
  return { pen, width, height };
}
function nearestTo(points, x, y, reach) {
  let best = null, square = reach * reach;
  for (const point of points) {
    const d = (point.x - x) ** 2 + (point.y - y) ** 2;
    if (d < square) { square = d; best = point; }
  }
  return best;
}
function hovering(canvas, find, after) {
  let last = null;
  const at = (event) => { const box = canvas.getBoundingClientRect(); return find(event.clientX - box.left, event.clientY - box.top); };
  const leave = () => { last = null; hideTip(); canvas.classList.remove("pointing"); if (after) after(null); };
  canvas.addEventListener("pointermove", (event) => {
    const k = at(event);
    canvas.classList.toggle("pointing", k !== null);
    if (k === null) { if (last !== null) leave(); return; }
    if (k !== last && after) after(k);
    last = k;
    showTip(tipOf(k), event.clientX, event.clientY);
  });
  canvas.addEventListener("pointerleave", leave);
  canvas.addEventListener("click", (event) => { const k = at(event); if (k !== null && !canvas.dragged) { hideTip(); open(k); } });
}

// -- who gains --------------------------------------------------------------------------------------------------------

const spots = { scatter: [], sorted: [] };
function drawScatter() {
  const name = state.against, before = error[name], after = error.together;
  const who = [];
  for (let k = 0; k < N; k += 1) if (gain[name][k] !== null) who.push(k);
  const { pen, width, height } = canvasOf($("scatter"));
  const left = 62, right = 12, top = 12, bottom = 46;
  let low = Infinity, high = -Infinity;
  for (const k of who) { low = Math.min(low, before[k], after[k]); high = Math.max(high, before[k], after[k]); }
  const logs = low > 0 && high / low > 12;
  if (logs) { low /= 1.15; high *= 1.15; } else { const pad = 0.05 * (high - low) || 0.5; low = Math.max(0, low - pad); high += pad; }
  const place = logs ? (v) => Math.log(v / low) / Math.log(high / low) : (v) => (v - low) / (high - low);
  const X = (v) => left + place(v) * (width - left - right), Y = (v) => height - bottom - place(v) * (height - top - bottom);
  const ticks = logs ? logTicks(low, high) : ticksOf(low, high, Math.min(6, width / 80));
  pen.fillStyle = palette.soft;
  pen.beginPath(); pen.moveTo(X(low), Y(low)); pen.lineTo(X(high), Y(high)); pen.lineTo(X(high), Y(low)); pen.closePath(); pen.fill();
  pen.strokeStyle = palette.line; pen.fillStyle = palette.quiet; pen.lineWidth = 1;
  for (const v of ticks) {
    pen.beginPath(); pen.moveTo(X(v), top); pen.lineTo(X(v), height - bottom); pen.moveTo(left, Y(v)); pen.lineTo(width - right, Y(v)); pen.stroke();
    pen.textAlign = "center"; pen.textBaseline = "top"; pen.fillText(tickText(v), X(v), height - bottom + 7);
    pen.textAlign = "right"; pen.textBaseline = "middle"; pen.fillText(tickText(v), left - 8, Y(v));
  }
  pen.strokeStyle = palette.edge; pen.lineWidth = 1.5; pen.setLineDash([6, 5]);
  pen.beginPath(); pen.moveTo(X(low), Y(low)); pen.lineTo(X(high), Y(high)); pen.stroke(); pen.setLineDash([]);
  pen.fillStyle = palette.quiet; pen.textAlign = "center"; pen.textBaseline = "bottom";
  pen.fillText(`error ${AGAINST[name]}${logs ? " (logarithmic)" : ""}`, left + (width - left - right) / 2, height - 3);
  pen.save(); pen.translate(13, top + (height - top - bottom) / 2); pen.rotate(-Math.PI / 2); pen.textBaseline = "middle"; pen.fillText("error together", 0, 0); pen.restore();
  pen.textAlign = "right"; pen.textBaseline = "bottom"; pen.fillText("better together", width - right - 8, height - bottom - 8);
  pen.textAlign = "left"; pen.textBaseline = "top"; pen.fillText(`better ${name === "alone" ? "alone" : "as one model"}`, left + 8, top + 6);
  const radius = who.length > 2000 ? 2 : who.length > 400 ? 3 : 4.5;
  spots.scatter = who.map((k) => ({ k, x: X(before[k]), y: Y(after[k]) }));
  for (const { k, x, y } of spots.scatter) {
    const lit = state.kind === "all" && !state.query ? true : shown(k);
    pen.globalAlpha = lit ? 0.82 : 0.12;
    pen.fillStyle = gain[name][k] > 0 ? palette.together : palette.alone;
    pen.beginPath(); pen.arc(x, y, radius, 0, 7); pen.fill();
    if (outlier[k] && lit) { pen.globalAlpha = 1; pen.strokeStyle = palette.stand; pen.lineWidth = 1.6; pen.beginPath(); pen.arc(x, y, radius + 2.5, 0, 7); pen.stroke(); }
  }
  pen.globalAlpha = 1;
}
function drawSorted() {
  const name = state.against;
  const who = [];
  for (let k = 0; k < N; k += 1) if (gain[name][k] !== null) who.push(k);
  who.sort((a, b) => gain[name][b] - gain[name][a]);
  const { pen, width, height } = canvasOf($("sorted"));
  const left = 62, right = 12, top = 12, bottom = 46;
  const magnitudes = who.map((k) => Math.abs(gain[name][k])).sort((a, b) => a - b);
  const reach = 3.5 * (magnitudes[Math.floor(0.9 * (magnitudes.length - 1))] || 1); // a few may go beyond: they are cut, and say so
  let low = 0, high = 0;
  for (const k of who) { low = Math.max(-reach, Math.min(low, gain[name][k])); high = Math.min(reach, Math.max(high, gain[name][k])); }
  const told = data.summary.gains[name];
  if (isNumber(told.low)) { low = Math.min(low, told.low); high = Math.max(high, told.high); }
  const pad = 0.05 * (high - low) || 0.5; low -= pad; high += pad;
  const Y = (v) => height - bottom - (Math.max(low, Math.min(high, v)) - low) / (high - low) * (height - top - bottom);
  const wide = (width - left - right) / Math.max(1, who.length);
  pen.strokeStyle = palette.line; pen.fillStyle = palette.quiet; pen.lineWidth = 1; pen.textAlign = "right"; pen.textBaseline = "middle";
  for (const v of ticksOf(low, high, 6)) { pen.beginPath(); pen.moveTo(left, Y(v)); pen.lineTo(width - right, Y(v)); pen.stroke(); pen.fillText(tickText(v), left - 8, Y(v)); }
  const gap = wide > 5 ? 1.2 : 0;
  spots.sorted = who.map((k, i) => ({ k, from: left + i * wide, to: left + (i + 1) * wide }));
  who.forEach((k, i) => {
    const lit = state.kind === "all" && !state.query ? true : shown(k);
    pen.globalAlpha = lit ? 0.9 : 0.15;
    pen.fillStyle = gain[name][k] > 0 ? palette.together : palette.alone;
    const y = Y(gain[name][k]), zero = Y(0);
    pen.fillRect(left + i * wide + gap / 2, Math.min(y, zero), Math.max(0.7, wide - gap), Math.max(1, Math.abs(y - zero)));
  });
  pen.globalAlpha = 1;
  const cut = who.filter((k) => gain[name][k] < low || gain[name][k] > high);
  spots.cut = cut.length;
  if (cut.length && cut.length <= 12) {
    pen.fillStyle = palette.ink; pen.textBaseline = "middle";
    who.forEach((k, i) => {
      const value = gain[name][k];
      if (value >= low && value <= high) return;
      const x = left + (i + 0.5) * wide, y = value < low ? height - bottom - 9 : top + 9, row = value < low ? cut.filter((other) => gain[name][other] < value).length : 0;
      if (row > 2) return;
      pen.textAlign = value < low ? "right" : "left";
      pen.fillText(`${num(value, 3)} ${value < low ? "↓" : ""}`.trim(), value < low ? x - 6 : x + 6, y - 15 * row);
    });
  }
  pen.strokeStyle = palette.edge; pen.lineWidth = 1.2; pen.beginPath(); pen.moveTo(left, Y(0)); pen.lineTo(width - right, Y(0)); pen.stroke();
  if (isNumber(told.mean)) {
    if (isNumber(told.low)) { pen.globalAlpha = 0.13; pen.fillStyle = palette.ink; pen.fillRect(left, Y(told.high), width - left - right, Math.max(2, Y(told.low) - Y(told.high))); pen.globalAlpha = 1; }
    pen.strokeStyle = palette.ink; pen.setLineDash([6, 4]); pen.beginPath(); pen.moveTo(left, Y(told.mean)); pen.lineTo(width - right, Y(told.mean)); pen.stroke(); pen.setLineDash([]);
    const text = `mean ${num(told.mean, 3)}`;
    pen.textAlign = "right"; pen.textBaseline = "bottom"; pen.fillStyle = palette.panel; pen.globalAlpha = 0.85;
    const box = pen.measureText(text).width; pen.fillRect(width - right - box - 8, Y(told.mean) - 20, box + 6, 17); pen.globalAlpha = 1;
    pen.fillStyle = palette.ink; pen.fillText(text, width - right - 5, Y(told.mean) - 4);
  }
  pen.fillStyle = palette.quiet; pen.textAlign = "center"; pen.textBaseline = "bottom"; pen.fillText(`${plural(who.length, "agent")}, by gain`, left + (width - left - right) / 2, height - 3);
  pen.save(); pen.translate(13, top + (height - top - bottom) / 2); pen.rotate(-Math.PI / 2); pen.textBaseline = "middle"; pen.fillText("error lowered by", 0, 0); pen.restore();
}
function showGains() {
  const there = measured;
  $("gains-charts").hidden = !there;
  $("against").hidden = !there;
  if (!there) {
    const first = data.headline.find((line) => line.tone === "even");
    $("gains-lead").textContent = first ? first.text : "Gains were not measured.";
    return;
  }
  const told = data.summary.gains[state.against], gained = Math.round(told.share * told.agents);
  $("gains-lead").textContent = `Each agent’s ${data.measure} on rows that were held out, in ${data.summary.folds} folds of its own rows. Below the dashed line, learning together is better.`;
  const words = `${gained} of ${told.agents} agents have a smaller error together than ${state.against === "alone" ? "alone" : "with one model for all"}.`;
  $("scatter").setAttribute("aria-label", `Scatter plot: error ${AGAINST[state.against]} against error together, one point for each agent. ${words} The table of all agents has the numbers.`);
  $("sorted").setAttribute("aria-label", `Bar chart: how much the error of each agent is lowered, sorted. Mean ${num(told.mean)}, 95 % interval ${num(told.low)} to ${num(told.high)}. ${words}`);
  drawScatter();
  drawSorted();
  $("scatter-caption").textContent = `${words}${outlier.includes(true) ? " Agents with a ring stand out from the population." : ""}`;
  $("sorted-caption").textContent = isNumber(told.low) ? `Mean gain ${num(told.mean)}; the grey band is its 95 % interval, ${num(told.low)} to ${num(told.high)}.` : `Mean gain ${num(told.mean)}.`;
  if (spots.cut) $("sorted-caption").textContent += ` ${plural(spots.cut, "bar")} longer than the chart ${spots.cut === 1 ? "is" : "are"} cut; hover for numbers.`;
}
function startGains() {
  for (const name of ["alone", "one_model"]) {
    const input = make("input", { type: "radio", name: "against", value: name, on: { change: () => { state.against = name; showGains(); } } });
    input.checked = name === state.against;
    $("against").append(make("label", {}, [input, `Against ${AGAINST[name]}`]));
  }
  hovering($("scatter"), (x, y) => { const found = nearestTo(spots.scatter, x, y, 14); return found ? found.k : null; });
  hovering($("sorted"), (x) => { const found = spots.sorted.find((spot) => x >= spot.from && x < spot.to); return found ? found.k : null; });
}

// -- the map ----------------------------------------------------------------------------------------------------------

const single = data.map.shares.length < 2 && data.map.kind !== "graph";
const spread = (() => {
  // With one direction only, agents are put side by side above it, so that none hides another.
  if (!single || !N) return data.map.y;
  const order = data.map.x.map((x, k) => k).sort((a, b) => data.map.x[a] - data.map.x[b]);
  const out = new Array(N).fill(0), cells = new Map();
  for (const k of order) { const cell = Math.round(data.map.x[k] * 40), used = cells.get(cell) || 0; cells.set(cell, used + 1); out[k] = (used % 2 ? -1 : 1) * Math.ceil(used / 2); }
  const most = Math.max(1, ...out.map(Math.abs));
  return out.map((v) => v / Math.max(most, 8) * 0.9);
})();
const COLOURS = [];
if (measured) {
  COLOURS.push({ id: "gain_alone", label: "gain against alone", values: gain.alone, kind: "gain" });
  COLOURS.push({ id: "gain_one_model", label: "gain against one model", values: gain.one_model, kind: "gain" });
}
COLOURS.push({ id: "far", label: "distance from the common model", values: all.far, kind: "more" });
if (all.rows) COLOURS.push({ id: "rows", label: "rows", values: rows, kind: "more", log: true });
data.outputs.forEach((output, o) => output.features.forEach((feature, f) => {
  if (feature.common.length !== 1 || COLOURS.length > 40) return;
  COLOURS.push({ id: `c${o}.${f}`, label: `${feature.kind === "intercept" ? "intercept" : `coefficient of ${feature.name}`}${output.name && data.outputs.length > 1 ? ` (${output.name})` : ""}`, values: feature.own, middle: feature.common[0], kind: "around" });
}));
for (const colour of COLOURS) {
  const there = colour.values.filter(isNumber).map((v) => (colour.log ? Math.log10(Math.max(v, 0.5)) : v));
  if (colour.kind === "more") { const ranked = there.slice().sort((a, b) => a - b); colour.low = ranked[Math.floor(0.02 * ranked.length)] ?? 0; colour.high = ranked[Math.floor(0.98 * (ranked.length - 1))] ?? 1; } else {
    const middle = colour.middle || 0;
    const ranked = there.map((v) => Math.abs(v - middle)).sort((a, b) => a - b);
    colour.reach = ranked[Math.floor(0.92 * (ranked.length - 1))] || 1;
  }
}
function shade(colour, k) {
  const value = colour.values[k];
  if (!isNumber(value)) return palette.none;
  if (colour.kind === "more") { const v = colour.log ? Math.log10(Math.max(value, 0.5)) : value; return between(palette.pale, palette.together, 0.3 + 0.7 * (v - colour.low) / (colour.high - colour.low || 1)); }
  const t = (value - (colour.middle || 0)) / colour.reach;
  if (colour.kind === "gain") return between(palette.pale, t > 0 ? palette.together : palette.alone, 0.3 + 0.7 * Math.min(1, Math.abs(t)));
  return between(palette.pale, t > 0 ? palette.alone : palette.together, 0.25 + 0.75 * Math.min(1, Math.abs(t)));
}

class AgentMap {
  constructor(canvas, over, options = {}) {
    Object.assign(this, { canvas, over, zoom: 1, dx: 0, dy: 0, hover: null, chosen: options.chosen ?? null, mini: Boolean(options.mini) });
    hovering(canvas, (x, y) => this.find(x, y), (k) => { this.hover = k; this.drawOver(); });
    let held = null;
    canvas.addEventListener("pointerdown", (event) => { held = { x: event.clientX, y: event.clientY, dx: this.dx, dy: this.dy }; canvas.dragged = false; });
    canvas.addEventListener("pointermove", (event) => {
      if (!held || !event.buttons) return;
      if (Math.abs(event.clientX - held.x) + Math.abs(event.clientY - held.y) > 4) { canvas.dragged = true; try { canvas.setPointerCapture(event.pointerId); } catch { /* gone */ } }
      if (canvas.dragged) { this.dx = held.dx + event.clientX - held.x; this.dy = held.dy + event.clientY - held.y; hideTip(); this.later(); }
    });
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => { held = null; });
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const box = canvas.getBoundingClientRect();
      this.zoomBy(Math.exp(-event.deltaY * 0.002), event.clientX - box.left, event.clientY - box.top);
    }, { passive: false });
    canvas.addEventListener("dblclick", (event) => { const box = canvas.getBoundingClientRect(); this.zoomBy(1.8, event.clientX - box.left, event.clientY - box.top); });
    canvas.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: [50, 0], ArrowRight: [-50, 0], ArrowUp: [0, 50], ArrowDown: [0, -50] }[event.key];
      if (step) { this.dx += step[0]; this.dy += step[1]; this.later(); event.preventDefault(); }
      if (event.key === "+" || event.key === "=") this.zoomBy(1.4);
      if (event.key === "-") this.zoomBy(1 / 1.4);
      if (event.key === "0") this.fit();
    });
  }
  fit() { this.zoom = 1; this.dx = 0; this.dy = 0; this.later(); }
  zoomBy(factor, x, y) {
    const box = this.canvas.getBoundingClientRect(), cx = (x ?? box.width / 2) - box.width / 2, cy = (y ?? box.height / 2) - box.height / 2;
    const next = Math.max(0.7, Math.min(60, this.zoom * factor)), real = next / this.zoom;
    this.dx = cx - (cx - this.dx) * real; this.dy = cy - (cy - this.dy) * real; this.zoom = next;
    this.later();
  }
  later() {
    // Squares while it moves, and circles when it is at rest: of thousands, these take their time.
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw(N > 4000);
      clearTimeout(this.rest);
      if (N > 4000) this.rest = setTimeout(() => this.draw(), 160);
    });
  }
  placed(width, height) {
    const margin = this.mini ? 18 : 34;
    let wide = 1e-9, tall = 1e-9;
    for (let k = 0; k < N; k += 1) { wide = Math.max(wide, Math.abs(data.map.x[k])); tall = Math.max(tall, Math.abs(spread[k])); }
    // A map of models may fill the page; one of edges keeps its shape.
    let sx = (width / 2 - margin) / wide, sy = (height / 2 - margin) / tall;
    if (data.map.kind !== "models") sx = sy = Math.min(sx, sy); else { sx = Math.min(sx, 2.2 * sy); sy = Math.min(sy, 2.2 * sx); }
    const points = new Array(N);
    for (let k = 0; k < N; k += 1) points[k] = { k, x: width / 2 + this.dx + data.map.x[k] * sx * this.zoom, y: height / 2 + this.dy - spread[k] * sy * this.zoom };
    return points;
  }
  radius(k) {
    if (N <= 1) return 6;
    const base = N > 4000 ? 1.9 : N > 1200 ? 2.6 : N > 300 ? 3.6 : 5;
    const more = isNumber(rows[k]) ? Math.sqrt(Math.min(4, rows[k] / (this.typical || (this.typical = medianOf(rows) || 1)))) : 1;
    return (this.mini ? 0.7 : 1) * base * (0.6 + 0.4 * more) * Math.min(2.2, Math.sqrt(this.zoom) ** 0.8);
  }
  lit(k) { return this.mini ? true : shown(k); }
  draw(quick = false) {
    const { pen, width, height } = canvasOf(this.canvas);
    const points = this.points = this.placed(width, height);
    const colour = COLOURS.find((one) => one.id === state.colour) || COLOURS[0];
    const [i, j, weight] = data.map.edges;
    const near = this.chosen === null ? null : new Set(nearOf(this.chosen).map(([k]) => k));
    if (i.length) {
      let most = 0, least = Infinity;
      for (const w of weight) { most = Math.max(most, w); least = Math.min(least, w); }
      const heavy = (w) => (most > 1.05 * least ? (w - least) / (most - least) : 0.25); // all alike: none of them stands out
      const buckets = [[], [], [], []];
      for (let e = 0; e < i.length; e += 1) {
        const a = points[i[e]], b = points[j[e]];
        if (Math.max(a.x, b.x) < 0 || Math.min(a.x, b.x) > width || Math.max(a.y, b.y) < 0 || Math.min(a.y, b.y) > height) continue;
        buckets[Math.min(3, Math.floor(4 * heavy(weight[e])))].push(e);
      }
      const thin = i.length > 20000 ? 0.35 : i.length > 4000 ? 0.5 : 1;
      buckets.forEach((bucket, level) => {
        pen.strokeStyle = palette.edge; pen.globalAlpha = (i.length > 4000 ? [0.08, 0.15, 0.25, 0.4] : [0.34, 0.5, 0.7, 0.95])[level]; pen.lineWidth = thin * (0.5 + 0.5 * level);
        pen.beginPath();
        for (const e of bucket) { pen.moveTo(points[i[e]].x, points[i[e]].y); pen.lineTo(points[j[e]].x, points[j[e]].y); }
        pen.stroke();
      });
      pen.globalAlpha = 1;
    }
    // In layers, and in each of them one path for a shade: thousands of agents are drawn in few strokes.
    const layers = [new Map(), new Map(), new Map()], alphas = [0.1, 0.35, 0.92], rings = [];
    for (let k = 0; k < N; k += 1) {
      const { x, y } = points[k];
      if (x < -9 || y < -9 || x > width + 9 || y > height + 9) continue;
      const lit = this.lit(k), layer = layers[!lit ? 0 : near && k !== this.chosen && !near.has(k) ? 1 : 2], tint = shade(colour, k);
      if (!layer.has(tint)) layer.set(tint, []);
      layer.get(tint).push(k);
      if (outlier[k] && lit) rings.push(k);
    }
    const circle = (k, more) => { const { x, y } = points[k], r = this.radius(k) + more; pen.moveTo(x + r, y); pen.arc(x, y, r, 0, 7); };
    layers.forEach((layer, level) => {
      pen.globalAlpha = alphas[level];
      for (const [tint, who] of layer) {
        pen.fillStyle = tint; pen.beginPath();
        if (quick) for (const k of who) { const r = this.radius(k); pen.rect(points[k].x - r, points[k].y - r, 2 * r, 2 * r); }
        else for (const k of who) circle(k, 0);
        pen.fill();
        if (N <= 1200 && level === 2) { pen.strokeStyle = palette.raised; pen.lineWidth = 0.8; pen.stroke(); }
      }
    });
    pen.globalAlpha = 1; pen.strokeStyle = palette.stand; pen.lineWidth = 1.7; pen.beginPath();
    for (const k of rings) circle(k, 2.4);
    pen.stroke();
    pen.globalAlpha = 1;
    if (this.chosen === null) this.names(pen, width, height);
    this.drawOver();
  }
  names(pen, width, height) {
    // Outliers first, then those far from the others: as many names as have room.
    const crowded = N > 400 && this.zoom < 2.5 && !state.query && state.kind === "all";
    const who = [];
    for (const point of this.points) if (this.lit(point.k) && point.x > 0 && point.x < width && point.y > 0 && point.y < height) who.push(point);
    if (crowded && who.length > 400) { const some = who.filter((point) => outlier[point.k]); who.length = 0; who.push(...some.slice(0, 14)); }
    if (!who.length) return;
    const cx = width / 2 + this.dx, cy = height / 2 + this.dy;
    const rank = (point) => (outlier[point.k] ? 1e6 : 0) + Math.hypot(point.x - cx, point.y - cy);
    who.sort((a, b) => rank(b) - rank(a));
    const taken = [], cells = 48;
    const dots = new Map();
    for (const point of this.points) { const key = `${Math.floor(point.x / cells)}:${Math.floor(point.y / cells)}`; if (!dots.has(key)) dots.set(key, []); dots.get(key).push(point); }
    pen.font = "12px system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'Liberation Sans', sans-serif";
    pen.textBaseline = "middle";
    let written = 0;
    for (const point of who.slice(0, 600)) {
      if (written >= LABELS) break;
      const text = all.name[point.k].length > 24 ? `${all.name[point.k].slice(0, 23)}…` : all.name[point.k];
      const wide = pen.measureText(text).width, gap = this.radius(point.k) + (outlier[point.k] ? 7 : 4);
      for (const left of [false, true]) {
        const x = left ? point.x - gap - wide : point.x + gap;
        const box = [x - 2, point.y - 8, x + wide + 2, point.y + 8];
        if (box[0] < 2 || box[2] > width - 2 || box[1] < 2 || box[3] > height - 2) continue;
        if (taken.some((other) => box[0] < other[2] && box[2] > other[0] && box[1] < other[3] && box[3] > other[1])) continue;
        let covered = 0;
        for (let a = Math.floor(box[0] / cells); a <= Math.floor(box[2] / cells); a += 1) for (let b = Math.floor(box[1] / cells); b <= Math.floor(box[3] / cells); b += 1) for (const other of dots.get(`${a}:${b}`) || []) if (other !== point && other.x > box[0] - 2 && other.x < box[2] + 2 && other.y > box[1] - 1 && other.y < box[3] + 1) covered += 1;
        if (covered) continue;
        pen.textAlign = "left"; pen.lineWidth = 3; pen.strokeStyle = palette.raised; pen.lineJoin = "round"; pen.strokeText(text, x, point.y);
        pen.fillStyle = palette.ink; pen.fillText(text, x, point.y);
        taken.push(box);
        written += 1;
        break;
      }
    }
  }
  drawOver() {
    if (!this.points) return;
    const { pen, width } = canvasOf(this.over);
    const mark = (k, line) => {
      const { x, y } = this.points[k];
      pen.strokeStyle = palette.ink; pen.lineWidth = line;
      pen.beginPath(); pen.arc(x, y, this.radius(k) + 4, 0, 7); pen.stroke();
    };
    for (const k of [this.chosen, this.hover]) {
      if (k === null) continue;
      pen.strokeStyle = palette.ink; pen.lineWidth = 1.1; pen.globalAlpha = 0.55;
      pen.beginPath();
      for (const [other] of nearOf(k)) { pen.moveTo(this.points[k].x, this.points[k].y); pen.lineTo(this.points[other].x, this.points[other].y); }
      pen.stroke(); pen.globalAlpha = 1;
      mark(k, 2.2);
    }
    if (this.chosen !== null) {
      pen.textBaseline = "middle"; pen.lineWidth = 4; pen.strokeStyle = palette.raised; pen.lineJoin = "round";
      for (const k of [...nearOf(this.chosen).map(([other]) => other), this.chosen]) {
        const { x, y } = this.points[k], text = all.name[k].length > 22 ? `${all.name[k].slice(0, 21)}…` : all.name[k];
        pen.font = `${k === this.chosen ? "bold 13px" : "11px"} system-ui, sans-serif`;
        const right = x + 10 + pen.measureText(text).width < width - 4;
        pen.textAlign = right ? "left" : "right";
        const at = right ? x + 10 : x - 10;
        pen.strokeText(text, at, y); pen.fillStyle = k === this.chosen ? palette.ink : palette.quiet; pen.fillText(text, at, y);
      }
    }
  }
  find(x, y) {
    if (!this.points) return null;
    const found = nearestTo(this.points.filter((point) => this.lit(point.k)), x, y, N > 1000 ? 9 : 15);
    return found ? found.k : null;
  }
}
function nearOf(k) {
  const many = data.map.nearest, out = [];
  for (let i = 0; i < many; i += 1) { const other = data.map.near[k * many + i]; if (other >= 0) out.push([other, data.map.near_by[k * many + i]]); }
  return out;
}
function medianOf(values) { const there = values.filter(isNumber).sort((a, b) => a - b); return there.length ? there[there.length >> 1] : null; }

let map = null;
const NEARNESS = {
  graph: ["Agents joined by an edge are drawn close to each other; a darker line is a heavier edge.", "neighbours", "weight of the edge"],
  correlations: ["Agents whose tasks are alike are close to each other; those on opposite sides are opposite.", "Most related agents", "correlation"],
  models: ["Agents with similar models are close to each other; those with few rows are near the common model.", "Nearest agents", "distance"],
};
function startMap() {
  map = new AgentMap($("map"), $("map-over"));
  for (const colour of COLOURS) $("colour").append(make("option", { value: colour.id }, colour.label));
  const told = measured ? gain.alone.filter((v) => v !== null).length : 0;
  state.colour = measured && told > 0.5 * N ? "gain_alone" : "far";
  $("colour").value = state.colour;
  $("colour").addEventListener("change", () => { state.colour = $("colour").value; showMap(); });
  $("zoom-in").addEventListener("click", () => map.zoomBy(1.5));
  $("zoom-out").addEventListener("click", () => map.zoomBy(1 / 1.5));
  $("fit").addEventListener("click", () => map.fit());
  for (const [name, label] of kinds) {
    $("filters").append(make("button", { type: "button", "data-kind": name, "aria-pressed": String(name === state.kind), on: { click: () => filterBy(name) } }, [label, " ", make("small", {}, count(sizes[name]))]));
    $("only").append(make("option", { value: name }, `${label} (${count(sizes[name])})`));
  }
  $("filters").hidden = kinds.length < 2;
  $("only").addEventListener("change", () => filterBy($("only").value));
}
function filterBy(kind) {
  state.kind = kind; state.page = 0;
  for (const button of $("filters").children) button.setAttribute("aria-pressed", String(button.dataset.kind === kind));
  $("only").value = kind;
  showMap(); showTable();
  if (measured) { drawScatter(); drawSorted(); }
}
const dot = (colour, ring) => draw("svg", { width: 15, height: 15, viewBox: "0 0 15 15", "aria-hidden": "true" }, [draw("circle", { cx: 7.5, cy: 7.5, r: ring ? 6 : 5, fill: ring ? "none" : colour, stroke: ring ? colour : "none", "stroke-width": 2 })]);
function ramp(colours) {
  return draw("svg", { width: 74, height: 12, viewBox: "0 0 74 12", "aria-hidden": "true" }, colours.map((colour, i) => draw("rect", { x: i * 74 / colours.length, y: 0, width: 74 / colours.length + 0.5, height: 12, fill: colour })));
}
function showMap() {
  const colour = COLOURS.find((one) => one.id === state.colour) || COLOURS[0];
  const legend = [];
  const steps = (from, to, least) => [0, 1, 2, 3, 4, 5].map((i) => between(from, to, least + (1 - least) * i / 5));
  if (colour.kind === "more") legend.push(["fewer", "less"][colour.log ? 0 : 1], ramp(steps(palette.pale, palette.together, 0.3)), `more: ${colour.label}`);
  else if (colour.kind === "gain") legend.push("larger error together", ramp([...steps(palette.pale, palette.alone, 0.3).reverse(), ...steps(palette.pale, palette.together, 0.3)]), "smaller error together");
  else legend.push("below the common value", ramp([...steps(palette.pale, palette.together, 0.25).reverse(), ...steps(palette.pale, palette.alone, 0.25)]), `above: ${colour.label}`);
  const entries = [make("span", {}, legend)];
  if (colour.values.some((v) => !isNumber(v))) entries.push(make("span", {}, [dot(palette.none), "not measured"]));
  if (sizes.outlier) entries.push(make("span", {}, [dot(palette.stand, true), "stands out"]));
  $("map-legend").replaceChildren(...entries);
  let lit = 0; for (let k = 0; k < N; k += 1) if (shown(k)) lit += 1;
  const axes = data.map.shares.length === 2 && data.map.kind === "models" ? ` Across: ${percent(data.map.shares[0])} of the differences between models; up: ${percent(data.map.shares[1])}.` : data.map.shares.length === 1 && data.map.kind === "models" ? " Agents differ in one direction only, which is across; up and down has no meaning." : "";
  const bent = data.map.bent ? " Those far out are drawn further in." : "";
  $("alike-lead").textContent = `${NEARNESS[data.map.kind][0]}${axes}${bent} Hover for numbers, click to open an agent; drag to move, Ctrl and the wheel to zoom.`;
  $("map-caption").textContent = `${lit === N ? plural(N, "agent") : `${count(lit)} of ${plural(N, "agent")} shown in full`}${data.map.edges[0].length ? `, ${plural(data.map.edges[0].length, "edge")}` : ""}.${new Set(rows).size > 1 ? " A larger dot has more rows." : ""}`;
  $("map").setAttribute("aria-label", `Map of ${plural(N, "agent")}. ${NEARNESS[data.map.kind][0]} ${lit} are shown. Arrow keys move it, plus and minus zoom. The search box and the table of all agents open the same pages.`);
  map.draw();
}

// -- features ---------------------------------------------------------------------------------------------------------

let chosenOutput = 0;
function featureLines() {
  const table = data.features;
  if (!table || !table.feature) return [];
  const lines = table.feature.map((name, i) => Object.fromEntries(Object.keys(table).map((key) => [key, table[key][i]])));
  return table.class ? lines.filter((line) => String(line.class) === data.outputs[chosenOutput]?.name) : lines;
}
function showFeatures() {
  const lines = featureLines();
  $("features").hidden = !lines.length;
  const certain = lines.some((line) => isNumber(line.low));
  $("differ-lead").textContent = lines.length ? `How much coefficients differ between agents: their standard deviation${certain ? ", with a 90 % interval," : ""} and the share of all differences between predictions that a feature makes. Of a curve, deviations are in units of what is predicted.` : "Nothing is said of features: see the notes below.";
  if (lines.length) {
    const most = 14, some = lines.slice(0, state.allFeatures ? lines.length : most);
    const head = make("tr", {}, [make("th", { class: "text", scope: "col" }, "Feature"), make("th", { scope: "col" }, "Common"), make("th", { scope: "col" }, "Differs by (sd)"), certain ? make("th", { scope: "col" }, "90 % interval") : null, make("th", { scope: "col", class: "text" }, certain ? "Share of the differences, at the ends of the interval" : "Share of the differences"), make("th", { scope: "col" }, "")]);
    // The share if this feature differed as an end of its interval says, and the others as they do: never more than all.
    const shareAt = (line, end) => { if (!isNumber(line[end]) || !(line.sd > 0)) return null; const part = (line.importance || 0) * (line[end] / line.sd) ** 2; return part / (1 - (line.importance || 0) + part); };
    const widest = Math.max(...lines.map((line) => line.importance || 0), 1e-9);
    const top = Math.min(1.5 * widest, Math.max(widest, ...lines.map((line) => shareAt(line, "high") || 0)));
    const body = some.map((line) => {
      const fixed = line.kind === "cannot differ";
      const share = line.importance || 0;
      const ends = ["low", "high"].map((end) => (shareAt(line, end) === null ? null : 200 * shareAt(line, end) / top));
      const whole = ends[1] !== null && ends[1] <= 206; // one that is cut has no cap
      const whisker = share > 0 && ends.every(isNumber) ? draw("path", { d: `M${ends[0]} 15H${Math.min(206, ends[1])}M${ends[0]} 10V20${whole ? `M${ends[1]} 10V20` : ""}`, class: "stroke-ink", "stroke-width": 1.6, "vector-effect": "non-scaling-stroke" }) : null;
      const bars = draw("svg", { viewBox: "0 0 206 30", preserveAspectRatio: "none", "aria-hidden": "true" }, [draw("rect", { x: 0, y: 9, width: 200, height: 12, rx: 3, class: "fill-pale", opacity: 0.5 }), draw("rect", { x: 0, y: 9, width: Math.max(share > 0 ? 1.5 : 0, 200 * share / top), height: 12, rx: 3, class: line.kind === "intercept" ? "fill-one" : "fill-together" }), whisker]);
      return make("tr", {}, [
        make("th", { scope: "row" }, line.feature),
        make("td", {}, isNumber(line.common) ? num(line.common) : "a curve"),
        make("td", {}, fixed ? "cannot differ" : num(line.sd)),
        certain ? make("td", {}, fixed ? "" : isNumber(line.high) ? `${num(line.low, 3)} to ${num(line.high, 3)}` : "not known") : null,
        make("td", { class: "draw" }, bars),
        make("td", {}, isNumber(line.importance) ? percent(share) : "–"),
      ]);
    });
    const rest = lines.length - some.length;
    const more = rest > 0 ? make("button", { type: "button", on: { click: () => { state.allFeatures = true; showFeatures(); } } }, `Show ${plural(rest, "more feature")}`) : null;
    $("features").replaceChildren(make("table", {}, [make("caption", { class: "unseen" }, "Features by how much they differ between agents"), make("thead", {}, head), make("tbody", {}, body)]), ...(more ? [more] : []));
  }
  showCurves();
}
const LINK = { identity: (v) => v, logistic: (v) => 1 / (1 + Math.exp(-v)), exp: (v) => Math.exp(Math.min(30, v)) };
function valuesOf(feature, k) {
  // Without the intercept: at the points of the feature, or between its steps.
  const q = feature.common.length;
  const theta = k === null ? feature.common : feature.own.slice(k * q, (k + 1) * q);
  return feature.basis ? feature.basis.map((row) => row.reduce((total, b, i) => total + b * theta[i], 0)) : theta;
}
const levelOf = (output, k) => { const last = output.features[output.features.length - 1]; return k === null ? last.common[0] : last.own[k]; };
function curveOf(output, feature, k) {
  const level = levelOf(output, k), link = LINK[output.link], values = valuesOf(feature, k);
  const G = values.length, row = k === null ? N : k;
  const half = feature.band ? feature.band.slice(row * G, (row + 1) * G) : null;
  return { y: values.map((v) => link(v + level)), low: half && values.map((v, i) => link(v + level - half[i])), high: half && values.map((v, i) => link(v + level + half[i])) };
}
function typicalAgents(output, feature, most = 5) {
  // From one end of what there is to the other, where curves differ most among agents that have rows there.
  if (N <= most) return all.name.map((_, k) => k);
  const step = Math.max(1, Math.floor(N / 4000)), who = [];
  for (let k = 0; k < N; k += step) who.push(k);
  const each = who.map((k) => valuesOf(feature, k)), G = each[0].length;
  const bounded = feature.low && feature.kind !== "steps" && feature.low.some(isNumber);
  const there = (k, g) => !bounded || !isNumber(feature.low[k]) || (feature.low[k] <= feature.x[g] && feature.x[g] <= feature.high[k]);
  let best = 0, widest = -1;
  for (let g = 0; g < G; g += 1) {
    let total = 0, mean = 0, square = 0;
    who.forEach((k, i) => { if (there(k, g)) { const v = each[i][g]; total += 1; mean += v; square += v * v; } });
    if (total < Math.max(most, 0.15 * who.length)) continue;
    const variance = square / total - (mean / total) ** 2;
    if (variance > widest) { widest = variance; best = g; }
  }
  const order = who.map((k, i) => [each[i][best], k]).filter(([, k]) => widest < 0 || there(k, best)).sort((a, b) => a[0] - b[0]);
  return [0, 0.25, 0.5, 0.75, 1].map((share) => order[Math.round(share * (order.length - 1))][1]);
}
let clips = 0;
function curveChart(output, feature, who, label) {
  const W = roomy(520, 330), H = roomy(270, 230), left = 52, right = 12, top = 10, bottom = 38;
  const steps = feature.kind === "steps", x = feature.x, gap = (x[x.length - 1] - x[0]) / (x.length - 1) * 0.6;
  const lines = [{ k: null, style: 0 }, ...who.map((k, i) => ({ k, style: (i % 5) + 1 }))].map((line) => ({ ...line, ...curveOf(output, feature, line.k) }));
  let low = Infinity, high = -Infinity;
  const inside = (line, i) => line.k === null || steps || !feature.low || !isNumber(feature.low[line.k]) || (x[i] >= feature.low[line.k] - gap && x[i] <= feature.high[line.k] + gap);
  for (const line of lines) line.y.forEach((v, i) => { if (inside(line, i)) { low = Math.min(low, v); high = Math.max(high, v); } });
  const beyond = 0.25 * (high - low); // what has no rows may leave the chart
  const [least, most] = [low - beyond, high + beyond];
  for (const line of lines) for (const v of line.y) { low = Math.min(low, Math.max(v, least)); high = Math.max(high, Math.min(v, most)); }
  const room = high - low || Math.abs(high) || 1;
  for (const line of lines) if (line.low) line.low.forEach((v, i) => { low = Math.min(low, Math.max(v, low - 0.12 * room)); high = Math.max(high, Math.min(line.high[i], high + 0.12 * room)); });
  const pad = 0.04 * (high - low) || 0.5; low -= pad; high += pad;
  if (output.link === "logistic") { low = Math.max(low, 0); high = Math.min(high, 1); }
  if (output.link === "exp") low = Math.max(low, 0);
  const X = (v) => left + (v - x[0]) / (x[x.length - 1] - x[0] || 1) * (W - left - right);
  const Y = (v) => Math.max(-H, Math.min(2 * H, H - bottom - (v - low) / (high - low || 1) * (H - top - bottom)));
  const svg = draw("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": label });
  for (const v of ticksOf(low, high, 5)) svg.append(draw("line", { x1: left, x2: W - right, y1: Y(v), y2: Y(v), class: "stroke-line" }), draw("text", { x: left - 7, y: Y(v) + 4, "text-anchor": "end" }, tickText(v)));
  const yesOrNo = x[0] === 0 && x[x.length - 1] === 1 && /.=.|. missing$/.test(feature.name); // of a text column, or a gap
  for (const v of yesOrNo ? [0, 1] : ticksOf(x[0], x[x.length - 1], 6)) svg.append(draw("line", { x1: X(v), x2: X(v), y1: H - bottom, y2: H - bottom + 5, class: "stroke-edge" }), draw("text", { x: X(v), y: H - bottom + 19, "text-anchor": "middle" }, yesOrNo ? ["no", "yes"][v] : tickText(v)));
  svg.append(draw("line", { x1: left, x2: W - right, y1: H - bottom, y2: H - bottom, class: "stroke-edge" }));
  clips += 1;
  const field = draw("g", { "clip-path": `url(#clip-${clips})` });
  svg.append(draw("clipPath", { id: `clip-${clips}` }, draw("rect", { x: left, y: top - 4, width: W - left - right + 2, height: H - top - bottom + 4 })), field);
  const path = (values, from = -Infinity, to = Infinity) => {
    let text = "", pen = false;
    values.forEach((v, i) => {
      if (steps) { text += `${i ? "L" : "M"}${X(x[i]).toFixed(1)} ${Y(v).toFixed(1)}L${X(x[i + 1]).toFixed(1)} ${Y(v).toFixed(1)}`; return; }
      if (x[i] < from || x[i] > to) { pen = false; return; }
      text += `${pen ? "L" : "M"}${X(x[i]).toFixed(1)} ${Y(v).toFixed(1)}`; pen = true;
    });
    return text;
  };
  for (const line of lines.slice().reverse()) {
    const style = `agent-${line.style}`;
    if (line.low && lines.length <= 3) {
      const back = line.low.map((v, i) => [X(x[i]), Y(v)]).reverse();
      field.append(draw("path", { d: `${path(line.high)}${back.map(([a, b]) => `L${a.toFixed(1)} ${b.toFixed(1)}`).join("")}Z`, class: `band ${style}` }));
    }
    if (line.k === null) { field.append(draw("path", { d: path(line.y), class: `line ${style}`, "stroke-width": 2.6, "stroke-dasharray": "7 5" })); continue; }
    const from = feature.low ? feature.low[line.k] : null, to = feature.high ? feature.high[line.k] : null;
    if (!steps && isNumber(from) && isNumber(to) && x.length > 2) {
      field.append(draw("path", { d: path(line.y), class: `line ${style}`, "stroke-width": 1.3, "stroke-dasharray": "1.5 4", "stroke-linecap": "round" }));
      field.append(draw("path", { d: path(line.y, from - gap, to + gap), class: `line ${style}`, "stroke-width": 2.2 }));
    } else field.append(draw("path", { d: path(line.y), class: `line ${style}`, "stroke-width": 2 }));
  }
  svg.append(draw("text", { x: left + (W - left - right) / 2, y: H - 3, "text-anchor": "middle" }, feature.name.length > 60 ? `${feature.name.slice(0, 59)}…` : feature.name));
  return svg;
}
const sample = (style, dashed) => draw("svg", { width: 24, height: 10, viewBox: "0 0 24 10", "aria-hidden": "true" }, [draw("path", { d: "M1 5H23", class: `line agent-${style}`, "stroke-width": dashed ? 2.6 : 2.2, "stroke-dasharray": dashed ? "6 4" : null })]);
// Probabilities of curves are those of the mean of the posterior; predictions average over it.
const careful = (output) => (output.link === "logistic" && output.features.some((feature) => feature.half) ? " Where little is known, predict_proba is more cautious." : "");
const drawable = (output) => output.features.filter((feature) => feature.x && feature.kind !== "intercept");
function showCurves() {
  const output = data.outputs[chosenOutput];
  const fixed = new Set(featureLines().filter((line) => line.kind === "cannot differ").map((line) => line.feature));
  const features = output ? drawable(output).filter((feature) => !fixed.has(feature.name)) : [];
  $("curves-block").hidden = !features.length || N < 1;
  if (!features.length) return;
  const some = features.slice(0, 4);
  $("curves-lead").textContent = `The ${output.said} while one feature changes and the others stay at their means: by the common model, and by a few agents from one end to the other.${careful(output)}${features.some((feature) => feature.low) ? " Dotted where an agent has no rows." : ""}`;
  $("curves").replaceChildren(...some.map((feature) => {
    const who = typicalAgents(output, feature);
    const label = `${output.said} along ${feature.name}: common model and ${who.length} agents, ${who.map((k) => all.name[k]).join(", ")}`;
    return make("figure", { class: "curve" }, [
      make("h4", {}, feature.name),
      curveChart(output, feature, who, label),
      make("figcaption", {}, make("span", { class: "legend" }, [make("span", {}, [sample(0, true), make("b", {}, "common")]), ...who.map((k, i) => make("span", {}, [sample((i % 5) + 1), make("button", { type: "button", on: { click: () => open(k) } }, all.name[k])]))])),
    ]);
  }));
}
function startFeatures() {
  if (data.outputs.length < 2) return;
  const choice = make("select", { id: "output", on: { change: (event) => { chosenOutput = Number(event.target.value); showFeatures(); } } }, data.outputs.map((output, o) => make("option", { value: o }, output.name)));
  $("differ-tools").append(make("label", { for: "output" }, "Class"), choice);
}

// -- the table --------------------------------------------------------------------------------------------------------

const columns = [
  { id: "name", label: "Agent", text: true, value: (k) => all.name[k], csv: "agent" },
  all.rows && { id: "rows", label: "Rows", value: (k) => rows[k], show: count, csv: "rows" },
  measured && { id: "alone", label: "Error alone", value: (k) => error.alone[k], csv: "alone" },
  measured && { id: "one_model", label: "One model", value: (k) => error.one_model[k], csv: "one_model" },
  measured && { id: "together", label: "Together", value: (k) => error.together[k], csv: "together" },
  measured && { id: "gain_alone", label: "Gain against alone", value: (k) => gain.alone[k], tone: true, csv: "gain_alone" },
  measured && { id: "gain_one_model", label: "Against one model", value: (k) => gain.one_model[k], tone: true, csv: "gain_one_model" },
  { id: "far", label: "Distance from common", value: (k) => all.far[k], csv: "distance" },
  data.tests && { id: "outlier", label: "Outlier", value: (k) => (outlier[k] ? 1 : 0), show: (v) => (v ? "yes" : ""), csv: "outlier" },
].filter(Boolean);
function ordered() {
  const column = columns.find((one) => one.id === state.sort) || columns[0];
  const who = [];
  for (let k = 0; k < N; k += 1) if (shown(k)) who.push(k);
  const sign = state.down ? -1 : 1;
  const compare = new Intl.Collator("en", { numeric: true }).compare;
  who.sort((a, b) => {
    const u = column.value(a), v = column.value(b);
    if (column.text) return sign * compare(u, v);
    if (u === null || v === null) return (u === null) - (v === null); // what is not known comes last, either way
    return sign * (u - v) || a - b;
  });
  return who;
}
function showTable() {
  const who = ordered(), pages = Math.max(1, Math.ceil(who.length / PAGE));
  state.page = Math.max(0, Math.min(state.page, pages - 1));
  const head = columns.map((column) => make("th", { scope: "col", class: column.text ? "text" : null, "aria-sort": column.id === state.sort ? (state.down ? "descending" : "ascending") : null }, make("button", { type: "button", "data-sort": column.id, on: { click: () => { if (state.sort === column.id) state.down = !state.down; else { state.sort = column.id; state.down = !column.text; } state.page = 0; showTable(); const again = $("table").querySelector(`[data-sort="${column.id}"]`); if (again) again.focus(); } } }, column.label)));
  $("table").tHead.replaceChildren(make("tr", {}, head));
  const body = who.slice(state.page * PAGE, (state.page + 1) * PAGE).map((k) => make("tr", { "data-agent": k }, columns.map((column) => {
    if (column.text) return make("th", { scope: "row", class: "text" }, linkTo(k));
    const value = column.value(k);
    const tone = column.tone && value !== null ? (value > 0 ? "good" : value < 0 ? "bad" : null) : null;
    return make("td", { class: tone }, value === null ? "–" : (tone === "good" ? "+" : "") + (column.show || num)(value));
  })));
  $("table").tBodies[0].replaceChildren(...body);
  const first = who.length ? state.page * PAGE + 1 : 0, last = Math.min(who.length, (state.page + 1) * PAGE);
  $("page-note").textContent = who.length ? `${count(first)} to ${count(last)} of ${count(who.length)}` : "no agents";
  $("back-page").disabled = state.page === 0;
  $("next-page").disabled = state.page >= pages - 1;
  $("agents-lead").textContent = who.length === N ? `${plural(N, "agent")}. Click a heading to sort, a name to open an agent.` : `${count(who.length)} of ${plural(N, "agent")}.`;
}
// A name that a spreadsheet would take for a formula gets an apostrophe, which makes it text there.
const quoted = (value) => { const text = value === null || value === undefined ? "" : typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value); return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text; };
function csv() {
  const lines = [columns.map((column) => column.csv).join(",")];
  for (const k of ordered()) lines.push(columns.map((column) => quoted(column.value(k))).join(","));
  return `${lines.join("\r\n")}\r\n`;
}
async function copyCsv() {
  const text = csv();
  try { await navigator.clipboard.writeText(text); } catch {
    const area = make("textarea", { class: "unseen", "aria-hidden": "true" });
    area.value = text; document.body.append(area); area.select(); document.execCommand("copy"); area.remove();
  }
  $("copy").textContent = "Copied"; say("The table was copied as CSV.");
  setTimeout(() => { $("copy").textContent = "Copy CSV"; }, 2000);
}
function downloadCsv() {
  const address = URL.createObjectURL(new Blob([csv()], { type: "text/csv;charset=utf-8" }));
  const link = make("a", { href: address, download: "agents.csv" });
  document.body.append(link); link.click(); link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}
function startTable() {
  $("back-page").addEventListener("click", () => { state.page -= 1; showTable(); });
  $("next-page").addEventListener("click", () => { state.page += 1; showTable(); });
  let waiting = 0;
  $("filter").addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(() => { state.query = $("filter").value.trim().toLowerCase(); state.page = 0; showTable(); showMap(); if (measured) { drawScatter(); drawSorted(); } }, 120); });
  $("copy").addEventListener("click", copyCsv);
  $("download").addEventListener("click", downloadCsv);
}

// -- words ------------------------------------------------------------------------------------------------------------

const listed = (title, lines) => [make("h3", {}, title), make("ul", {}, lines.map((line) => make("li", {}, `${line.charAt(0).toUpperCase()}${line.slice(1)}${/[.!?]$/.test(line) ? "" : "."}`)))];
function intervalBar(told, before) {
  const W = roomy(400, 290), H = 44;
  const ends = [told.low, told.high, told.mean].map((v) => v / before);
  const reach = 1.15 * Math.max(...ends.map(Math.abs), 0.02), X = (v) => W / 2 + v / reach * (W / 2 - 6);
  const tone = ends[0] > 0 ? "together" : ends[1] < 0 ? "alone" : "quiet";
  return draw("svg", { viewBox: `0 0 ${W} ${H}`, width: "100%", height: H, preserveAspectRatio: "xMinYMid meet", role: "img", "aria-label": `Relative gain ${percent(ends[2])}, 95 % interval ${percent(ends[0])} to ${percent(ends[1])}` }, [
    draw("line", { x1: 6, x2: W - 6, y1: 15, y2: 15, class: "stroke-line", "stroke-width": 2 }),
    draw("line", { x1: X(0), x2: X(0), y1: 5, y2: 25, class: "stroke-edge", "stroke-width": 1.5 }),
    draw("rect", { x: X(ends[0]), y: 11, width: Math.max(2, X(ends[1]) - X(ends[0])), height: 8, rx: 4, class: `fill-${tone}`, opacity: 0.4 }),
    draw("circle", { cx: X(ends[2]), cy: 15, r: 6, class: `fill-${tone}` }),
    draw("text", { x: X(0), y: 40, "text-anchor": "middle" }, "no change"),
    draw("text", { x: W - 6, y: 40, "text-anchor": "end" }, "smaller error"),
    draw("text", { x: 6, y: 40 }, "larger error"),
  ]);
}
function showWords() {
  const { summary } = data;
  $("made").textContent = [`${summary.estimator}`, `method ${summary.method}`, summary.design && `${summary.design} design`, summary.loss && `${summary.loss} loss`].filter(Boolean).join(" · ");
  $("headline").textContent = `What ${plural(data.agents.total, "agent")} learned${data.agents.total > 1 ? " together" : ""}`;
  $("explained").textContent = data.explained;
  const cards = data.headline.filter((line) => line.tone !== "more");
  $("verdicts").replaceChildren(...cards.map((line) => {
    const told = line.against ? summary.gains[line.against] : null;
    const parts = [make("h2", {}, told ? `Against ${line.against === "alone" ? "learning alone" : "one model for all"}` : "Gains")];
    if (told) {
      const size = isNumber(told.relative) ? percent(Math.abs(told.relative)) : num(Math.abs(told.mean));
      parts.push(make("p", { class: "big" }, line.tone === "even" ? "No clear difference" : [size, " ", make("small", {}, line.tone === "good" ? "smaller error" : "larger error")]));
      if (isNumber(told.low) && summary.errors[line.against] > 0) parts.push(intervalBar(told, summary.errors[line.against]));
    }
    parts.push(make("p", { class: "text" }, line.text));
    return make("div", { class: "card", "data-tone": line.tone }, parts);
  }));
  $("said").replaceChildren(...data.headline.filter((line) => line.tone === "more").map((line) => make("li", {}, line.text)));
  const facts = [["agents", count(data.agents.total)]];
  if (isNumber(summary.rows)) facts.push(["rows", count(summary.rows)], ["median rows of an agent", num(summary.median_rows)]);
  facts.push(["columns", count(summary.columns)]);
  if (isNumber(summary.noise)) facts.push(["noise (sd)", num(summary.noise)]);
  if (data.map.edges[0].length) facts.push(["edges", count(data.map.edges[0].length)]);
  if (summary.log_odds_of !== undefined) facts.push(["models give the log-odds of", summary.log_odds_of]);
  $("facts").replaceChildren(...facts.map(([name, value]) => make("div", {}, [make("dt", {}, name), make("dd", {}, value)])));

  const { choices } = data;
  const said = [];
  if (choices && choices.candidate) {
    if (choices.candidate.length === 1) said.push(make("h3", {}, "What was chosen"), make("p", { class: "lead" }, `${choices.candidate[0]}; nothing else was tried (log evidence ${num(choices.log_evidence[0])}).`));
    else {
      const held = choices.held_out_loss.some(isNumber);
      said.push(make("h3", {}, "What was chosen, and why"), make("p", { class: "lead" }, "By evidence: curves and heavy tails must win clearly, and curves also on rows left out."), make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "What was chosen" }, make("table", {}, [
        make("thead", {}, make("tr", {}, [make("th", { class: "text", scope: "col" }, "Candidate"), make("th", { scope: "col" }, "Log evidence"), held ? make("th", { scope: "col" }, "Loss of rows left out") : null, make("th", { scope: "col" }, "")])),
        make("tbody", {}, choices.candidate.map((name, i) => make("tr", {}, [make("th", { scope: "row" }, name), make("td", {}, isNumber(choices.log_evidence[i]) ? num(choices.log_evidence[i]) : "not kept"), held ? make("td", {}, num(choices.held_out_loss[i])) : null, make("td", {}, choices.chosen[i] ? make("span", { class: "badge good" }, "chosen") : isNumber(choices.nats[i]) ? `${choices.nats[i] > 0 ? "+" : ""}${num(choices.nats[i])} nats` : "")]))),
      ])));
    }
  } else said.push(make("h3", {}, "What was chosen"), make("p", { class: "lead" }, "Nothing was chosen by evidence: the settings are as they were given."));
  $("choices").replaceChildren(...said);
  $("prepared").replaceChildren(...listed("What was done to columns", data.columns.length ? data.columns : ["nothing: all are numbers"]));
  $("notes").replaceChildren(...(data.notes.length ? listed("Notes", data.notes) : []));

  const { sent } = data;
  const told = [];
  for (const [name, label] of [["wakes", "wakes"], ["rounds", "rounds"], ["messages", "messages"], ["vectors", "vectors"]]) if (isNumber(sent[name])) told.push([label, count(sent[name])]);
  if (isNumber(sent.bytes)) told.push(["sent in all", size(sent.bytes)], ["for each agent", size(sent.bytes / Math.max(1, data.agents.total))]);
  told.push(isNumber(sent.epsilon) ? ["epsilon spent", num(sent.epsilon)] : ["privacy budget spent", "none"]);
  if (isNumber(sent.delta)) told.push(["delta", num(sent.delta)]);
  $("sent-facts").replaceChildren(...told.map(([name, value]) => make("div", {}, [make("dt", {}, name), make("dd", {}, value)])));
  $("sent-words").replaceChildren(...sent.words.map((line) => make("p", {}, line)));
  $("text").textContent = data.text;
  $("footer").textContent = `Made by coterie ${data.coterie}. This file holds names, numbers of rows, errors and models of the agents, and the ranges of their columns; models of few rows tell what these were. It needs no network, and sends nothing.`;
  for (const [id, label] of [["gains", "Gains"], ["alike", "Who is alike"], ["differ", "Features"], ["agents", "Agents"], ["made-of", "How it was made"], ["sent", "What was sent"]]) $("nav").append(make("a", { href: `#${id}` }, label));
}

// -- one agent --------------------------------------------------------------------------------------------------------

function sentenceOf(k) {
  const name = all.name[k], begin = isNumber(rows[k]) ? `${name} has ${plural(rows[k], "row")}` : name;
  if (gain.alone[k] === null) return `${begin}. ${measured ? "Its errors were not measured: it was not in the sample, or has one row only." : "Errors were not measured."}`;
  const against = (which, words) => {
    const share = gain[which][k] / error[which][k];
    return `${isFinite(share) ? percent(Math.abs(share)) : num(Math.abs(gain[which][k]))} ${gain[which][k] >= 0 ? "lower" : "higher"} than ${words} (${num(error[which][k])})`;
  };
  return `${begin}. Together its error is ${num(error.together[k])}: ${against("alone", "alone")}, and ${against("one_model", "with one model for all")}.`;
}
function errorBars(k) {
  const lines = [["alone", "Alone", "fill-alone"], ["one_model", "One model", "fill-one"], ["together", "Together", "fill-together"]];
  const most = Math.max(...lines.map(([name]) => error[name][k])) || 1;
  const W = roomy(520, 330), step = 46;
  return draw("svg", { viewBox: `0 0 ${W} ${3 * step + 4}`, role: "img", "aria-label": lines.map(([name, label]) => `${label}: ${num(error[name][k])}`).join("; ") }, lines.flatMap(([name, label, style], i) => {
    const wide = Math.max(2, (W - 170) * error[name][k] / most);
    return [draw("text", { x: 84, y: i * step + 28, "text-anchor": "end", "font-size": 14, class: "fill-ink" }, label), draw("rect", { x: 96, y: i * step + 9, width: wide, height: 28, rx: 5, class: style }), draw("text", { x: 96 + wide + 9, y: i * step + 28, class: "fill-ink" }, num(error[name][k]))];
  }));
}
function factsOf(k) {
  const out = [];
  const rank = (values, high) => { const there = values.filter(isNumber); return `${count(1 + there.filter((v) => (high ? v > values[k] : v < values[k])).length)} of ${count(there.length)}`; };
  if (isNumber(rows[k])) out.push(["rows", count(rows[k])]);
  if (gain.alone[k] !== null) out.push(["gain against alone", num(gain.alone[k])], ["by gain", rank(gain.alone, true)]);
  if (isNumber(all.far[k])) out.push(["distance from the common model", `${num(all.far[k], 3)} sd`], ["by distance", rank(all.far, true)]);
  return out;
}
function forest(feature, sd, k) {
  const value = feature.own[k], half = feature.half ? feature.half[k] : null, common = feature.common[0];
  const ends = [value, common, ...(isNumber(half) ? [value - half, value + half] : []), ...(isNumber(sd) ? [common - 2 * sd, common + 2 * sd] : [])];
  let low = Math.min(...ends), high = Math.max(...ends);
  if (low < 0 && -low < 0.3 * (high - low)) low = Math.min(low, 0);
  const pad = 0.06 * (high - low) || 1; low -= pad; high += pad;
  const W = 260, X = (v) => (v - low) / (high - low) * W;
  return draw("svg", { viewBox: `0 0 ${W} 30`, preserveAspectRatio: "none", "aria-hidden": "true" }, [
    isNumber(sd) ? draw("rect", { x: X(common - 1.645 * sd), y: 6, width: X(common + 1.645 * sd) - X(common - 1.645 * sd), height: 18, rx: 3, class: "fill-pale" }) : null,
    draw("line", { x1: X(common), x2: X(common), y1: 3, y2: 27, class: "stroke-ink", "stroke-width": 1.6, "stroke-dasharray": "3 3", "vector-effect": "non-scaling-stroke" }),
    isNumber(half) ? draw("line", { x1: X(value - half), x2: X(value + half), y1: 15, y2: 15, class: "stroke-together", "stroke-width": 3, "vector-effect": "non-scaling-stroke" }) : null,
    draw("line", { x1: X(value), x2: X(value), y1: 8, y2: 22, class: "stroke-together", "stroke-width": 6, "stroke-linecap": "round", "vector-effect": "non-scaling-stroke" }),
  ]);
}
function coefficientTable(output, k) {
  const sds = new Map();
  if (data.features && data.features.feature) data.features.feature.forEach((name, i) => { if (!data.features.class || String(data.features.class[i]) === output.name) sds.set(name, data.features.sd[i]); });
  const several = output.features.filter((feature) => feature.common.length === 1 && feature.kind !== "steps" && feature.kind !== "curve");
  const lines = several.filter((feature) => sds.get(feature.name) !== 0), fixed = several.length - lines.length;
  if (!lines.length) return null;
  const certain = lines.some((feature) => feature.half);
  const far = (feature) => (sds.get(feature.name) > 0 ? Math.abs(feature.own[k] - feature.common[0]) / sds.get(feature.name) : 0);
  const some = lines.slice().sort((a, b) => far(b) - far(a)).slice(0, 30);
  const body = some.map((feature) => {
    const value = feature.own[k], half = feature.half ? feature.half[k] : null, sd = sds.get(feature.name);
    const apart = sd > 0 ? (value - feature.common[0]) / sd : null;
    return make("tr", {}, [make("th", { scope: "row" }, feature.name), make("td", {}, num(feature.common[0])), make("td", {}, make("b", {}, num(value))), certain ? make("td", {}, isNumber(half) ? `${num(value - half, 3)} to ${num(value + half, 3)}` : "–") : null, make("td", { class: "draw" }, forest(feature, sd, k)), make("td", {}, apart === null ? "–" : `${apart > 0 ? "+" : ""}${num(apart, 2)} sd`)]);
  });
  const percentOf = `${Math.round(100 * data.coverage)} %`;
  return make("section", { class: "panel" }, [
    make("h2", {}, `Coefficients against the common model${data.outputs.length > 1 ? `: class ${output.name}` : ""}`),
    make("p", { class: "lead" }, `The grey bar holds 90 % of agents, the dashed line is the common model${certain ? `, the blue line a ${percentOf} interval` : ""}. The intercept is where columns have their means.${fixed ? ` ${plural(fixed, "column")} that cannot differ between agents ${fixed === 1 ? "is" : "are"} left out.` : ""}${some.length < lines.length ? ` The ${some.length} that differ most, of ${lines.length}.` : ""}`),
    make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Coefficients" }, make("table", {}, [make("thead", {}, make("tr", {}, [make("th", { class: "text", scope: "col" }, "Feature"), make("th", { scope: "col" }, "Common"), make("th", { scope: "col" }, "Own"), certain ? make("th", { scope: "col" }, `${percentOf} interval`) : null, make("th", { class: "text", scope: "col" }, "Own against common"), make("th", { scope: "col" }, "Apart by")])), make("tbody", {}, body)])),
  ]);
}
function testsTable(k) {
  const found = testsOf.get(k) || [];
  if (!data.tests) return make("p", { class: "lead" }, "There are no tests for outliers: this method has no posterior.");
  if (!found.length) return make("p", { class: "lead" }, "Nothing was tested: the agent has too few rows.");
  const { tests } = data;
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Tests for outliers" }, make("table", {}, [
    make("thead", {}, make("tr", {}, [make("th", { class: "text", scope: "col" }, "By its"), make("th", { class: "text", scope: "col" }, "What stands out most"), make("th", { scope: "col" }, "p"), make("th", { scope: "col" }, "q"), make("th", { scope: "col" }, "")])),
    make("tbody", {}, found.map((i) => make("tr", {}, [
      make("th", { scope: "row" }, `${tests.residuals[i] ? "residuals" : "coefficients"}${data.outputs.length > 1 ? ` of ${data.outputs[tests.output[i]]?.name ?? ""}` : ""}`),
      make("td", { class: "text" }, tests.residuals[i] ? `${num(tests.z[i])} times what was expected` : `${tests.names[tests.feature[i]]} ${tests.z[i] > 0 ? "+" : ""}${num(tests.z[i], 2)} sd`),
      make("td", {}, num(tests.p[i], 2)), make("td", {}, num(tests.q[i], 2)),
      make("td", {}, tests.q[i] < data.threshold ? make("span", { class: "badge stand" }, "stands out") : make("span", { class: "badge" }, "as expected")),
    ]))),
  ]));
}
let before = null;
function showAgent(k) {
  if (state.agent === null) before = { scroll: window.scrollY, focus: document.activeElement && document.activeElement.closest("tr[data-agent]") ? document.activeElement.closest("tr[data-agent]").dataset.agent : document.activeElement?.id };
  const again = state.agent === k;
  state.agent = k;
  hideTip();
  $("overview").hidden = true;
  const order = ordered(), at = order.indexOf(k);
  const step = (by, label) => { const other = at >= 0 ? order[at + by] : undefined; return make("button", { type: "button", disabled: other === undefined, on: { click: () => open(other) } }, label); };
  const parts = [make("div", { class: "crumbs" }, [make("button", { type: "button", id: "back", on: { click: goBack } }, "← All agents"), make("span", { class: "tools" }, [step(-1, "Previous agent"), step(1, "Next agent")])])];
  parts.push(make("h1", { id: "agent-name", tabindex: -1 }, all.name[k]));
  const badges = [];
  if (gain.alone[k] !== null) badges.push(make("span", { class: `badge ${gain.alone[k] > 0 ? "good" : "bad"}` }, gain.alone[k] > 0 ? "gains against alone" : "loses against alone"), make("span", { class: `badge ${gain.one_model[k] > 0 ? "good" : "bad"}` }, gain.one_model[k] > 0 ? "gains against one model" : "loses against one model"));
  if (outlier[k]) badges.push(make("span", { class: "badge stand" }, "stands out"));
  if (isNumber(rows[k]) && rows[k] <= data.few) badges.push(make("span", { class: "badge" }, "few rows"));
  parts.push(make("div", { class: "badges" }, badges), make("p", { class: "lead" }, sentenceOf(k)));
  const over = make("canvas", { class: "over", "aria-hidden": "true" }), canvas = make("canvas", { class: "mini", role: "img", "aria-label": `Map of all agents: ${all.name[k]} and those nearest to it are named` });
  const near = nearOf(k);
  const left = make("section", { class: "panel" }, gain.alone[k] === null ? [make("h2", {}, "At a glance"), make("p", { class: "lead" }, measured ? "Errors were not measured for this agent." : "Errors were not measured."), make("dl", { class: "facts" }, factsOf(k).map(([name, value]) => make("div", {}, [make("dt", {}, name), make("dd", {}, value)])))] : [make("h2", {}, "Errors on held-out rows"), make("p", { class: "lead" }, `${data.measure.charAt(0).toUpperCase()}${data.measure.slice(1)}; smaller is better.`), make("div", { class: "chart" }, errorBars(k)), make("dl", { class: "facts" }, factsOf(k).map(([name, value]) => make("div", {}, [make("dt", {}, name), make("dd", {}, value)])))]);
  const right = make("section", { class: "panel" }, [make("h2", {}, data.map.kind === "graph" ? "Its neighbours" : NEARNESS[data.map.kind][1]), near.length ? make("ul", { class: "near" }, near.map(([other, by]) => make("li", {}, [linkTo(other), make("small", {}, `${NEARNESS[data.map.kind][2]} ${num(by, 3)}`)]))) : make("p", { class: "lead" }, "None."), make("div", { class: "stage mini-stage" }, [canvas, over])]);
  parts.push(make("div", { class: "pair" }, [left, right]));
  if (data.outputs.length > 1) parts.push(make("p", { class: "tools choice" }, [make("label", { for: "agent-output" }, "Class"), make("select", { id: "agent-output", on: { change: (event) => { chosenOutput = Number(event.target.value); showAgent(k); $("agent-output").focus(); } } }, data.outputs.map((output, o) => make("option", { value: o, selected: o === chosenOutput }, output.name)))]));
  for (const output of data.outputs.slice(chosenOutput, chosenOutput + 1)) {
    parts.push(coefficientTable(output, k));
    const curves = drawable(output).filter((feature) => feature.kind !== "line" || feature.x.length > 1);
    const bent = curves.filter((feature) => feature.kind !== "line"), some = (bent.length ? bent : curves).slice(0, 6);
    if (some.length) parts.push(make("section", { class: "panel" }, [make("h2", {}, `Its predictions along a feature${data.outputs.length > 1 ? `: class ${output.name}` : ""}`), make("p", { class: "lead" }, `The ${output.said} while one feature changes, and the others stay at their means.${careful(output)}${some.some((feature) => feature.band) ? ` Bands are ${Math.round(100 * data.coverage)} % intervals.` : ""}${some.some((feature) => feature.low) ? " Dotted where it has no rows." : ""}`), make("div", { class: "grid" }, some.map((feature) => make("figure", { class: "curve" }, [make("h4", {}, feature.name), curveChart(output, feature, [k], `${output.said} along ${feature.name}: common model and ${all.name[k]}`), make("figcaption", {}, make("span", { class: "legend" }, [make("span", {}, [sample(0, true), make("b", {}, "common")]), make("span", {}, [sample(1), make("b", {}, all.name[k])])]))])))]));
  }
  parts.push(make("section", { class: "panel" }, [make("h2", {}, "Does it stand out?"), data.tests ? make("p", { class: "lead" }, `q is the share of false discoveries at which the agent would be named: below ${data.threshold} it stands out.`) : null, testsTable(k)]));
  $("agent").replaceChildren(...parts.filter(Boolean));
  $("agent").hidden = false;
  small = new AgentMap(canvas, over, { mini: true, chosen: k });
  small.draw();
  if (!again) {
    window.scrollTo({ top: 0, behavior: "instant" });
    $("agent-name").focus({ preventScroll: true });
  }
  document.title = `${all.name[k]} · coterie report`;
}
let small = null, came = false;
function goBack() { if (came) history.back(); else location.hash = "#"; }
function showOverview() {
  const was = state.agent;
  state.agent = null;
  small = null;
  $("agent").hidden = true;
  $("agent").replaceChildren();
  $("overview").hidden = false;
  document.title = `${data.title} · coterie report`;
  if (was === null) return;
  repaint();
  const target = location.hash.length > 1 ? document.getElementById(location.hash.slice(1)) : null;
  if (target) target.scrollIntoView({ behavior: "instant" });
  else if (before) window.scrollTo({ top: before.scroll, behavior: "instant" });
  const row = $("table").querySelector(`tr[data-agent="${Number(before && before.focus)}"] a`);
  const focus = row || (before && before.focus && document.getElementById(before.focus)) || $("main");
  focus.focus({ preventScroll: true });
}
function follow() {
  const k = agentAt(location.hash);
  if (k !== null) { came = came || state.agent === null && started; showAgent(k); } else { if (state.agent !== null || $("overview").hidden) showOverview(); came = false; }
}

// -- search -----------------------------------------------------------------------------------------------------------

let offered = [], picked = -1;
function search(text) {
  const query = text.trim().toLowerCase();
  if (!query) return [];
  const begins = [], holds = [];
  for (let k = 0; k < N && begins.length < FOUND; k += 1) { const at = lower[k].indexOf(query); if (at === 0) begins.push(k); else if (at > 0 && holds.length < FOUND) holds.push(k); }
  return begins.concat(holds).slice(0, FOUND);
}
function offer() {
  const text = $("find").value;
  offered = search(text);
  picked = offered.length ? 0 : -1;
  const items = offered.map((k, i) => make("li", { id: `found-${i}`, role: "option", "aria-selected": String(i === picked), on: { pointerdown: (event) => { event.preventDefault(); pick(k); } } }, [make("span", {}, all.name[k]), isNumber(rows[k]) ? make("small", {}, plural(rows[k], "row")) : null]));
  if (text.trim() && !offered.length) items.push(make("li", { class: "nobody", role: "option", "aria-disabled": "true", "aria-selected": "false" }, "No agent has this in its name"));
  $("found").replaceChildren(...items);
  $("found").hidden = !items.length;
  $("find").setAttribute("aria-expanded", String(items.length > 0));
  mark();
}
function mark() {
  [...$("found").children].forEach((item, i) => item.setAttribute("aria-selected", String(i === picked)));
  if (picked >= 0) { $("find").setAttribute("aria-activedescendant", `found-${picked}`); $("found").children[picked].scrollIntoView({ block: "nearest", behavior: "instant" }); } else $("find").removeAttribute("aria-activedescendant");
}
function closeSearch() { $("found").hidden = true; $("found").replaceChildren(); $("find").setAttribute("aria-expanded", "false"); $("find").removeAttribute("aria-activedescendant"); offered = []; picked = -1; }
function pick(k) { $("find").value = ""; closeSearch(); open(k); }
function startSearch() {
  const find = $("find");
  find.addEventListener("input", offer);
  find.addEventListener("focus", () => { if (find.value) offer(); });
  find.addEventListener("blur", closeSearch);
  find.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") { event.preventDefault(); if (offered.length) { picked = (picked + (event.key === "ArrowDown" ? 1 : -1) + offered.length) % offered.length; mark(); } }
    else if (event.key === "Enter" && picked >= 0) { event.preventDefault(); pick(offered[picked]); }
    else if (event.key === "Escape") { event.stopPropagation(); if (find.value) find.value = ""; else find.blur(); closeSearch(); }
  });
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.key === "/" && !typing) { event.preventDefault(); find.focus(); }
    if (event.key === "Escape" && !typing && state.agent !== null) goBack();
  });
}

// -- all of it --------------------------------------------------------------------------------------------------------

function repaint() {
  readColours();
  if (state.agent !== null) { if (small) small.draw(); return; }
  if (measured) { drawScatter(); drawSorted(); }
  showMap();
}
let started = false;
function start() {
  try { const kept = localStorage.getItem("coterie-report-theme"); if (kept in THEMES) { state.theme = kept; if (kept !== "auto") document.documentElement.dataset.theme = kept; $("theme").textContent = THEMES[kept][0]; $("theme").setAttribute("aria-label", THEMES[kept][1]); } } catch { /* not where files may not */ }
  readColours();
  showWords();
  $("overview").hidden = false;
  startGains(); startMap(); startFeatures(); startTable(); startSearch();
  showGains(); showMap(); showFeatures(); showTable();
  $("theme").addEventListener("click", nextTheme);
  $("home").addEventListener("click", (event) => { event.preventDefault(); if (state.agent !== null) location.hash = "#"; window.scrollTo({ top: 0 }); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  let waiting = 0;
  window.addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => { repaint(); if (state.agent === null) showCurves(); }, 80); });
  window.addEventListener("hashchange", follow);
  window.addEventListener("beforeprint", repaint);
  window.addEventListener("afterprint", repaint);
  if (agentAt(location.hash) !== null) follow();
  started = true;
  document.documentElement.dataset.ready = "yes";
}
start();
