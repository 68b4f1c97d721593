// The live board: a socket brings a snapshot each second; without one the page asks for it.
// Everything is written as text: names are strangers' words.

const root = document.getElementById("live-board");
const stateLine = document.getElementById("live-state");
const POLL_MS = 2000;
const STALE_MS = 5000;
const FIRST_RETRY_MS = 2000;
const LONGEST_RETRY_MS = 60000;
const KEPT = 300; // points of the charts: five minutes
const LOGGED_OUT = 4401;
const FORBIDDEN = 4403;

const TONES = {
  good: ["up", "active", "alive", "closed"],
  info: ["recovered", "addresses"],
  warn: ["suspended", "suspect", "draining", "half_open", "unknown", "noticed"],
  bad: ["lost", "down", "missed", "open"],
};
const toneOf = {};
for (const [tone, words] of Object.entries(TONES)) for (const word of words) toneOf[word] = tone;

// Words and numbers

const inWords = (stored) => (stored || "-").replaceAll("_", " ");
const figure = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en"));
const share = (part) => (part === null || part === undefined ? "–" : `${Math.round(part * 100)}%`);

function ago(seconds) {
  if (seconds === null) return "never";
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= size * 2) return `${Math.floor(seconds / size)} ${unit} ago`;
  }
  return seconds >= 1 ? `${Math.floor(seconds)} s ago` : "now";
}

function formatter(options) {
  const all = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23", ...options };
  try {
    return new Intl.DateTimeFormat("sv-SE", { ...all, timeZone: root.dataset.zone });
  } catch {
    return new Intl.DateTimeFormat("sv-SE", { ...all, timeZone: "UTC" }); // a zone of our database only
  }
}
const clock = formatter({});
const dayAndClock = formatter({ year: "numeric", month: "2-digit", day: "2-digit" });

// Cells: each writes itself into its element, and only if it has changed

function text(value, className = "") {
  return { key: String(value), className, write: (cell) => { cell.textContent = value; } };
}

function number(value) {
  return text(value, "unbroken-number");
}

function name(value, className = "") {
  return {
    key: String(value), className,
    write: (cell) => {
      const bdi = document.createElement("bdi");
      bdi.textContent = value;
      cell.replaceChildren(bdi);
    },
  };
}

function badges(words, note = "") {
  const shown = words.filter(Boolean);
  return {
    key: JSON.stringify([shown, note]), className: "",
    write: (cell) => {
      cell.replaceChildren(...shown.flatMap((word) => {
        const badge = document.createElement("span");
        badge.className = `unbroken-badge is-${toneOf[word] || "quiet"}`;
        badge.textContent = inWords(word);
        return [badge, " "];
      }));
      if (note) {
        const reason = document.createElement("bdi");
        reason.className = "live-reason";
        reason.textContent = note;
        cell.append(reason);
      }
    },
  };
}

function link(kind, id, words, className = "") {
  const pattern = root.dataset[`${kind}Url`];
  if (!pattern) return { ...name(words, className), isHeader: true };
  return {
    key: `${id} ${words}`, className, isHeader: true,
    write: (cell) => {
      const anchor = document.createElement("a");
      anchor.href = pattern.replace("/0/", `/${encodeURIComponent(id)}/`);
      const bdi = document.createElement("bdi");
      bdi.textContent = words;
      anchor.append(bdi);
      cell.replaceChildren(anchor);
    },
  };
}

// Tables: rows are kept by their ids, so that the keyboard's focus stays where it is

function fill(table, rows, nothing) {
  const body = root.querySelector(`[data-rows=${table}]`);
  if (!body || !rows) return;
  if (!body.kept) {
    body.kept = new Map();
    body.replaceChildren();
  }
  const wanted = new Set(rows.map(({ id }) => String(id)));
  for (const [id, row] of body.kept) {
    if (!wanted.has(id)) {
      row.remove();
      body.kept.delete(id);
    }
  }
  body.querySelector(".nothing")?.parentElement.remove();
  if (!rows.length) {
    const row = body.insertRow();
    const cell = row.insertCell();
    cell.className = "nothing";
    cell.colSpan = body.parentElement.tHead.rows[0].cells.length;
    cell.textContent = nothing;
    return;
  }
  rows.forEach(({ id, cells }, at) => {
    let row = body.kept.get(String(id));
    if (!row) {
      row = document.createElement("tr");
      for (const { isHeader } of cells) {
        const cell = document.createElement(isHeader ? "th" : "td");
        if (isHeader) cell.scope = "row";
        row.append(cell);
      }
      body.kept.set(String(id), row);
    }
    if (body.rows[at] !== row) body.insertBefore(row, body.rows[at] || null);
    cells.forEach((wantedCell, column) => {
      const cell = row.cells[column];
      if (cell.shownKey === wantedCell.key) return;
      cell.shownKey = wantedCell.key;
      cell.className = wantedCell.className;
      wantedCell.write(cell);
    });
  });
}

