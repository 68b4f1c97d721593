/** A conversation: its questions and answers, which of them is coming, and where it stands after a reload. */

import { AnswerView } from "./answer_view.js";
import { element } from "./dom.js";
import { lastMessages } from "./storage.js";

/**
 * @typedef {object} ThreadHost
 * @property {() => import("../unbroken.js").UnbrokenClient} client
 * @property {() => object} request what a chat request has besides its messages
 * @property {() => number} historyCharacters how much of the conversation goes along
 * @property {import("./storage.js").ConversationStore} store
 * @property {HTMLElement} log
 * @property {() => import("./strings.js").Strings} strings
 * @property {import("./painter.js").Painter} painter
 * @property {(text: string) => void} announce
 * @property {(isBusy: boolean) => void} busy
 * @property {(name: string, detail: object) => void} tell
 */

export class Thread {
  #host;
  #turns = []; // {content, element} of a question, {content} or {view, element} of an answer
  #running = null; // the AnswerView that an answer is coming to

  /** @param {ThreadHost} host */
  constructor(host) {
    this.#host = host;
  }

  get isBusy() {
    return this.#running !== null;
  }

  /** Whether there was a question and nothing else was being answered. */
  ask(text) {
    if (this.isBusy || !text.trim()) return false;
    this.#addQuestion(text);
    this.#host.tell("unbroken:message", { role: "user", text });
    const view = this.#addAnswer();
    this.#start(view, freshKey());
    return true;
  }

  stop() {
    this.#running?.stop();
  }

  /** Another answer to the last question; the one before stays within reach. */
  regenerate(view) {
    if (this.isBusy || view !== this.#turns.at(-1)?.view) return;
    this.#start(view, freshKey());
  }

  /** What failed, once more: the same answer where there is one, else the same question. */
  retry(view) {
    if (this.isBusy || view !== this.#turns.at(-1)?.view) return;
    const { error } = view.version;
    const { id } = view.answer;
    if (id && error.resumable) this.#follow(view, this.#host.client().resume(id), view.key, { isAgain: true });
    else this.#start(view, id ? freshKey() : view.key, { isAgain: true });
  }

  /** Start over. An answer that is coming is no longer wanted. */
  clear() {
    this.stop();
    this.#running = null;
    for (const { element: part } of this.#turns) part.remove();
    this.#turns = [];
    this.#host.store.clear();
    this.#host.busy(false);
  }

  /** Show what there was before a reload, and go on with the answer that was coming. */
  restore() {
    const kept = this.#host.store.load();
    if (!kept?.messages.length || this.#turns.length) return;
    for (const { role, content } of kept.messages) {
      if (role === "user") this.#addQuestion(content);
      else this.#addSettled(content);
    }
    const view = this.#addAnswer();
    if (!kept.session) {
      this.#start(view, kept.key); // it may have begun: the key says so
      return;
    }
    const answer = this.#host.client().resume(kept.session);
    answer.addEventListener("error", ({ detail }) => {
      // Not ours (any more): somebody else has logged in on this computer.
      if (detail.status === 404) this.clear();
    });
    this.#follow(view, answer, kept.key, { isQuiet: kept.isOver });
  }

  translate() {
    const you = this.#host.strings().say("you");
    for (const { element: part, view } of this.#turns) {
      if (view) view.translate();
      else if (part.classList.contains("question")) part.setAttribute("aria-label", you);
      else part.setAttribute("aria-label", this.#host.strings().say("answer"));
    }
  }

  #start(view, key, how = {}) {
    const messages = this.#messages(view);
    const recent = lastMessages(messages, this.#host.historyCharacters());
    this.#host.store.save({ messages, key });
    const request = { ...this.#host.request(), messages: recent };
    const answer = this.#host.client().start(request, { idempotencyKey: key });
    this.#follow(view, answer, key, how);
  }

  #follow(view, answer, key, { isAgain = false, isQuiet = false } = {}) {
    const save = () => {
      if (!answer.id) return;
      answer.removeEventListener("change", save);
      this.#save(view);
    };
    answer.addEventListener("change", save);
    view.key = key;
    this.#running = view;
    this.#host.busy(true);
    if (isAgain) view.replace(answer);
    else view.follow(answer, { isQuiet });
  }

  /** What an answer's view says of its state. */
  #moved(view) {
    if (!view.isOver) return;
    const isLast = this.#running === view;
    if (isLast) {
      this.#running = null;
      this.#host.busy(false);
    }
    const { version, answer, text } = view;
    const session = { session: answer.id, reference: answer.reference };
    this.#save(view);
    if (!isLast || version.isQuiet) return;
    if (version.state === "failed") {
      const { code = "", message } = version.error;
      const reference = version.error.reference || answer.reference;
      this.#host.tell("unbroken:error", { ...session, code, message, reference });
    } else if (version.state === "stopped") {
      this.#host.tell("unbroken:stopped", { ...session, text });
    } else {
      this.#host.tell("unbroken:message", { role: "assistant", text, ...session });
    }
  }

  /** What a reload shows: the last answer, of several the one that the reader has turned to. */
  #save(view) {
    const { key, answer, isOver } = view;
    if (view !== this.#turns.at(-1)?.view || !answer.id) return;
    this.#host.store.save({ messages: this.#messages(view), key, session: answer.id, isOver });
  }

  /** The messages before an answer. */
  #messages(view) {
    const messages = [];
    for (const turn of this.#turns) {
      if (turn.view === view) break;
      const content = turn.view ? turn.view.text : turn.content;
      if (content) messages.push({ role: turn.role, content });
    }
    return messages;
  }

  #addQuestion(content) {
    const body = element("div", { class: "body", dir: "auto" }, content);
    const part = element("article", { class: "message question" }, body);
    part.setAttribute("aria-label", this.#host.strings().say("you"));
    this.#put({ role: "user", content, element: part });
  }

  #addAnswer() {
    const view = new AnswerView({
      ...this.#host,
      regenerate: (one) => this.regenerate(one),
      retry: (one) => this.retry(one),
      moved: (one) => this.#moved(one),
    });
    this.#put({ role: "assistant", view, element: view.element });
    return view;
  }

  /** An earlier answer, from what was kept. */
  #addSettled(content) {
    const view = this.#addAnswer();
    view.follow(settledAnswer(content));
  }

  #put(turn) {
    this.#turns.push(turn);
    this.#host.log.append(turn.element);
  }
}

/** Something like an answer that was complete before this page was loaded. */
function settledAnswer(text) {
  const answer = new EventTarget();
  const result = { text, finishReason: "stop", usage: null };
  const finished = Promise.resolve(result);
  const nothing = () => {};
  return Object.assign(answer, { id: "", reference: "", text, seq: 0, state: "done", result, finished, rendered: nothing });
}

function freshKey() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
