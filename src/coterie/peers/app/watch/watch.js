"use strict";
// The page of `coterie watch`: asks its server for new data every second, and shows them. It sends nothing.

const EVERY = 1000; // milliseconds between two requests
const ROWS = 100; // shown in the table at first
const LAYOUT = { milliseconds: 4000, iterations: 260, slice: 12, exact: 1500, sample: 300 };

const $ = (id) => document.getElementById(id);
const make = (tag, text, name) => {
  const one = document.createElement(tag);
  if (text !== undefined) one.textContent = text;
  if (name) one.className = name;
  return one;
};
const setText = (node, text) => { if (node.textContent !== text) node.textContent = text; };

const seen = {
  facts: { kind: "", state: "waiting" }, agents: [], places: new Map(), edges: [], edgesVersion: -1, shape: "",
  history: { generation: -1, times: [], together: [], alone: [], lines: null },
  chosen: null, detail: null, senders: [], rows: ROWS, lost: 0, picked: false,
};

// -- words ------------------------------------------------------------------------------------------------------------

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const digits = (value) => (isNumber(value) ? (Math.abs(value) >= 1000 || (value !== 0 && Math.abs(value) < 0.001) ? value.toPrecision(3) : value.toFixed(3)) : "–");
const count = (value) => (isNumber(value) ? value.toLocaleString("en") : "–");
const plural = (k, what) => `${count(k)} ${what}${k === 1 ? "" : "s"}`;
const lasting = (seconds) => {
  if (!isNumber(seconds)) return "–";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
};
const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");
const daysLeft = (row) => {
  if (isNumber(row.expires_days)) return row.expires_days;
  const moment = Date.parse(row.expires || "");
  return Number.isNaN(moment) ? null : Math.floor((moment - Date.now()) / 86400000);
};
const sum = (values) => { let total = 0, any = false; for (const value of values) if (isNumber(value)) { total += value; any = true; } return any ? total : null; };
const median = (values) => { const there = values.filter(isNumber).sort((a, b) => a - b); const k = there.length; return k ? (there[(k - 1) >> 1] + there[k >> 1]) / 2 : null; };
const scoreName = () => (seen.facts.score || {}).name || "score";
const better = (row) => {
  if (!isNumber(row.score) || !isNumber(row.alone)) return null;
  const gain = (seen.facts.score || {}).higher ? row.score - row.alone : row.alone - row.score;
  return gain >= -1e-9;
};
const groupWord = () => ({ peer: "member", relay: "peer", lab: "peer", simulation: "agent" })[seen.facts.kind] || "agent";
const theOne = () => seen.agents[seen.places.get(seen.chosen)];

// -- new data ------------------------------------------------------------------------------------------------------

async function ask(name, query = {}) {
  const answer = await fetch(`${name}?${new URLSearchParams(query)}`, { cache: "no-store", credentials: "omit" });
  if (!answer.ok) throw new Error(`${answer.status}`);
  return answer.json();
}

async function look() {
  try {
    const facts = await ask("state.json");
    const changed = facts.edges_version !== seen.edgesVersion;
    const edges = changed ? await ask("edges.json") : null;
    takeHistory(await ask("history.json", { generation: seen.history.generation, begin: seen.history.times.length }));
    takeState(facts, edges);
    const chosen = seen.chosen;
    const more = chosen ? await ask("agent.json", { name: chosen }) : await ask("senders.json");
    if (chosen === seen.chosen) {
      seen.detail = chosen ? more : null;
      seen.senders = more.senders;
    }
    seen.lost = 0;
  } catch (error) {
    seen.lost += 1;
  }
  show();
  window.setTimeout(look, document.hidden || seen.lost ? 3 * EVERY : EVERY);
}

function takeState(facts, edges) {
  seen.facts = facts;
  seen.agents = facts.agents;
  seen.places = new Map(facts.agents.map((row, k) => [row.name, k]));
  if (seen.chosen !== null && !seen.places.has(seen.chosen)) choose(null);
  if (!seen.picked && facts.me) choose(facts.me); // the page of a peer shows this peer first
  if (edges) {
    seen.edgesVersion = edges.version;
    seen.edges = edges.edges.filter(([a, b]) => a < facts.agents.length && b < facts.agents.length);
  }
  const shape = `${facts.agents.length}:${seen.edges.map(([a, b]) => `${a}-${b}`).join()}`;
  if (shape !== seen.shape) {
    seen.shape = shape;
    map.arrange();
    fillNames();
  }
  map.dirty();
}

function takeHistory(news) {
  const old = seen.history;
  const fresh = news.generation !== old.generation || news.begin !== old.times.length;
  const join = (name) => (fresh ? news[name] : old[name].concat(news[name]));
  let lines = null;
  if (news.lines) {
    lines = {};
    for (const [name, values] of Object.entries(news.lines)) {
      const before = fresh || !old.lines || !old.lines[name] ? new Array(news.begin).fill(null) : old.lines[name];
      lines[name] = (fresh ? [] : before).concat(values);
    }
  }
  seen.history = { generation: news.generation, times: join("times"), together: join("together"), alone: join("alone"), lines };
}

function choose(name) {
  seen.picked = true;
  if (name === seen.chosen) return;
  seen.chosen = name;
  seen.detail = null;
  $("find").value = name === null ? "" : name;
  $("everyone").hidden = name === null;
  map.dirty();
  show();
  if (name !== null) {
    ask("agent.json", { name }).then((found) => {
      if (seen.chosen !== name) return;
      seen.detail = found;
      seen.senders = found.senders;
      show();
    }, () => {});
  }
}

function fillNames() {
  $("names").replaceChildren(...seen.agents.slice(0, 2000).map((row) => { const one = make("option"); one.value = row.name; return one; }));
}

// -- all of it --------------------------------------------------------------------------------------------------------

