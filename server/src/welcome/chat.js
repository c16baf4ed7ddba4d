// The chat: one WebSocket, opened again with growing pauses whenever it ends.
// The messages are those of web/src/chat.rs.

const byId = (id) => document.getElementById(id);
const [name, room, status, lines, form, text] = ["name", "room", "status", "lines", "compose", "text"].map(byId);

const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 15_000;
const KEPT = 500; // lines in the page

let socket;
let failures = 0;
let timer;

function remembered(key, otherwise) {
  try { return localStorage.getItem(key) || otherwise; } catch { return otherwise; }
}
function remember(key, value) {
  try { localStorage.setItem(key, value); } catch { /* private mode: then not */ }
}

function say(state, words) {
  status.dataset.state = state;
  status.textContent = words;
}

function line({ name: who, text: what, at }) {
  const item = document.createElement("li");
  const head = document.createElement("b");
  head.textContent = who;
  const time = document.createElement("time");
  const date = new Date(at);
  time.dateTime = date.toISOString();
  time.textContent = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  const words = document.createElement("p");
  words.textContent = what;
  if (who === name.value.trim()) item.className = "own";
  item.append(head, time, words);
  return item;
}

function add(item) {
  const atEnd = lines.scrollHeight - lines.scrollTop - lines.clientHeight < 60;
  lines.append(item);
  while (lines.children.length > KEPT) lines.firstChild.remove();
  if (atEnd) lines.scrollTop = lines.scrollHeight;
}

function notice(words) {
  const item = document.createElement("li");
  item.className = "notice";
  item.textContent = words;
  add(item);
}

function receive(message) {
  switch (message.is) {
    case "history":
      // What is old is not read out.
      lines.setAttribute("aria-live", "off");
      lines.replaceChildren(...message.lines.map(line));
      lines.scrollTop = lines.scrollHeight;
      setTimeout(() => lines.setAttribute("aria-live", "polite"), 300);
      break;
    case "line": add(line(message)); break;
    case "here": say("open", message.count === 1 ? "only you are here" : `${message.count} are here`); break;
    case "notice": notice(message.text); break;
  }
}

function connect() {
  clearTimeout(timer);
  if (socket) {
    socket.onclose = socket.onmessage = null;
    socket.close();
  }
  say("connecting", "connecting…");
  const query = new URLSearchParams({ room: room.value.trim(), name: name.value.trim() });
  socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/chat/socket?${query}`);
  socket.onopen = () => { failures = 0; };
  socket.onmessage = (event) => receive(JSON.parse(event.data));
  socket.onclose = (event) => {
    const pause = Math.min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** failures++) * (0.5 + Math.random() / 2);
    const why = event.reason || "no connection";
    say("closed", `${why}; again in ${Math.ceil(pause / 1000)} s`);
    timer = setTimeout(connect, pause);
  };
}

function choose() {
  name.value = name.value.trim() || `guest-${Math.floor(100 + Math.random() * 900)}`;
  room.value = room.value.trim().toLowerCase().replace(/[^a-z0-9-]+/g, "-").slice(0, 32) || "lobby";
  remember("chat-name", name.value);
  history.replaceState(null, "", room.value === "lobby" ? location.pathname : `?room=${room.value}`);
  failures = 0;
  connect();
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const words = text.value.trim();
  if (!words) return;
  if (socket.readyState !== WebSocket.OPEN) {
    notice("Not sent: there is no connection. The line is kept below.");
    return;
  }
  socket.send(JSON.stringify({ text: words }));
  text.value = "";
});
for (const field of [name, room]) {
  field.addEventListener("change", choose);
  field.addEventListener("keydown", (event) => { if (event.key === "Enter") text.focus(); });
}
// A page that may be shown again by "back" is kept with its connections: nobody is there meanwhile.
addEventListener("pagehide", () => {
  clearTimeout(timer);
  socket.onclose = null;
  socket.close();
});
addEventListener("pageshow", (event) => { if (event.persisted) connect(); });
addEventListener("online", () => { if (socket.readyState > WebSocket.OPEN) connect(); });

name.value = remembered("chat-name", "");
room.value = new URLSearchParams(location.search).get("room") || "lobby";
choose();
