// The charts of the runtime: one event stream, {at, protocol, memory: {held, limit, accounts}, protocols: [[name, tls, count]], workers: [{name, turns, fibers, connections, requests, latency}]}.
// Counts are since the start of the server; the page makes rates of them. Bucket i of the latency holds requests that took
// at most 2^(i+10) nanoseconds to answer.

const WINDOW = 30_000; // ms that a chart shows
const DELAY = 700; // ms that it lags, so that a new point slides in from the right
const RECENT = 5_000; // ms that the histogram sums up
const FIRST_BUCKET = 10;
const COLOURS = { requests: "--leaf", turns: "--water", fibers: "--bark", connections: "--plum", latency: "--leaf" };

const byId = (id) => document.getElementById(id);
const still = matchMedia("(prefers-reduced-motion: reduce)");
const dark = matchMedia("(prefers-color-scheme: dark)");
const workers = new Map();
let clock = null; // server time less ours
let colours = {};
let events;
let timer;

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
function short(value) {
  if (value >= 999_500) return `${(value / 1e6).toFixed(value < 1e7 ? 1 : 0)} M`;
  if (value >= 99_950) return `${(value / 1e3).toFixed(0)} k`;
  if (value > 0 && value < 9.95 && !Number.isInteger(value)) return value.toFixed(1);
  return whole.format(value);
}
function span(nanos) {
  if (nanos < 1e3) return `${nanos} ns`;
  if (nanos < 1e6) return `${Math.round(nanos / 1e3)} µs`;
  if (nanos < 1e9) return `${Math.round(nanos / 1e6)} ms`;
  return `${Math.round(nanos / 1e9)} s`;
}
const bound = (bucket) => 2 ** (bucket + FIRST_BUCKET);

function quantile(counts, share) {
  const all = counts.reduce((sum, count) => sum + count, 0);
  if (!all) return null;
  let sum = 0;
  return bound(counts.findIndex((count) => (sum += count) >= all * share));
}

// --- Drawing -------------------------------------------------------------------------------------------------------------

function readColours() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  colours = { line: of("--line"), soft: of("--soft") };
  for (const [key, name] of Object.entries(COLOURS)) colours[key] = of(name);
}

function surface(canvas) {
  const ratio = devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "11px system-ui, sans-serif";
  pen.lineJoin = "round";
  return { pen, width, height };
}

function ceiling(value) {
  if (value <= 4) return 4;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((step) => step * power >= value) * power;
}

const towards = (from, to) => (still.matches || from === undefined ? to : from + (to - from) * 0.2);

function drawLine(chart, samples, now) {
  const { pen, width, height } = surface(chart.canvas);
  const most = samples.reduce((most, sample) => Math.max(most, sample[chart.key]), 0);
  chart.top = towards(chart.top, ceiling(most));
  const x = (at) => width - ((now - at) / WINDOW) * width;
  const y = (value) => height - 1.5 - (value / chart.top) * (height - 17); // below the label
  pen.lineWidth = 1;
  pen.strokeStyle = colours.line;
  pen.beginPath();
  for (let at = Math.ceil((now - WINDOW) / 5000) * 5000; at < now; at += 5000) {
    pen.moveTo(x(at), 0);
    pen.lineTo(x(at), height);
  }
  pen.moveTo(0, height - 0.5);
  pen.lineTo(width, height - 0.5);
  pen.stroke();
  if (samples.length > 1) {
    pen.beginPath();
    for (const sample of samples) pen.lineTo(x(sample.at), y(sample[chart.key]));
    pen.strokeStyle = pen.fillStyle = colours[chart.key];
    pen.lineWidth = 1.75;
    pen.stroke();
    pen.lineTo(x(samples.at(-1).at), height);
    pen.lineTo(x(samples[0].at), height);
    pen.globalAlpha = 0.14;
    pen.fill();
    pen.globalAlpha = 1;
  }
  pen.fillStyle = colours.soft;
  pen.textBaseline = "top";
  pen.fillText(short(ceiling(most)), 0, 1);
}