function show() {
  const facts = seen.facts;
  const lost = seen.lost > 1;
  const words = { running: "running", stopped: "not running", stale: "no news", waiting: "waiting", missing: "nothing there", ended: "ended" };
  const state = lost ? "lost" : facts.state;
  setText($("state"), lost ? "watch ended" : words[state] || state);
  $("state").dataset.state = state;
  setText($("title"), facts.title || "coterie watch");
  document.title = `${facts.title || "watch"} · coterie`;
  const parts = [{ peer: "peer", relay: "relay", lab: "lab", simulation: "simulation" }[facts.kind]];
  if (facts.members) parts.push(plural(facts.members, groupWord()));
  if (facts.method) parts.push(facts.method);
  if (facts.run) parts.push(`run ${facts.run.slice(0, 8)}`);
  setText($("subtitle"), parts.filter(Boolean).join(" · "));
  $("subtitle").title = $("subtitle").textContent;
  setText($("updated"), isNumber(facts.age) ? `as of ${lasting(facts.age)} ago` : "");
  const message = lost ? "The command that serves this page has ended. Start it again with coterie watch, and use the address that it prints." : facts.message;
  setText($("message"), message || "");
  $("message").hidden = !message;
  $("message").dataset.state = state;
  showTiles();
  showAgents();
  showSenders();
  showEvents();
  showLegend();
  chart.draw();
}

function showTiles() {
  const { facts, agents } = seen;
  const one = theOne();
  const rows = one ? [one] : agents;
  const tiles = [];
  const add = (name, value, note, kind = "") => tiles.push({ name, value: String(value), note: note || "", kind });
  if (!agents.length) {
    $("tiles").replaceChildren();
    return;
  }
  if (one && one.name !== facts.me) add(groupWord(), one.name, one.state, "words");
  const score = one ? one.score : median(rows.map((row) => row.score));
  const alone = one ? one.alone : median(rows.map((row) => row.alone));
  if (facts.kind !== "relay") {
    const on = facts.kind === "peer" && one && one.name === facts.me ? facts.scored_on : "";
    const note = [one ? "" : "together", isNumber(alone) ? `${digits(alone)} alone` : "", on ? `on ${on}` : ""].filter(Boolean).join(", ");
    const lagging = isNumber(score) && isNumber(alone) && better({ score, alone }) === false;
    add(one ? `${scoreName()} together` : `median ${scoreName()}`, digits(score), note, lagging ? "warn" : "");
  }
  const served = rows.map((row) => row.served).filter(Boolean);
  if (one && one.served) add("model in use", one.served, one.served === "alone" ? "clearly better on its rows" : "", one.served === "alone" ? "warn words" : "words");
  else if (served.length) {
    const apart = served.filter((which) => which === "alone").length;
    const early = served.filter((which) => which === "own").length;
    add("models in use", `${served.length - apart - early} together`, apart ? `${apart} alone` : "none alone", apart ? "warn words" : "words");
  }
  if (!one || facts.kind === "relay") {
    const up = agents.filter((row) => row.alive).length;
    if (facts.kind !== "simulation") add(facts.kind === "lab" ? "up" : "in touch", count(up), `of ${count(facts.members || agents.length)}`, up < (facts.members || agents.length) && facts.kind === "lab" ? "warn" : "");
    if (facts.kind === "simulation") {
      const gain = agents.filter((row) => better(row)).length;
      add("no worse together", count(gain), `of ${count(agents.length)}`);
      add("rows recorded", count(facts.moments));
    }
  }
  if (one && !isNumber(one.linked) && isNumber(one.edges)) add("neighbours", count(one.edges));
  if (one && isNumber(one.linked)) add("neighbours", `${count(one.linked)} of ${count(one.edges)}`, "connected", one.linked < one.edges ? "warn" : "");
  if (!one && isNumber(facts.gap)) add("gap to optimum", facts.gap.toExponential(1), "relative");
  const incoming = sum(rows.map((row) => row.in));
  if (incoming !== null) add("messages in", count(incoming), `${count(sum(rows.map((row) => row.out)))} out`);
  const refused = sum(rows.map((row) => row.refused));
  if (refused !== null) add("messages refused", count(refused), refused ? reasons() : "");
  const moving = seen.senders.filter((row) => isNumber(row.influence) && row.influence > 0).sort((a, b) => b.influence - a.influence);
  if (one && moving.length) add("moves it most", moving[0].name, `${Math.round((100 * moving[0].influence) / sum(moving.map((row) => row.influence)))} % of all influence`, "words");
  const made = sum(rows.map((row) => row.releases)), left = sum(rows.map((row) => row.left));
  if (made !== null && left !== null) {
    const budget = isNumber(facts.epsilon) ? `epsilon ${facts.epsilon}` : "";
    add("releases", `${count(made)} of ${count(made + left)}`, [budget, left ? `${count(left)} left` : "all spent: it listens"].filter(Boolean).join(", "), left ? "" : "warn");
  }
  const days = rows.map(daysLeft).filter(isNumber);
  if (days.length) {
    const least = Math.min(...days);
    add("certificate", least < 0 ? "expired" : plural(least, "day"), least < 0 ? "have it renewed" : one ? "until it expires" : "the first to expire", least < 7 ? "bad" : least < 30 ? "warn" : "");
  }
  if (facts.kind !== "simulation") {
    const errors = one ? (one.name === facts.me ? facts.errors : one.errors) || [] : facts.errors || [];
    add("errors", errors.length ? errors[0] : "none", errors.slice(1).join(", "), errors.length ? "bad words" : "");
  }
  const box = $("tiles");
  while (box.children.length > tiles.length) box.lastChild.remove();
  tiles.forEach((tile, k) => {
    let at = box.children[k];
    if (!at) {
      at = make("dl", undefined, "tile");
      at.append(make("dt"), make("dd"), make("small"));
      box.append(at);
    }
    at.className = `tile ${tile.kind.replace("words", "")}`.trim();
    at.children[1].className = tile.kind.includes("words") ? "words" : "";
    [tile.name, tile.value, tile.note].forEach((text, i) => setText(at.children[i], text));
  });
}

function reasons() {
  const total = {};
  const own = seen.facts.kind === "peer" && seen.chosen === seen.facts.me ? seen.facts.refused : null;
  for (const found of own ? [own] : seen.senders.map((row) => row.refused || {})) for (const [why, k] of Object.entries(found)) total[why] = (total[why] || 0) + k;
  return Object.entries(total).sort((a, b) => b[1] - a[1]).slice(0, 3).map(([why, k]) => `${count(k)} ${why}`).join(", ");
}

