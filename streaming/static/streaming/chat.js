/** The demo page: a conversation, and what happens behind it. */

import { AnswerFailed, ask } from "./answer.js";
import { MarkdownView } from "./markdown.js";
import { Nodes } from "./nodes.js";
import * as words from "./words.js";

const HISTORY_CHARACTERS = 6000; // what fits the small model's context with room for the answer
const NEAR_BOTTOM = 80;

const $ = (id) => document.getElementById(id);
const config = JSON.parse($("config").textContent);
const [history, question, status] = [$("history"), $("question"), $("status")];

let messages = [];
let running = null; // {controller, began} while an answer is coming
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
$("stop").addEventListener("click", () => running?.controller.abort());
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
  $("welcome").hidden = true;
  addMessage("user").textContent = text;
  messages.push({ role: "user", content: text });
  // Not on a phone: it would bring up the keyboard over the answer.
  if (matchMedia("(pointer: fine)").matches) question.focus();
  answer();
}

async function answer() {
  const controller = new AbortController();
  const me = { controller, began: performance.now() };
  running = me;
  setBusy(true);
  clearLog();
  const body = addMessage("assistant");
  body.classList.add("waiting");
  const view = new MarkdownView(body);
  const draw = painter(view);
  const course = new Course(view, body);
  say("Waiting for the first word…");
  try {
    const end = await ask(config, recent(), course.tell(draw), controller.signal);
    report("end", words.finished(end, course.seams));
  } catch (error) {
    if (controller.signal.aborted) report("end", "You stopped the answer.");
    else if (error instanceof AnswerFailed) fail(body, error.message);
    else {
      fail(body, "This page could not read the answer.");
      throw error;
    }
  } finally {
    draw.now();
    body.classList.remove("waiting", "recovering", "streaming");
    if (running === me) {
      if (view.source) messages.push({ role: "assistant", content: view.source });
      running = null;
      nodes.serving("");
      setBusy(false);
    }
  }
}

/** What happens to one answer, on its way to the page. */
class Course {
  seams = 0;
  #view;
  #body;
  #failures = [];
  #node = "";
  #nodeBegan = 0; // the last token before this node's first

  constructor(view, body) {
    this.#view = view;
    this.#body = body;
  }

  tell(draw) {
    return {
      text: (text, seq) => {
        this.#body.classList.replace("waiting", "streaming");
        this.#view.append(text);
        nodes.serving(this.#node, `answering · ${seq - this.#nodeBegan} tokens`);
        draw();
      },
      attempt: ({ attempt, node, seq }) => {
        [this.#node, this.#nodeBegan] = [node, seq];
        nodes.serving(node, attempt === 1 ? "reading the question" : "taking over");
        say(attempt === 1 ? `${node} is answering…` : `${node} is taking over…`);
        if (attempt === 1) log("start", `${node} took the question.`);
      },
      recovering: (data) => {
        this.#failures.push(data);
        this.#body.classList.add("recovering");
        nodes.serving("");
        log("fail", `${words.failure(data)}.`);
        say(`${words.failure(data)}. Recovering…`);
      },
      recovered: (data) => {
        const note = words.seam(this.#failures.splice(0), data);
        this.#body.classList.remove("recovering");
        this.seams += 1;
        if (data.seq) this.#view.mark(() => seamMark(note));
        report("recover", words.recovery(data));
        draw();
      },
    };
  }
}

/** Draws at most once per frame; `now()` draws what is still waiting. */
function painter(view) {
  let due = 0;
  const paint = () => {
    due = 0;
    const follow = history.scrollHeight - history.scrollTop - history.clientHeight < NEAR_BOTTOM;
    view.render();
    if (follow) scrollToEnd();
  };
  const draw = () => {
    due ||= requestAnimationFrame(paint);
  };
  draw.now = () => {
    cancelAnimationFrame(due);
    paint();
  };
  return draw;
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

/** The newest messages that fit; the question itself always goes along. */
function recent() {
  let room = HISTORY_CHARACTERS;
  let first = messages.length - 1;
  while (first > 0 && (room -= messages[first - 1].content.length) > 0) first -= 1;
  return messages.slice(first);
}

function addMessage(role) {
  const message = document.createElement("article");
  message.className = `message ${role}`;
  message.setAttribute("aria-label", role === "user" ? "You" : "Answer");
  const body = document.createElement("div");
  body.className = "body";
  message.append(body);
  history.append(message);
  scrollToEnd();
  return body;
}

function fail(body, reason) {
  const notice = document.createElement("p");
  notice.className = "notice";
  notice.textContent = reason;
  body.after(notice);
  report("fail", reason);
  scrollToEnd();
}

function startOver() {
  running?.controller.abort();
  running = null;
  messages = [];
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
  history.setAttribute("aria-busy", String(busy));
}

function fitQuestion() {
  question.style.height = "auto";
  question.style.height = `${question.scrollHeight}px`;
}

function scrollToEnd() {
  history.scrollTop = history.scrollHeight;
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