function put(what, value) {
  const place = root.querySelector(`[data-figure="${what}"]`);
  if (place && place.textContent !== value) place.textContent = value;
}

function show(board) {
  const { streams, failovers, interrupted, limited } = board;
  for (const state of ["starting", "streaming", "recovering", "suspended"]) put(state, figure(streams[state]));
  put("readers", figure(board.readers));
  put("tokens", figure(board.tokens_per_second === null ? null : Math.round(board.tokens_per_second)));
  put("failovers-minute", figure(failovers.minute));
  put("failovers-hour", figure(failovers.hour));
  const { recovered, suspended, lost } = interrupted.hour;
  put("interrupted", figure(recovered + suspended + lost));
  put("interrupted-hour", `${figure(recovered)} recovered, ${figure(suspended)} suspended, ${figure(lost)} lost`);

  fill("nodes", board.nodes?.map((node) => ({
    id: node.id,
    cells: [
      link("node", node.id, node.name), badges([node.state], node.reason), badges([node.circuit]),
      number(figure(node.streams)), number(figure(node.running)), number(figure(node.waiting)),
      number(share(node.kv_usage)), number(share(node.fragmentation)), number(ago(node.age)),
    ],
  })), "There are no nodes.");
  fill("newest", board.newest.map((one) => ({
    id: one.id,
    cells: [
      text(dayAndClock.format(new Date(one.at)), "together"),
      link("session", one.id, one.reference, "unbroken-id"),
      badges([one.outcome, one.noticed && "noticed"]), text(one.cause),
      ...(limited ? [] : [name(one.node)]), name(one.tenant), name(one.model),
    ],
  })), "None in the last day.");
  fill("incidents", board.incidents.map((one) => ({
    id: one.id,
    cells: [
      text(dayAndClock.format(new Date(one.opened)), "together"),
      link("incident", one.id, inWords(one.kind)),
      ...(limited ? [] : [name(one.subject)]), text(one.cause),
    ],
  })), "None is open.");
  root.querySelector("[data-more-incidents]").hidden = !board.more_incidents;
  fill("gateways", board.gateways?.map((one) => ({
    id: one.id,
    cells: [
      { ...name(one.name), isHeader: true }, badges([one.state]), number(figure(one.streams)), number(figure(one.readers)),
      number(figure(one.tokens_per_second)), number(ago(one.age)),
    ],
  })), "None is alive.");
}

// Charts, of what this page has seen

const kept = restored();

function restored() {
  try {
    const points = JSON.parse(sessionStorage.getItem("live-board") || "[]");
    const since = Date.now() - KEPT * 1000;
    return Array.isArray(points) ? points.filter((point) => point.at > since && point.zone === root.dataset.zone) : [];
  } catch {
    return [];
  }
}

function chart(board) {
  const { streams } = board;
  kept.push({
    at: Date.now(), zone: root.dataset.zone, tokens: board.tokens_per_second,
    streams: streams.starting + streams.streaming + streams.recovering,
  });
  kept.splice(0, kept.length - KEPT);
  try {
    sessionStorage.setItem("live-board", JSON.stringify(kept));
  } catch {
    // Full or forbidden: the charts begin anew with the next page.
  }
  root.querySelector(".live-charts").hidden = kept.length < 2;
  draw("tokens");
  draw("streams");
}

function draw(what) {
  const svg = root.querySelector(`[data-chart=${what}]`);
  const points = kept.filter((point) => typeof point[what] === "number");
  const last = kept.at(-1).at;
  const most = Math.max(0, ...points.map((point) => point[what]));
  const places = points.map((point) => {
    const x = 300 - ((last - point.at) / (KEPT * 1000)) * 300;
    return `${x.toFixed(1)},${(46 - (point[what] / (most || 1)) * 44).toFixed(1)}`;
  });
  let line = svg.querySelector("polyline");
  if (!line) {
    line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
    svg.append(line);
  }
  line.setAttribute("points", places.join(" "));
  // They begin when somebody looks: nothing is known of the time before.
  const seconds = Math.round((last - kept[0].at) / 1000);
  root.querySelector(`[data-range=${what}]`).textContent = `(at most ${figure(Math.round(most))} in these ${figure(seconds)} s)`;
}