function showEvents() {
  const list = [];
  for (const what of seen.facts.errors || []) list.push({ what, errors: true });
  list.push(...(seen.facts.events || []));
  if (seen.facts.why) list.push({ what: `Model in use: ${seen.agents[0].served}, ${seen.facts.why}.` });
  $("events-panel").hidden = seen.facts.kind === "simulation" || !seen.agents.length;
  if (!list.length) list.push({ what: "Nothing so far." });
  const text = JSON.stringify(list);
  if ($("events").dataset.text === text) return;
  $("events").dataset.text = text;
  $("events").replaceChildren(...list.map((event) => {
    const item = make("li");
    if (isNumber(event.at)) item.append(make("time", `${Math.round(event.at)} s`));
    item.append(make("span", event.what, event.errors ? "errors" : ""));
    return item;
  }));
}

// -- tables -----------------------------------------------------------------------------------------------------------

class Table {
  // Columns: {key, name, text: whether it is text, of: row -> value to sort by, show: row -> text, mark: row -> class}.
  constructor(id, sort, down) {
    this.table = $(id);
    this.head = this.table.tHead;
    this.body = this.table.tBodies[0];
    this.sort = sort;
    this.down = down;
    this.shape = "";
  }

  show(columns, rows, limit) {
    const shape = columns.map((column) => column.name).join("|");
    if (shape !== this.shape) {
      this.shape = shape;
      const line = make("tr");
      for (const column of columns) {
        const cell = make("th", undefined, column.text ? "text" : "");
        cell.scope = "col";
        const button = make("button", column.name);
        button.type = "button";
        button.addEventListener("click", () => {
          this.down = this.sort === column.key ? !this.down : !column.text;
          this.sort = column.key;
          show();
        });
        cell.append(button);
        line.append(cell);
      }
      this.head.replaceChildren(line);
      this.body.replaceChildren();
    }
    columns.forEach((column, k) => {
      const cell = this.head.rows[0].cells[k];
      if (column.key === this.sort) cell.setAttribute("aria-sort", this.down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    });
    const by = columns.find((column) => column.key === this.sort) || columns[0];
    const none = (value) => value === null || value === undefined || value === "";
    const order = new Intl.Collator("en", { numeric: true }).compare;
    const sorted = rows.map((row) => [by.of(row), row]).sort(([a, x], [b, y]) => {
      if (none(a) || none(b)) return none(a) - none(b) || order(x.name, y.name);
      const way = typeof a === "number" ? a - b : order(String(a), String(b));
      return (this.down ? -way : way) || order(x.name, y.name);
    }).slice(0, limit);
    while (this.body.rows.length > sorted.length) this.body.deleteRow(-1);
    sorted.forEach(([, row], k) => {
      let line = this.body.rows[k];
      if (!line) {
        line = this.body.insertRow();
        for (const column of columns) {
          const cell = line.insertCell();
          if (column.key === "name") {
            const button = make("button");
            button.type = "button";
            button.addEventListener("click", () => { if (seen.places.has(button.textContent)) choose(button.textContent === seen.chosen ? null : button.textContent); });
            cell.append(button);
          }
        }
      }
      const mine = row.name === seen.chosen;
      if (mine !== (line.getAttribute("aria-selected") === "true")) line.setAttribute("aria-selected", String(mine));
      columns.forEach((column, i) => {
        const cell = line.cells[i];
        const name = [column.text ? "text" : "", column.mark ? column.mark(row) : ""].filter(Boolean).join(" ");
        if (cell.className !== name) cell.className = name;
        setText(column.key === "name" ? cell.firstChild : cell, column.show(row));
      });
    });
  }
}

const agentsTable = new Table("agents", "name", false);
const sendersTable = new Table("senders", "refused", true);

const plain = (key, name, show = count) => ({ key, name, of: (row) => row[key], show: (row) => show(row[key]) });
const words = (key, name, mark) => ({ key, name, text: true, of: (row) => row[key], show: (row) => row[key] || "–", mark });
const AGENT_COLUMNS = [
  { key: "name", name: "name", text: true, of: (row) => row.name, show: (row) => row.name },
  words("state", "state", (row) => (["killed", "failed"].includes(row.state) ? "bad" : row.alive === false ? "warn" : "")),
  plain("score", "together", digits),
  { ...plain("alone", "alone", digits), mark: (row) => (better(row) === false ? "warn" : "") },
  words("served", "in use", (row) => (row.served === "alone" ? "warn" : "")),
  plain("wakes", "wakes"),
  plain("in", "in"),
  plain("out", "out"),
  plain("refused", "refused"),
  { key: "linked", name: "neighbours", of: (row) => (isNumber(row.linked) ? row.linked : row.edges), show: (row) => (isNumber(row.linked) ? `${count(row.linked)} of ${count(row.edges)}` : count(row.edges)) },
  { key: "left", name: "releases left", of: (row) => row.left, show: (row) => count(row.left) },
  { key: "expires", name: "certificate", of: daysLeft, show: (row) => (isNumber(daysLeft(row)) ? plural(daysLeft(row), "day") : "–"), mark: (row) => (isNumber(daysLeft(row)) && daysLeft(row) < 30 ? "bad" : "") },
  { key: "errors", name: "errors", text: true, of: (row) => (row.errors || []).join(", "), show: (row) => (row.errors || []).join(", ") || "–", mark: (row) => ((row.errors || []).length ? "bad" : "") },
  { key: "distance", name: "distance", of: (row) => row.distance, show: (row) => (isNumber(row.distance) ? row.distance.toExponential(1) : "–") },
  { key: "age", name: "told", of: (row) => row.age, show: (row) => (isNumber(row.age) ? (row.age < 1 ? "now" : `${lasting(row.age)} ago`) : "–") },
];

function showAgents() {
  const rows = seen.agents;
  const columns = AGENT_COLUMNS.filter((column) => column.key === "name" || rows.some((row) => { const value = column.of(row); return value !== null && value !== undefined && value !== ""; }));
  setText($("agents-heading"), { peer: "The group", relay: "Connected", lab: "Peers" }[seen.facts.kind] || "Agents");
  const told = rows.filter((row) => isNumber(row.age)).length;
  setText($("agents-note"), seen.facts.kind === "peer" && rows.length > 1 ? (told ? `${told} of ${rows.length} tell how they are doing` : "members that set share_health = true tell how they are doing") : "");
  agentsTable.show(columns, rows, seen.rows);
  const left = rows.length - seen.rows;
  $("more").hidden = left <= 0;
  setText($("more"), `Show ${Math.min(left, 500)} more of ${count(rows.length)}`);
  for (const id of ["map-panel", "chart-panel"]) $(id).hidden = !rows.length || (id === "chart-panel" && seen.facts.kind === "relay");
  agentsTable.table.closest(".panel").hidden = !rows.length;
}

function showSenders() {
  const rows = seen.senders.map((row) => ({ ...row, total: isNumber(row.messages) || row.refused ? sum(Object.values(row.refused || {})) || 0 : null }));
  $("senders-panel").hidden = seen.facts.kind === "simulation" || seen.facts.kind === "relay" || !seen.agents.length;
  const one = seen.chosen;
  const mine = seen.facts.kind === "lab" || one === seen.facts.me;
  setText($("senders-note"), !one ? "sums over all receivers" : mine ? `received by ${one}` : `only ${seen.facts.me} itself can be looked into`);
  const columns = [{ key: "name", name: "from", text: true, of: (row) => row.name, show: (row) => row.name }];
  if (one) {
    const since = (row) => (isNumber(row.heard) ? `${lasting(row.heard)} ago` : "never");
    columns.push({ key: "heard", name: "heard", of: (row) => row.heard, show: (row) => (row.muted ? "muted" : row.alive === false ? `away, ${since(row)}` : since(row)), mark: (row) => (row.alive === false ? "warn" : "") });
    columns.push(plain("weight", "weight", digits));
    if (rows.some((row) => isNumber(row.influence))) columns.push(plain("influence", "influence", digits));
  } else columns.push(plain("receivers", "receivers"));
  columns.push(plain("messages", "messages"));
  columns.push({ key: "refused", name: "refused", of: (row) => row.total, show: (row) => count(row.total), mark: (row) => (row.total ? "warn" : "") });
  const why = (row) => Object.entries(row.refused || {}).sort((a, b) => b[1] - a[1]).map(([what, k]) => `${count(k)} ${what}`).join(", ");
  if (rows.some((row) => row.total)) columns.push({ key: "why", name: "why", text: true, of: why, show: (row) => why(row) || "–" });
  sendersTable.show(columns, rows, 1000);
}

// -- canvases ---------------------------------------------------------------------------------------------------------

let colours = {};
function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["ink", "quiet", "line", "panel", "together", "alone", "errors", "none", "edge", "moves"]) colours[name] = style.getPropertyValue(`--${name}`).trim();
}