function drawBars(chart, counts) {
  const { pen, width, height } = surface(chart.canvas);
  const floor = height - 16;
  const step = width / counts.length;
  const most = Math.max(1, ...counts);
  chart.bars = counts.map((count, i) => towards(chart.bars?.[i], Math.log1p(count) / Math.log1p(most)));
  pen.fillStyle = colours.latency;
  chart.bars.forEach((share, i) => {
    const tall = counts[i] ? Math.max(2, share * (floor - 3)) : share * (floor - 3);
    pen.fillRect(i * step + 1.5, floor - tall, Math.max(1, step - 3), tall);
  });
  pen.fillStyle = colours.line;
  pen.fillRect(0, floor, width, 1);
  pen.fillStyle = colours.soft;
  pen.textBaseline = "bottom";
  pen.textAlign = "center";
  for (let i = 0; i < counts.length - 1; i += width < 420 ? 10 : 5) {
    const at = (i + 1) * step; // a bound lies between two bars
    pen.fillRect(at - 0.5, floor, 1, 4);
    pen.fillText(span(bound(i)), Math.max(14, at), height);
  }
  pen.textAlign = "start";
}

function draw() {
  if (clock === null) return;
  const now = performance.now() + clock - (still.matches ? 0 : DELAY);
  for (const worker of workers.values()) {
    // The last point that has left on the left is kept, so that the line goes on to the edge.
    for (const chart of worker.charts) {
      if (chart.key === "latency") drawBars(chart, worker.recent);
      else drawLine(chart, worker.samples, now);
    }
  }
}

function frame() {
  if (!still.matches) draw();
  requestAnimationFrame(frame);
}

// --- Numbers -------------------------------------------------------------------------------------------------------------

function card(name) {
  const part = byId("worker").content.cloneNode(true);
  const section = part.querySelector("section");
  section.dataset.worker = name;
  part.querySelector("h2").textContent = `Worker ${name}`;
  const charts = [...part.querySelectorAll("figure")].map((figure) => ({
    key: figure.dataset.key,
    canvas: figure.querySelector("canvas"),
    title: figure.querySelector("span").textContent,
    value: figure.querySelector("b"),
  }));
  byId("workers").append(part);
  return { samples: [], charts, recent: [], last: null };
}

function take(at, { name, turns, fibers, connections, requests, latency }) {
  let worker = workers.get(name);
  if (!worker) workers.set(name, (worker = card(name)));
  const { last, samples } = worker;
  // Another start of the server counts anew.
  if (last && (at <= last.at || turns < last.turns)) samples.length = 0;
  else if (last) {
    const rate = (now, before) => ((now - before) * 1000) / (at - last.at);
    samples.push({ at, fibers, connections, latency, requests: rate(requests, last.requests), turns: rate(turns, last.turns) });
  }
  while (samples.length > 2 && samples[1].at < at - WINDOW - DELAY) samples.shift();
  worker.last = { at, turns, requests };
  const before = samples.find((sample) => sample.at >= at - RECENT)?.latency ?? latency;
  worker.recent = latency.map((count, i) => Math.max(0, count - before[i]));
  const newest = samples.at(-1);
  if (!newest) return worker;
  for (const chart of worker.charts) {
    const isLatency = chart.key === "latency";
    const p99 = isLatency ? quantile(worker.recent, 0.99) : null;
    const words = isLatency ? (p99 ? `99 % within ${span(p99)}` : "none") : short(newest[chart.key]);
    if (chart.value.textContent === words) continue;
    chart.value.textContent = words;
    chart.canvas.setAttribute("aria-label", `${chart.title}: ${words}`);
  }
  return worker;
}

// The connections of one protocol in words.
function speak([name, tls, count]) {
  if (tls === "handshake") return `${count} in the handshake of TLS`;
  return `${count} ${name} ${tls === "none" ? "in the clear" : `over ${tls}`}`;
}

function mib(bytes) {
  return `${(bytes / 2 ** 20).toFixed(bytes < 2 ** 23 ? 1 : 0)} MiB`;
}

