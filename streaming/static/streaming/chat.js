/** The demo page: a conversation, and what happens behind it. */

import { MarkdownView } from "./markdown.js";
import { Nodes } from "./nodes.js";
import { UnbrokenClient } from "./unbroken.js";
import { Painter } from "./widget/painter.js";
import { Scroller } from "./widget/scroller.js";
import { ConversationStore, lastMessages } from "./widget/storage.js";
import * as words from "./words.js";

const HISTORY_CHARACTERS = 6000; // what fits the small model's context with room for the answer

const $ = (id) => document.getElementById(id);
const config = JSON.parse($("config").textContent);
const [history, question, status] = [$("history"), $("question"), $("status")];

// Over server-sent events: a WebSocket does not say which engine begins.
const transports = ["sse", "longpoll", "plain"];
const client = new UnbrokenClient({ token: config.token, namespace: "demo", transports });
const store = new ConversationStore("demo");
const scroller = new Scroller(history);
const painter = new Painter({ after: () => scroller.keep() });
let messages = [];
let running = null; // the Course of the answer that is coming
const nodes = new Nodes(config, $("nodes"), $("nodes-problem"), (name) => {
  log("killed", `You killed ${name}.`);
});

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  submit(question.value);
});
question.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit(question.value);
});
question.addEventListener("input", fitQuestion);
$("stop").addEventListener("click", () => running?.stop());
$("new-chat").addEventListener("click", startOver);
$("seams").addEventListener("change", showSeams);
for (const sample of document.querySelectorAll(".sample")) {
  sample.addEventListener("click", () => submit(sample.textContent));
}
showSeams();

function submit(text) {
  if (running || !text.trim()) return;
  question.value = "";
  fitQuestion();
  scroller.following = true;
  addQuestion(text);
  messages.push({ role: "user", content: text });
  // Not on a phone: it would bring up the keyboard over the answer.
  if (matchMedia("(pointer: fine)").matches) question.focus();
  clearLog();
  const key = Array.from(crypto.getRandomValues(new Uint8Array(16))).join("-");
  store.save({ messages, key });
  say("Waiting for the first word…");
  new Course(start(key), key).follow();
}

/** The same key is the same answer, also when this page was reloaded before it heard of it. */
function start(key) {
  const request = {
    model: config.model,
    messages: lastMessages(messages, HISTORY_CHARACTERS),
    stream: true,
    max_tokens: config.maxTokens,
    temperature: 0.7,
    top_p: 0.9,
  };
  return client.start(request, { idempotencyKey: key });
}

/** After a reload: what there was, and the answer that was coming. */
function restore() {
  const kept = store.load();
  if (!kept) return;
  ({ messages } = kept);
  for (const { role, content } of messages) {
    if (role === "user") addQuestion(content);
    else {
      const view = new MarkdownView(addMessage("assistant"));
      view.append(content);
      view.render();
    }
  }
  const answer = kept.session ? client.resume(kept.session) : start(kept.key);
  new Course(answer, kept.key, kept).follow();
}

/** What happens to one answer, on its way to the page. */
class Course {
  #answer;
  #key;
  #body = addMessage("assistant");
  #view = new MarkdownView(this.#body);
  #drawn = 0; // characters
  #seams; // {at, note}: after so many characters
  #marked = 0; // how many of them
  #failures = [];
  #tokens = 0;
  #node = "";
  #nodeBegan = 0; // the last token before this node's first
  #isStopped = false;
  #isOver;
  began = performance.now();

  /** @param {{seams?: object[], isOver?: boolean}} kept what was known of it before a reload */
  constructor(answer, key, { seams = [], isOver = false } = {}) {
    this.#answer = answer;
    this.#key = key;
    this.#seams = seams;
    this.#isOver = isOver;
  }