function sized(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas;
  const scale = Math.min(window.devicePixelRatio || 1, 2);
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = '12px system-ui, "Liberation Sans", sans-serif';
  return { pen, width, height };
}

function placeTip(tip, stage, x, y, text) {
  tip.hidden = false;
  setText(tip, text);
  const box = stage.getBoundingClientRect();
  const flip = x + tip.offsetWidth + 16 > box.width;
  tip.style.left = `${Math.max(0, flip ? x - tip.offsetWidth - 12 : x + 14)}px`;
  tip.style.top = `${Math.max(0, Math.min(box.height - tip.offsetHeight, y + 10))}px`;
}

// -- the map ----------------------------------------------------------------------------------------------------------

const KINDS = {
  better: { words: "no worse together", colour: "together" },
  worse: { words: "better alone", colour: "alone" },
  unknown: { words: "no score", colour: "none" },
  away: { words: "away", colour: "none" },
  errors: { words: "errors", colour: "errors" },
};

function kindOf(row) {
  if (row.alive === false) return "away";
  if ((row.errors || []).length) return "errors";
  const good = better(row);
  return good === null ? "unknown" : good ? "better" : "worse";
}

function trace(pen, kind, x, y, r) {
  // Shapes tell kinds apart where colours do not.
  if (kind === "worse") pen.rect(x - 0.88 * r, y - 0.88 * r, 1.76 * r, 1.76 * r);
  else if (kind === "errors") {
    pen.moveTo(x, y - 1.25 * r);
    pen.lineTo(x + 1.15 * r, y + 0.85 * r);
    pen.lineTo(x - 1.15 * r, y + 0.85 * r);
    pen.closePath();
  } else {
    pen.moveTo(x + r, y);
    pen.arc(x, y, r, 0, 2 * Math.PI);
  }
}

class EdgeMap {
  constructor(canvas, tip) {
    this.canvas = canvas;
    this.tip = tip;
    this.x = new Float64Array(0);
    this.y = new Float64Array(0);
    this.names = [];
    this.view = { x: 0, y: 0, k: 1 };
    this.moved = false; // moved by hand, so it is not fitted again
    this.hover = -1;
    this.waiting = false;
    this.layout = null;
    this.pointers = new Map();
    this.listen();
  }