function receive({ at, protocol, protocols, memory, workers: all }) {
  const accounts = memory.accounts.map(([name, bytes]) => `${name} ${mib(bytes)}`).join(", ");
  const limit = memory.limit ? ` of ${mib(memory.limit)}` : "";
  byId("memory").textContent = `Memory: ${mib(memory.held)}${limit}${accounts && `; ${accounts}`}.`;
  byId("protocol").textContent = `Your connection: ${protocol}.`;
  byId("protocols").textContent = protocols.map(speak).join(", ");
  const measured = at - performance.now();
  if (clock === null || Math.abs(measured - clock) > 1000) clock = measured;
  const now = all.map((one) => take(at, one));
  const gone = new Set(workers.keys());
  all.forEach((one) => gone.delete(one.name));
  for (const name of gone) {
    document.querySelector(`[data-worker="${CSS.escape(name)}"]`).remove();
    workers.delete(name);
  }
  const sum = (key) => now.reduce((sum, { samples }) => sum + (samples.at(-1)?.[key] ?? 0), 0);
  const recent = now[0].recent.map((_, i) => now.reduce((sum, worker) => sum + worker.recent[i], 0));
  const [p50, p99] = [quantile(recent, 0.5), quantile(recent, 0.99)];
  byId("rate").textContent = short(sum("requests"));
  byId("p50").textContent = p50 ? span(p50) : "–";
  byId("p99").textContent = p99 ? span(p99) : "–";
  byId("connections").textContent = short(sum("connections"));
  byId("fibers").textContent = short(sum("fibers"));
  if (still.matches) draw();
}

// --- The stream ----------------------------------------------------------------------------------------------------------

function say(state, words) {
  byId("status").dataset.state = state;
  byId("status").textContent = words;
}

function listen() {
  clearTimeout(timer);
  events = new EventSource("/live/events");
  events.onopen = () => say("open", "live");
  events.onmessage = (event) => receive(JSON.parse(event.data));
  events.onerror = async () => {
    say("connecting", "connecting…");
    // Lost connections are the browser's to open again; an answer other than 200 it takes for the end.
    if (events.readyState !== EventSource.CLOSED) return;
    const reply = await fetch("/live/events", { method: "HEAD" }).catch(() => null);
    if (reply?.status === 403) {
      say("closed", "not shown here");
      byId("blocked").hidden = false;
      byId("show").disabled = true;
      return;
    }
    say("closed", "no data; again in 5 s");
    timer = setTimeout(listen, 5000);
  };
}

byId("show").addEventListener("click", async () => {
  const button = byId("show");
  const out = byId("dump");
  button.disabled = true;
  try {
    const reply = await fetch("/live/fibers", { cache: "no-store" });
    out.textContent = await reply.text();
  } catch (error) {
    out.textContent = `The server did not answer: ${error.message}`;
  }
  out.hidden = false;
  button.disabled = false;
  button.textContent = "Show every fiber again";
  out.focus();
});

// --- The table of connections --------------------------------------------------------------------------------------------

const REFRESH = 2_000; // ms between two tables, while the table is open

function row([peer, protocol, tls, state, streams, age]) {
  const line = document.createElement("tr");
  const words = [peer, protocol, tls, state, protocol.startsWith("h2") ? whole.format(streams) : "–", `${whole.format(age / 1e3)} s`];
  for (const text of words) line.insertCell().textContent = text;
  return line;
}

async function list() {
  const part = byId("listed");
  if (!part.open) return;
  try {
    const reply = await fetch("/live/connections", { cache: "no-store" });
    // Another viewer may be served just now.
    if (reply.status === 200) {
      const { all, rows } = await reply.json();
      byId("rows").replaceChildren(...rows.map(row));
      byId("further").textContent = all > rows.length ? `and ${whole.format(all - rows.length)} more` : "";
    } else if (reply.status !== 503) byId("further").textContent = await reply.text();
  } catch (error) {
    byId("further").textContent = `The server did not answer: ${error.message}`;
  }
  clearTimeout(part.timer);
  part.timer = setTimeout(list, REFRESH);
}

byId("listed").addEventListener("toggle", list);

byId("load").addEventListener("click", async () => {
  const button = byId("load");
  button.disabled = true;
  let left = 300;
  const some = async () => {
    while (left-- > 0) await fetch("/hello", { cache: "no-store" }).catch(() => { left = 0; });
  };
  await Promise.all([some(), some(), some(), some()]);
  button.disabled = false;
});

readColours();
dark.addEventListener("change", () => { readColours(); draw(); });
addEventListener("resize", draw);
// A page that may be shown again by "back" is kept with its connections: nobody looks meanwhile.
addEventListener("pagehide", () => {
  clearTimeout(timer);
  events.close();
});
addEventListener("pageshow", (event) => { if (event.persisted) listen(); });
listen();
frame();