  async follow() {
    running = this;
    setBusy(true);
    this.#body.classList.add("waiting");
    this.#listen();
    let lastWord = () => {};
    try {
      const { finishReason: finish } = await this.#answer.finished;
      const end = { finish, tokens: this.#tokens };
      const isStopped = this.#answer.state === "stopped";
      const said = isStopped ? "You stopped the answer." : words.finished(end, this.#seams.length);
      lastWord = () => report("end", said);
    } catch (error) {
      lastWord = () => fail(this.#body, error);
    }
    this.#isOver = true;
    this.#isStopped = false;
    this.#draw();
    this.#body.classList.remove("waiting", "recovering", "streaming");
    if (running !== this) return; // a new chat has begun
    lastWord();
    this.#save();
    if (this.#answer.text) messages = [...messages, { role: "assistant", content: this.#answer.text }];
    running = null;
    nodes.serving("");
    setBusy(false);
  }

  /** Seen at once; what was on its way comes with the end. */
  stop() {
    this.#isStopped = true;
    $("stop").disabled = true;
    say("Stopping…");
    this.#answer.stop().catch((error) => fail(this.#body, error));
  }

  #listen() {
    const on = (name, act) => this.#answer.addEventListener(name, ({ detail }) => act(detail));
    const begun = () => {
      if (!this.#answer.id) return;
      this.#answer.removeEventListener("change", begun);
      this.#save();
    };
    this.#answer.addEventListener("change", begun);
    on("text", ({ seq, text }) => {
      if (text) this.#tokens = seq; // the token that ends an answer says nothing
      this.#body.classList.replace("waiting", "streaming");
      nodes.serving(this.#node, `answering · ${seq - this.#nodeBegan} tokens`);
      painter.soon(() => this.#draw());
    });
    on("attempt", ({ attempt, node, seq }) => {
      [this.#node, this.#nodeBegan] = [node, seq];
      nodes.serving(node, attempt === 1 ? "reading the question" : "taking over");
      say(attempt === 1 ? `${node} is answering…` : `${node} is taking over…`);
      if (attempt === 1) log("start", `${node} took the question.`);
    });
    on("recovering", (data) => {
      this.#failures.push(data);
      this.#body.classList.add("recovering");
      nodes.serving("");
      log("fail", `${words.failure(data)}.`);
      say(`${words.failure(data)}. Recovering…`);
    });
    on("recovered", (data) => {
      const note = words.seam(this.#failures.splice(0), data);
      this.#body.classList.remove("recovering");
      if (data.seq) this.#seams.push({ at: this.#answer.text.length, note });
      this.#save();
      report("recover", words.recovery(data));
      painter.soon(() => this.#draw());
    });
    let wasLost = false;
    on("state", (state) => {
      if (state === "reconnecting") report("fail", "The connection to the gateway is lost. Reconnecting…");
      if (state === "streaming" && wasLost) report("recover", "Connected again: not a token was missed.");
      wasLost = state === "reconnecting";
      this.#body.classList.toggle("recovering", wasLost);
    });
  }

  /** Whether that was all there is. */
  #draw() {
    if (this.#isStopped) return true;
    const { text, seq } = this.#answer;
    for (const { at, note } of this.#seams.slice(this.#marked)) {
      if (at > text.length) break;
      this.#append(text.slice(this.#drawn, at));
      this.#view.mark(() => seamMark(note));
      this.#marked += 1;
    }
    this.#append(text.slice(this.#drawn));
    if (!this.#isOver && !this.#view.renderSome()) return false;
    if (this.#isOver) this.#view.render();
    this.#answer.rendered(seq);
    return true;
  }

  #append(text) {
    this.#view.append(text);
    this.#drawn += text.length;
  }

  #save() {
    if (running !== this) return;
    const [key, session] = [this.#key, this.#answer.id || undefined];
    store.save({ messages, key, session, seams: this.#seams, isOver: this.#isOver });
  }
}

function seamMark(note) {
  const mark = document.createElement("button");
  mark.type = "button";
  mark.className = "seam";
  mark.setAttribute("aria-label", `Seam: ${note}`);
  const tip = document.createElement("span");
  tip.className = "tip";
  tip.textContent = note;
  mark.append(tip);
  return mark;
}

function addQuestion(text) {
  $("welcome").hidden = true;
  addMessage("user").textContent = text;
}

function addMessage(role) {
  const message = document.createElement("article");
  message.className = `message ${role}`;
  message.setAttribute("aria-label", role === "user" ? "You" : "Answer");
  const body = document.createElement("div");
  body.className = "body";
  message.append(body);
  history.append(message);
  scroller.keep();
  return body;
}

function fail(body, error) {
  const reason = error.reference ? `${error.message} (Reference ${error.reference})` : error.message;
  const notice = document.createElement("p");
  notice.className = "notice";
  notice.textContent = reason;
  body.after(notice);
  report("fail", reason);
  scroller.keep();
}

function startOver() {
  running?.stop();
  running = null;
  messages = [];
  store.clear();
  for (const message of history.querySelectorAll(".message")) message.remove();
  $("welcome").hidden = false;
  nodes.serving("");
  setBusy(false);
  clearLog();
  say("");
  question.focus();
}

function setBusy(busy) {
  $("send").hidden = busy;
  $("stop").hidden = !busy;
  $("stop").disabled = false;
  history.setAttribute("aria-busy", String(busy));
}

function fitQuestion() {
  question.style.height = "auto";
  question.style.height = `${question.scrollHeight}px`;
}

function showSeams() {
  history.classList.toggle("seams", $("seams").checked);
}

/** The status line is a polite live region: only what matters goes there. */
function say(text) {
  status.textContent = text;
}

function report(kind, text) {
  log(kind, text);
  say(text);
}

function log(kind, text) {
  const seconds = running ? (performance.now() - running.began) / 1000 : null;
  const line = document.createElement("li");
  line.className = kind;
  const time = document.createElement("time");
  time.textContent = seconds === null ? "" : `${seconds.toFixed(1)} s`;
  line.append(time, text);
  $("log").append(line);
  $("log-empty").hidden = true;
}

function clearLog() {
  $("log").textContent = "";
  $("log-empty").hidden = false;
}

restore();