  dirty() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }

  arrange() {
    // Agents that stay begin at their places; new ones on a spiral.
    const n = seen.agents.length, old = new Map(this.names.map((name, i) => [name, i]));
    const x = new Float64Array(n), y = new Float64Array(n);
    let kept = 0;
    const spread = Math.sqrt(n);
    seen.agents.forEach((row, k) => {
      const before = old.get(row.name);
      const angle = k * 2.399963, radius = 0.6 * spread * Math.sqrt((k + 0.5) / n);
      if (before === undefined) { x[k] = radius * Math.cos(angle); y[k] = radius * Math.sin(angle); }
      else { x[k] = this.x[before]; y[k] = this.y[before]; kept += 1; }
    });
    this.x = x;
    this.y = y;
    this.names = seen.agents.map((row) => row.name);
    this.hover = -1;
    this.neighbours = Array.from({ length: n }, () => []);
    seen.edges.forEach(([a, b], k) => { this.neighbours[a].push(k); this.neighbours[b].push(k); });
    const few = n <= 2;
    this.layout = { step: 0, until: few ? 0 : LAYOUT.iterations, heat: kept > n / 2 ? 0.15 : 1, spent: 0, seed: 7 };
    document.documentElement.dataset.layout = "busy";
    if (!this.running) { this.running = true; requestAnimationFrame(() => this.settle()); }
  }

  settle() {
    // Compute a part of the layout in every frame, so that the page stays usable, within a total time.
    const began = performance.now();
    const { layout } = this;
    while (layout.step < layout.until && layout.spent + performance.now() - began < LAYOUT.milliseconds && performance.now() - began < LAYOUT.slice) this.iterate();
    layout.spent += performance.now() - began;
    this.turn();
    if (!this.moved) this.fit();
    this.dirty();
    if (layout.step < layout.until && layout.spent < LAYOUT.milliseconds) requestAnimationFrame(() => this.settle());
    else {
      this.running = false;
      this.stretch();
      document.documentElement.dataset.layout = "done";
    }
  }

  iterate() {
    // Fruchterman and Reingold (1991): agents push each other away, edges pull, and all of it cools down.
    const { x, y, layout } = this, n = x.length;
    const dx = new Float64Array(n), dy = new Float64Array(n);
    const push = (i, j, by) => {
      let a = x[i] - x[j], b = y[i] - y[j], d = a * a + b * b;
      if (d < 1e-6) { a = 1e-3 * (i - j); b = 1e-3; d = a * a + b * b; }
      const f = by / d;
      dx[i] += a * f; dy[i] += b * f; dx[j] -= a * f; dy[j] -= b * f;
    };
    if (n <= LAYOUT.exact) for (let i = 0; i < n; i++) for (let j = i + 1; j < n; j++) push(i, j, 1);
    else {
      const by = n / LAYOUT.sample / 2;
      for (let i = 0; i < n; i++) for (let s = 0; s < LAYOUT.sample; s++) {
        layout.seed = (Math.imul(layout.seed, 1664525) + 1013904223) >>> 0;
        const j = layout.seed % n;
        if (j !== i) push(i, j, by);
      }
    }
    const mean = Math.max(1, (2 * seen.edges.length) / Math.max(1, n));
    for (const [i, j] of seen.edges) {
      const a = x[i] - x[j], b = y[i] - y[j], f = Math.sqrt(a * a + b * b) * Math.min(1, 3 / mean);
      dx[i] -= a * f; dy[i] -= b * f; dx[j] += a * f; dy[j] += b * f;
    }
    const hot = layout.heat * 0.12 * Math.sqrt(n) * (1 - layout.step / layout.until) ** 1.5 + 1e-3;
    for (let i = 0; i < n; i++) {
      const a = dx[i] - 0.3 * x[i] * Math.sqrt(mean), b = dy[i] - 0.3 * y[i] * Math.sqrt(mean), d = Math.hypot(a, b) || 1;
      const f = Math.min(d, hot) / d;
      x[i] += a * f;
      y[i] += b * f;
    }
    layout.step += 1;
  }

  turn() {
    // Turn the longest axis of the drawing to the horizontal, where there is more space.
    const { x, y } = this, n = x.length;
    let mx = 0, my = 0, xx = 0, yy = 0, xy = 0;
    for (let i = 0; i < n; i++) { mx += x[i] / n; my += y[i] / n; }
    for (let i = 0; i < n; i++) { const a = x[i] - mx, b = y[i] - my; xx += a * a; yy += b * b; xy += a * b; }
    const angle = 0.5 * Math.atan2(2 * xy, xx - yy), c = Math.cos(angle), s = Math.sin(angle);
    for (let i = 0; i < n; i++) { const a = x[i] - mx, b = y[i] - my; x[i] = c * a + s * b; y[i] = c * b - s * a; }
  }

  stretch() {
    // Stretch a long and narrow drawing up to twice its height, if there is space.
    const { clientWidth: width, clientHeight: height } = this.canvas, { x, y } = this;
    const across = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity) - values.reduce((a, b) => Math.min(a, b), Infinity);
    const by = Math.min(2.2, ((height / width) * across(x)) / Math.max(across(y), 1e-6));
    if (x.length > 2 && by > 1 && Number.isFinite(by)) for (let i = 0; i < y.length; i++) y[i] *= by;
    if (!this.moved) this.fit();
    this.dirty();
  }

  radius() {
    const n = this.x.length;
    const base = n <= 12 ? 11 : n <= 40 ? 8.5 : n <= 150 ? 6.5 : n <= 500 ? 4.5 : 3.4;
    return base * Math.min(2.4, Math.max(1, this.view.k / (this.fitted || this.view.k)) ** 0.5);
  }

  fit() {
    const { clientWidth: width, clientHeight: height } = this.canvas, n = this.x.length;
    if (!n || !width) return;
    let left = Infinity, right = -Infinity, top = Infinity, bottom = -Infinity;
    for (let i = 0; i < n; i++) {
      left = Math.min(left, this.x[i]); right = Math.max(right, this.x[i]);
      top = Math.min(top, this.y[i]); bottom = Math.max(bottom, this.y[i]);
    }
    const room = n <= 40 ? 46 : 22;
    const k = Math.min((width - 2 * room) / Math.max(right - left, 1e-3), (height - 2 * room) / Math.max(bottom - top, 1e-3), 170);
    this.view = { k, x: width / 2 - (k * (left + right)) / 2, y: height / 2 - (k * (top + bottom)) / 2 };
    this.fitted = k;
  }

  zoom(factor, x = this.canvas.clientWidth / 2, y = this.canvas.clientHeight / 2) {
    const { view } = this, base = this.fitted || view.k;
    const k = Math.min(base * 40, Math.max(base / 4, view.k * factor));
    view.x = x - ((x - view.x) * k) / view.k;
    view.y = y - ((y - view.y) * k) / view.k;
    view.k = k;
    this.moved = true;
    this.dirty();
  }

  at(x, y) {
    const { view } = this, reach = Math.max(10, this.radius() + 4);
    let best = -1, least = reach * reach;
    for (let i = 0; i < this.x.length; i++) {
      const a = this.x[i] * view.k + view.x - x, b = this.y[i] * view.k + view.y - y, d = a * a + b * b;
      if (d < least) { least = d; best = i; }
    }
    return best;
  }

  draw() {
    const began = performance.now();
    const { pen, width, height } = sized(this.canvas);
    const { view, x, y } = this, n = Math.min(x.length, seen.agents.length);
    const chosen = seen.places.has(seen.chosen) ? seen.places.get(seen.chosen) : -1;
    const focus = this.hover >= 0 ? this.hover : chosen;
    const px = new Float64Array(n), py = new Float64Array(n);
    for (let i = 0; i < n; i++) { px[i] = x[i] * view.k + view.x; py[i] = y[i] * view.k + view.y; }
    let heaviest = 1e-300, most = 1e-300;
    for (const [, , weight, , influence] of seen.edges) { heaviest = Math.max(heaviest, weight || 0); most = Math.max(most, influence || 0); }
    const many = seen.edges.length > 600;
    // Edges: one path for each style, dead or alive in four widths.
    const paths = new Map();
    seen.edges.forEach(([a, b, weight, alive, influence], k) => {
      if (a >= n || b >= n) return;
      const near = focus >= 0 && (a === focus || b === focus);
      const wide = Math.ceil((4 * (weight || 0)) / heaviest);
      const key = `${near ? 1 : 0}${alive === false ? 0 : 1}${wide}${near && influence ? Math.ceil((9 * influence) / most) : 0}`;
      if (!paths.has(key)) paths.set(key, []);
      paths.get(key).push(k);
    });
    for (const key of [...paths.keys()].sort()) {
      const [near, alive, wide, moves] = [...key].map(Number);
      pen.beginPath();
      for (const k of paths.get(key)) {
        const [a, b] = seen.edges[k];
        pen.moveTo(px[a], py[a]);
        pen.lineTo(px[b], py[b]);
      }
      pen.strokeStyle = moves ? colours.moves : near ? colours.together : colours.edge;
      pen.globalAlpha = near ? (moves ? 0.3 + 0.078 * moves : 0.85) : (many ? 0.4 : 0.55) * (focus >= 0 ? 0.6 : 1);
      pen.lineWidth = (many ? 0.5 : 0.8) + (many && !near ? 0.22 : 0.75) * wide * (near ? 1.1 : 1);
      pen.setLineDash(alive ? [] : [3, 5]);
      pen.stroke();
    }
    pen.setLineDash([]);
    pen.globalAlpha = 1;
    const r = this.radius();
    const groups = {};
    for (let i = 0; i < n; i++) (groups[kindOf(seen.agents[i])] ||= []).push(i);
    for (const [kind, some] of Object.entries(groups)) {
      pen.beginPath();
      for (const i of some) trace(pen, kind, px[i], py[i], r);
      pen.fillStyle = kind === "away" ? colours.panel : colours[KINDS[kind].colour];
      pen.fill();
      pen.lineWidth = kind === "away" ? 1.8 : n > 150 ? 0.4 : 1.2;
      pen.strokeStyle = kind === "away" ? colours.none : colours.panel;
      pen.stroke();
    }
    for (const i of new Set([chosen, this.hover])) {
      if (i < 0 || i >= n) continue;
      pen.beginPath();
      pen.arc(px[i], py[i], r + 4, 0, 2 * Math.PI);
      pen.strokeStyle = colours.ink;
      pen.lineWidth = 2.2;
      pen.stroke();
    }
    this.label(pen, px, py, r, n, focus, width, height);
    document.documentElement.dataset.draw = (performance.now() - began).toFixed(1);
  }

  label(pen, px, py, r, n, focus, width, height) {
    const inside = [];
    for (let i = 0; i < n; i++) if (px[i] > 0 && px[i] < width && py[i] > 0 && py[i] < height) inside.push(i);
    let named = inside.length <= 40 ? inside : [];
    if (focus >= 0 && focus < n && !named.length) named = [focus, ...this.neighbours[focus].slice(0, 24).map((k) => (seen.edges[k][0] === focus ? seen.edges[k][1] : seen.edges[k][0]))];
    pen.textAlign = "center";
    pen.lineWidth = 3;
    pen.lineJoin = "round";
    pen.strokeStyle = colours.panel;
    const taken = []; // places of names, so that names do not overlap
    for (const i of [...named].sort((a, b) => (b === focus) - (a === focus))) {
      if (i >= n) continue;
      const text = this.names[i].length > 22 ? `${this.names[i].slice(0, 21)}…` : this.names[i];
      const half = pen.measureText(text).width / 2 + 2;
      const cx = Math.min(Math.max(px[i], half), width - half), cy = py[i] + r + 14 > height - 3 ? py[i] - r - 6 : py[i] + r + 14;
      if (taken.some(([x, y, w]) => Math.abs(x - cx) < w + half && Math.abs(y - cy) < 13)) continue;
      taken.push([cx, cy, half]);
      pen.strokeText(text, cx, cy);
      pen.fillStyle = i === focus ? colours.ink : colours.quiet;
      pen.fillText(text, cx, cy);
    }
  }

  hoverAt(i, x, y) {
    if (i !== this.hover) { this.hover = i; this.dirty(); }
    if (i < 0) { this.tip.hidden = true; return; }
    const row = seen.agents[i];
    const lines = [[row.name, row.state].filter(Boolean).join(" · ")];
    if (isNumber(row.score)) lines.push(`${scoreName()} ${digits(row.score)} together${isNumber(row.alone) ? `, ${digits(row.alone)} alone` : ""}`);
    lines.push(plural(this.neighbours[i].length, "edge"));
    if ((row.errors || []).length) lines.push(`errors: ${row.errors.join(", ")}`);
    placeTip(this.tip, this.canvas.parentElement, x, y, lines.join("\n"));
  }

  listen() {
    const { canvas, pointers } = this;
    const place = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
    let pressed = null, gap = 0;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0016)), ...place(event));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      const [x, y] = place(event);
      pointers.set(event.pointerId, [x, y]);
      pressed = pointers.size === 1 ? [x, y] : null;
      gap = 0;
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = place(event);
      const before = pointers.get(event.pointerId);
      if (!before) { this.hoverAt(this.at(x, y), x, y); return; }
      pointers.set(event.pointerId, [x, y]);
      if (pointers.size === 2) {
        const [[ax, ay], [bx, by]] = [...pointers.values()];
        const now = Math.hypot(ax - bx, ay - by);
        if (gap) this.zoom(now / gap, (ax + bx) / 2, (ay + by) / 2);
        gap = now;
      } else if (!pressed || Math.hypot(x - pressed[0], y - pressed[1]) > 4) {
        pressed = null;
        this.view.x += x - before[0];
        this.view.y += y - before[1];
        this.moved = true;
        this.hoverAt(-1);
        this.dirty();
      }
    });
    const up = (event) => {
      pointers.delete(event.pointerId);
      if (event.type === "pointerup" && pressed) {
        const i = this.at(...place(event));
        choose(i < 0 || this.names[i] === seen.chosen ? null : this.names[i]);
      }
      pressed = null;
    };
    canvas.addEventListener("pointerup", up);
    canvas.addEventListener("pointercancel", up);
    canvas.addEventListener("pointerleave", () => this.hoverAt(-1));
    canvas.addEventListener("keydown", (event) => {
      const far = 40, ways = { ArrowLeft: [far, 0], ArrowRight: [-far, 0], ArrowUp: [0, far], ArrowDown: [0, -far] };
      if (ways[event.key]) { this.view.x += ways[event.key][0]; this.view.y += ways[event.key][1]; this.moved = true; this.dirty(); }
      else if (event.key === "+" || event.key === "=") this.zoom(1.25);
      else if (event.key === "-") this.zoom(0.8);
      else if (event.key === "0") this.refit();
      else return;
      event.preventDefault();
    });
  }

  refit() { this.moved = false; this.fit(); this.dirty(); }
}