// Where the figures come from

let madeAt = 0; // when the newest figures were read, by this clock
let newestAt = ""; // and by the server's
let way = "none";
let retryMs = FIRST_RETRY_MS;
let stopped = "";
let isPolling = false;
let polls = 0;

function take(board) {
  if (board.at !== newestAt) {
    newestAt = board.at;
    madeAt = performance.now();
    chart(board);
  }
  show(board);
  tell();
}

function tell() {
  const age = performance.now() - madeAt;
  const isStale = madeAt === 0 || age > STALE_MS;
  root.classList.toggle("live-stale", isStale);
  stateLine.classList.toggle("is-bad", isStale || stopped !== "");
  stateLine.classList.toggle("is-good", !isStale && stopped === "");
  const source = { socket: "Live, by WebSocket.", poll: "Polling: there is no WebSocket.", none: "Connecting…" }[way];
  const said = stopped || (isStale ? `Stale: these figures are ${Math.floor(age / 1000)} s old. ${source}` : source);
  // Once a change, not once a second: it is read out.
  const key = stopped || `${way} ${isStale}`;
  if (stateLine.dataset.key !== key) {
    stateLine.dataset.key = key;
    stateLine.replaceChildren(said);
    if (stopped) {
      const anchor = document.createElement("a");
      anchor.href = root.dataset.login;
      anchor.textContent = "Log in";
      stateLine.append(" ", anchor);
    }
  }
  ageLine.textContent = madeAt === 0 ? "" : `Figures of ${clock.format(new Date(newestAt))}, ${age < 1500 ? "now" : ago(age / 1000)}.`;
}

function stop(words) {
  stopped = words;
  way = "none";
  stopPolling();
  tell();
}

function connect() {
  if (stopped) return;
  const url = new URL(root.dataset.socket, location.href);
  url.protocol = url.protocol.replace("http", "ws");
  let socket;
  try {
    socket = new WebSocket(url);
  } catch {
    later();
    return;
  }
  let heard = performance.now();
  // A socket that is open and silent (a proxy that swallows frames, a frozen process) is none.
  const watch = setInterval(() => {
    if (performance.now() - heard > 2 * STALE_MS) socket.close();
  }, 1000);
  socket.addEventListener("message", ({ data }) => {
    heard = performance.now();
    way = "socket";
    retryMs = FIRST_RETRY_MS;
    stopPolling();
    take(JSON.parse(data));
  });
  socket.addEventListener("close", ({ code }) => {
    clearInterval(watch);
    if (code === LOGGED_OUT) stop("You are logged out.");
    else if (code === FORBIDDEN) stop("You may no longer see the live board.");
    else later();
  });
}

function later() {
  if (stopped) return;
  if (!isPolling) {
    isPolling = true;
    poll(++polls);
  }
  setTimeout(connect, retryMs * (0.75 + Math.random() / 2));
  retryMs = Math.min(retryMs * 2, LONGEST_RETRY_MS);
}

function stopPolling() {
  isPolling = false;
  polls += 1;
}

// ``mine``: the number of this polling; once it is not the current one any more it ends.
async function poll(mine) {
  try {
    const answer = await fetch(root.dataset.poll, {
      redirect: "manual", cache: "no-store", signal: AbortSignal.timeout(2 * STALE_MS),
    });
    const board = answer.ok ? await answer.json() : null;
    if (mine !== polls) return;
    if (answer.type === "opaqueredirect") stop("You are logged out.");
    else if (answer.status === 403) stop("You may no longer see the live board.");
    else if (board) {
      way = "poll";
      take(board);
    }
  } catch {
    // No answer: the age of the figures says so, and the next try comes.
  }
  if (mine === polls) setTimeout(poll, document.hidden ? 5 * POLL_MS : POLL_MS, mine);
}

const ageLine = document.createElement("p");
ageLine.className = "live-age";
stateLine.after(ageLine);
take(JSON.parse(document.getElementById("live-first").textContent));
setInterval(tell, 1000);
connect();