// -- the chart --------------------------------------------------------------------------------------------------------

class Chart {
  constructor(canvas, tip) {
    this.canvas = canvas;
    this.tip = tip;
    this.cursor = null;
    canvas.addEventListener("pointermove", (event) => { this.cursor = event.clientX - canvas.getBoundingClientRect().left; this.draw(); });
    canvas.addEventListener("pointerleave", () => { this.cursor = null; this.tip.hidden = true; this.draw(); });
    canvas.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      event.preventDefault();
      this.cursor = (this.cursor === null ? canvas.clientWidth - 20 : this.cursor) + (event.key === "ArrowLeft" ? -12 : 12);
      this.draw();
    });
    canvas.addEventListener("blur", () => { this.cursor = null; this.tip.hidden = true; this.draw(); });
  }

  curves() {
    // Draw the bands of all agents, or the two lines of one agent.
    const { history, detail, chosen } = seen;
    if (chosen) return detail ? { times: detail.times, lines: [{ values: detail.alone, look: "alone", words: "alone" }, { values: detail.together, look: "together", words: "together" }] } : null;
    const part = (name, k) => history[name].map((row) => row[k]);
    const lines = [];
    if (history.lines) for (const values of Object.values(history.lines)) lines.push({ values, look: "thin" });
    lines.push({ values: part("alone", 2), look: "alone", words: "alone, median" }, { values: part("together", 2), look: "together", words: "together, median" });
    const bands = history.lines ? [] : [[part("together", 0), part("together", 4), "together", 0.13], [part("together", 1), part("together", 3), "together", 0.22]];
    return { times: history.times, lines, bands };
  }

  draw() {
    const { pen, width, height } = sized(this.canvas);
    const found = this.curves();
    const times = found ? found.times : [];
    const all = found ? [...found.lines.map((line) => line.values), ...(found.bands || []).flatMap(([low, high]) => [low, high])].flat().filter(isNumber) : [];
    const dated = seen.facts.kind !== "simulation";
    setText($("chart-heading"), `${scoreName()[0].toUpperCase()}${scoreName().slice(1)} together and alone`);
    setText($("chart-note"), seen.chosen ? seen.chosen : seen.history.lines ? "every line is an agent" : `bands: half and four fifths of ${count(seen.agents.length)}`);
    this.canvas.setAttribute("aria-label", this.summary(found));
    if (!all.length || !times.length) {
      pen.fillStyle = colours.quiet;
      pen.textAlign = "center";
      const one = theOne();
      const why = seen.chosen && one && one.age === undefined && seen.facts.kind === "peer" && one.name !== seen.facts.me ? "this member does not tell how it is doing" : "no scores yet";
      pen.fillText(why, width / 2, height / 2);
      this.tip.hidden = true;
      return;
    }
    let low = all.reduce((a, b) => Math.min(a, b)), high = all.reduce((a, b) => Math.max(a, b));
    const pad = Math.max(0.08 * (high - low), 0.02 * Math.max(Math.abs(high), 1e-3));
    const share = scoreName() === "accuracy" && low >= 0 && high <= 1;
    low = share ? Math.max(0, low - pad) : low - pad;
    high = share ? Math.min(1, high + pad) : high + pad;
    const ticks = nice(low, high, Math.max(3, Math.floor(height / 44)));
    const left = 12 + Math.max(...ticks.map((value) => pen.measureText(label(value, ticks)).width)), right = width - 12, top = 8, bottom = height - 24;
    const first = times[0], last = Math.max(times[times.length - 1], first + (dated ? 10 : 1));
    const X = (time) => left + ((right - left) * (time - first)) / (last - first);
    const Y = (value) => bottom - ((bottom - top) * (value - low)) / (high - low);
    pen.lineWidth = 1;
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    for (const value of ticks) {
      pen.strokeStyle = colours.line;
      pen.beginPath();
      pen.moveTo(left, Y(value));
      pen.lineTo(right, Y(value));
      pen.stroke();
      pen.fillStyle = colours.quiet;
      pen.fillText(label(value, ticks), left - 6, Y(value));
    }
    pen.textBaseline = "alphabetic";
    const marks = dated ? spaced(first, last, Math.max(2, Math.floor((right - left) / 90))) : nice(first, last, Math.max(2, Math.floor((right - left) / 80))).filter((value) => value >= first);
    for (const time of marks) {
      const x = X(time);
      if (x > right + 1) continue;
      const text = dated ? clock(time) : count(Math.round(time));
      pen.textAlign = x + pen.measureText(text).width / 2 > right ? "right" : "center";
      pen.fillText(text, Math.min(x, right), height - 6);
    }
    for (const [below, above, name, alpha] of found.bands || []) {
      pen.beginPath();
      let started = false;
      times.forEach((time, k) => { if (isNumber(above[k])) { started ? pen.lineTo(X(time), Y(above[k])) : pen.moveTo(X(time), Y(above[k])); started = true; } });
      for (let k = times.length - 1; k >= 0; k--) if (isNumber(below[k])) pen.lineTo(X(times[k]), Y(below[k]));
      pen.closePath();
      pen.globalAlpha = alpha;
      pen.fillStyle = colours[name];
      pen.fill();
    }
    for (const line of found.lines) {
      const thin = line.look === "thin";
      pen.globalAlpha = thin ? 0.35 : 1;
      pen.strokeStyle = thin ? colours.together : colours[line.look];
      pen.lineWidth = thin ? 1 : 2.2;
      pen.setLineDash(line.look === "alone" ? [6, 4] : []);
      pen.beginPath();
      let started = false, point = null, points = 0;
      times.forEach((time, k) => {
        if (!isNumber(line.values[k])) return;
        point = [X(time), Y(line.values[k])];
        started ? pen.lineTo(...point) : pen.moveTo(...point);
        started = true;
        points += 1;
      });
      pen.stroke();
      if (points === 1 && !thin) { pen.beginPath(); pen.arc(...point, 3, 0, 2 * Math.PI); pen.fillStyle = colours[line.look]; pen.fill(); }
    }
    pen.globalAlpha = 1;
    pen.setLineDash([]);
    this.point(pen, found, X, left, right, top, bottom, dated);
  }

  point(pen, found, X, left, right, top, bottom, dated) {
    if (this.cursor === null) return;
    const at = Math.min(right, Math.max(left, this.cursor));
    let best = 0;
    found.times.forEach((time, k) => { if (Math.abs(X(time) - at) < Math.abs(X(found.times[best]) - at)) best = k; });
    const x = X(found.times[best]);
    pen.strokeStyle = colours.quiet;
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(x, top);
    pen.lineTo(x, bottom);
    pen.stroke();
    const lines = [dated ? clock(found.times[best]) : `row ${count(found.times[best])}`];
    for (const line of found.lines) if (line.words) lines.push(`${line.words}  ${digits(line.values[best])}`);
    placeTip(this.tip, this.canvas.parentElement, x, top + 10, lines.join("\n"));
  }

  summary(found) {
    const latest = (look) => { const line = found && found.lines.find((one) => one.look === look); const there = line ? line.values.filter(isNumber) : []; return there.length ? digits(there[there.length - 1]) : "unknown"; };
    return `${scoreName()} over time${seen.chosen ? ` of ${seen.chosen}` : ""}: now ${latest("together")} together, ${latest("alone")} alone`;
  }
}

function nice(low, high, wanted) {
  const rough = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((value) => value >= rough);
  const found = [];
  for (let k = Math.ceil(low / step); k * step <= high; k++) found.push(k * step);
  return found;
}

function label(value, ticks) {
  const step = ticks.length > 1 ? ticks[1] - ticks[0] : Math.abs(value) || 1;
  return Math.abs(value) >= 1e5 ? value.toExponential(1) : value.toFixed(Math.min(8, Math.max(0, -Math.floor(Math.log10(step) + 1e-9))));
}

function spaced(first, last, wanted) {
  const step = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400].find((value) => (last - first) / value <= wanted) || (last - first) / wanted;
  const found = [];
  for (let k = Math.ceil(first / step); k * step <= last; k++) found.push(k * step);
  return found;
}

// -- legends ----------------------------------------------------------------------------------------------------------

function legend(list, items) {
  const key = JSON.stringify(items.map((item) => item.words)) + JSON.stringify(colours);
  if (list.dataset.key === key) return;
  list.dataset.key = key;
  list.replaceChildren(...items.map((item) => {
    const line = make("li"), canvas = make("canvas");
    canvas.width = 52;
    canvas.height = 28;
    canvas.setAttribute("aria-hidden", "true");
    const pen = canvas.getContext("2d");
    pen.scale(2, 2);
    item.draw(pen);
    line.append(canvas, make("span", item.words));
    return line;
  }));
}

const stroke = (colour, wide, dash = []) => (pen) => {
  pen.strokeStyle = colours[colour];
  pen.lineWidth = wide;
  pen.setLineDash(dash);
  pen.beginPath();
  pen.moveTo(1, 7);
  pen.lineTo(25, 7);
  pen.stroke();
};

function showLegend() {
  const there = new Set(seen.agents.map(kindOf));
  const items = Object.entries(KINDS).filter(([kind]) => there.has(kind)).map(([kind, { words, colour }]) => ({
    words,
    draw: (pen) => {
      pen.beginPath();
      trace(pen, kind, 13, 7.4, 5);
      if (kind === "away") { pen.strokeStyle = colours.none; pen.lineWidth = 1.8; pen.stroke(); } else { pen.fillStyle = colours[colour]; pen.fill(); }
    },
  }));
  if (seen.edges.length) items.push({ words: "edge: wider is heavier", draw: stroke("edge", 2.5) });
  if (seen.edges.some((edge) => edge[3] === false)) items.push({ words: "not connected", draw: stroke("edge", 1.5, [3, 4]) });
  if (seen.edges.some((edge) => isNumber(edge[4]))) items.push({ words: "moves the chosen one's model", draw: stroke("moves", 3) });
  legend($("map-legend"), items);
  legend($("chart-legend"), [{ words: "together", draw: stroke("together", 2.4) }, { words: "alone", draw: stroke("alone", 2.4, [6, 4]) }]);
  const away = seen.agents.filter((row) => row.alive === false).length;
  $("map").setAttribute("aria-label", `Map of ${plural(seen.agents.length, groupWord())} and ${plural(seen.edges.length, "edge")}; ${away} away. Arrow keys move it, plus and minus zoom. The table below holds the same.`);
}

// -- begin ------------------------------------------------------------------------------------------------------------

readColours();
const map = new EdgeMap($("map"), $("map-tip"));
const chart = new Chart($("chart"), $("chart-tip"));
$("zoom-in").addEventListener("click", () => map.zoom(1.4));
$("zoom-out").addEventListener("click", () => map.zoom(1 / 1.4));
$("fit").addEventListener("click", () => map.refit());
$("everyone").addEventListener("click", () => choose(null));
$("more").addEventListener("click", () => { seen.rows += 500; show(); });
$("find").addEventListener("change", () => {
  const name = $("find").value.trim();
  if (!name) choose(null);
  else if (seen.places.has(name)) choose(name);
  else {
    const like = seen.agents.find((row) => row.name.toLowerCase().startsWith(name.toLowerCase()));
    choose(like ? like.name : seen.chosen);
    $("find").value = seen.chosen || "";
  }
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && event.target !== $("find")) choose(null); });
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); map.dirty(); show(); });
new ResizeObserver(() => { if (!map.moved) map.fit(); map.draw(); chart.draw(); }).observe($("map").parentElement);
look();
