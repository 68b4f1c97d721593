/**
 * One question's place for an answer: its text while it comes, what can be done with it, and the
 * other answers that the same question has had.
 */

import { MarkdownView } from "../markdown.js";
import { element, icon, iconButton, label } from "./dom.js";
import { isWorthRetrying, problemOf } from "./problems.js";

const SAID = ["connecting", "unreachable", "thinking", "reconnecting", "recovering", "stopped"];
const COPIED_MS = 2000;
const UNREACHABLE_MS = 10_000; // without a sign from the gateway
const UNREACHABLE_WARNING =
  "unbroken-chat: the gateway cannot be reached. If this page's origin is not among the tenant's " +
  "allowed origins, the browser hides the gateway's answer.";
let hasHeard = false; // anything from the gateway, since the page was opened
let hasWarned = false;

/**
 * @typedef {object} Host what the view needs of the widget
 * @property {() => import("./strings.js").Strings} strings
 * @property {import("./painter.js").Painter} painter
 * @property {(view: AnswerView) => void} regenerate
 * @property {(view: AnswerView) => void} retry
 * @property {(view: AnswerView) => void} moved called when the state has changed
 * @property {(text: string) => void} announce
 */

/** One answer of a session, and how far it is drawn. */
class Version {
  body = element("div", { class: "body", dir: "auto" });
  state = "connecting"; // or unreachable, thinking, streaming, reconnecting, recovering, done, stopped, failed
  error = null;
  finishReason = "";
  #view;
  #drawn = 0;

  /**
   * @param {import("../unbroken.js").Answer} answer
   * @param {boolean} isQuiet whether the reader knows how it ended
   */
  constructor(answer, isQuiet, codeHead) {
    this.answer = answer;
    this.isQuiet = isQuiet;
    if (answer.result) this.state = answer.state;
    this.#view = new MarkdownView(this.body, { codeHead });
  }

  get text() {
    return this.answer.text;
  }

  get isOver() {
    return ["done", "stopped", "failed"].includes(this.state);
  }

  /** Whether that was all there is. */
  draw() {
    const { answer } = this;
    this.#view.append(answer.text.slice(this.#drawn));
    this.#drawn = answer.text.length;
    const { seq } = answer;
    if (!this.#view.renderSome()) return false;
    answer.rendered(seq);
    return true;
  }
}

export class AnswerView {
  element = element("article", { class: "message answer" });
  /** The idempotency key of what is shown, for asking again without starting anew. */
  key = "";
  #host;
  #versions = [];
  #shown = -1;
  #stateLine = element("span", { class: "state" });
  #foot = element("div", { class: "foot" });
  #notice = element("div", { class: "notice", hidden: true });
  #buttons;
  #count = element("span", { class: "count" });
  #draw = () => this.#paint();

  /** @param {Host} host */
  constructor(host) {
    this.#host = host;
    this.#buttons = {
      copy: iconButton("copy", "quiet copy", () => this.#copy()),
      again: iconButton("again", "quiet again", () => host.regenerate(this)),
      previous: iconButton("previous", "quiet", () => this.#show(this.#shown - 1)),
      next: iconButton("next", "quiet", () => this.#show(this.#shown + 1)),
    };
    const { copy, again, previous, next } = this.#buttons;
    this.#foot.append(this.#stateLine, copy, again, previous, this.#count, next);
    this.element.append(this.#notice, this.#foot);
  }

  get version() {
    return this.#versions[this.#shown];
  }

  get answer() {
    return this.version.answer;
  }

  get text() {
    return this.version.text;
  }

  get isOver() {
    return this.version.isOver;
  }

  /** Show another answer; the earlier ones stay within reach. */
  follow(answer, { isQuiet = false } = {}) {
    const version = new Version(answer, isQuiet, (language) => this.#codeHead(language));
    this.#versions.push(version);
    this.#listen(version);
    this.#show(this.#versions.length - 1);
  }

  /** Go on with the answer that failed, in its place. */
  replace(answer) {
    const [failed] = this.#versions.splice(this.#shown, 1);
    failed.body.remove();
    this.follow(answer);
  }

  /** The reader wants no more of it: seen at once, whenever the gateway has done so. */
  stop() {
    const { version } = this;
    version.answer.stop().catch((error) => this.#fail(version, error));
    this.#move(version, "stopped");
  }

  /** Say everything in the present language. */
  translate() {
    const strings = this.#host.strings();
    this.element.setAttribute("aria-label", strings.say("answer"));
    label(this.#buttons.copy, strings.say("copy"));
    label(this.#buttons.again, strings.say("regenerate"));
    label(this.#buttons.previous, strings.say("previous"));
    label(this.#buttons.next, strings.say("next"));
    for (const button of this.element.querySelectorAll(".code-head button")) {
      label(button, strings.say("copy_code"));
    }
    this.#refresh();
  }

  #listen(version) {
    const { answer } = version;
    const move = (state) => this.#move(version, state);
    this.#watch(version);
    answer.addEventListener("session", () => {
      hasHeard = true;
      move("thinking");
    });
    answer.addEventListener("text", () => {
      move("streaming");
      this.#host.painter.soon(this.#draw);
    });
    answer.addEventListener("state", ({ detail }) => {
      if (detail === "reconnecting") move("reconnecting");
      if (detail === "streaming") move(answer.text ? "streaming" : "thinking");
    });
    answer.addEventListener("recovering", () => move("recovering"));
    answer.addEventListener("recovered", () => move(answer.text ? "streaming" : "thinking"));
    answer.finished.then(
      ({ finishReason }) => {
        version.finishReason = finishReason;
        this.#end(version, answer.state);
      },
      (error) => this.#fail(version, error),
    );
  }

  /** Say so when nothing comes at all; the client goes on trying. */
  #watch(version) {
    const { answer } = version;
    const { id } = answer;
    const timer = setInterval(() => {
      const isWaiting = version.state === "connecting" && answer.id === id && !answer.error;
      if (isWaiting && !navigator.onLine) return; // which is said already
      clearInterval(timer);
      if (!isWaiting || !this.element.isConnected) return;
      this.#move(version, "unreachable");
      if (hasHeard || hasWarned) return;
      hasWarned = true;
      console.warn(UNREACHABLE_WARNING);
    }, UNREACHABLE_MS);
  }

  #fail(version, error) {
    if (error.code === "left") return; // the widget was taken off the page
    version.error = error;
    this.#end(version, "failed");
  }

  #end(version, state) {
    this.#host.painter.soon(this.#draw);
    this.#move(version, state);
  }

  #move(version, state) {
    if (version.state === state || (version.isOver && state !== "failed")) return;
    const before = version.state;
    version.state = state;
    if (version !== this.version) return;
    this.#refresh();
    if (!version.isQuiet) this.#announce(before, state);
    this.#host.moved(this);
  }

  #announce(before, state) {
    const strings = this.#host.strings();
    const wasLost = ["unreachable", "reconnecting", "recovering"].includes(before);
    if (state === "done") {
      const count = strings.words(this.text);
      this.#host.announce(strings.say("said_finished", { count }));
    } else if (state === "stopped") this.#host.announce(strings.say("stopped"));
    else if (state === "failed") this.#host.announce(`${strings.say("said_failed")}. ${this.#reason()}`);
    else if (state === "unreachable") this.#host.announce(strings.say("unreachable"));
    else if (state === "reconnecting") this.#host.announce(strings.say("said_reconnecting"));
    else if (state === "recovering") this.#host.announce(strings.say("said_recovering"));
    else if (wasLost) this.#host.announce(strings.say("said_back"));
    else if (state === "streaming") this.#host.announce(strings.say("said_started"));
  }

  #show(index) {
    this.version?.body.remove();
    this.#shown = index;
    this.element.prepend(this.version.body);
    this.#host.painter.soon(this.#draw);
    this.translate();
    this.#host.moved(this);
  }

  #paint() {
    const { version } = this;
    // Stopped is stopped: what was still on its way comes with the end, all at once.
    if (version.state === "stopped" && !version.answer.result) return true;
    return version.draw();
  }

  #refresh() {
    const { version } = this;
    const strings = this.#host.strings();
    const { state, isOver } = version;
    const { copy, again, previous, next } = this.#buttons;
    this.element.classList.toggle("streaming", state === "streaming");
    this.element.setAttribute("aria-busy", String(!isOver));
    this.#stateLine.dataset.state = state;
    const isSaid = SAID.includes(state);
    this.#stateLine.textContent = isSaid ? strings.say(state) : "";
    this.#stateLine.hidden = !isSaid;
    copy.hidden = !isOver || !this.text;
    again.hidden = !isOver || state === "failed";
    const isOneOfSome = isOver && this.#versions.length > 1;
    for (const part of [previous, next, this.#count]) part.hidden = !isOneOfSome;
    previous.disabled = this.#shown === 0;
    next.disabled = this.#shown === this.#versions.length - 1;
    const [number, count] = [this.#shown + 1, this.#versions.length];
    this.#count.textContent = `${strings.number(number)} / ${strings.number(count)}`;
    this.#count.title = strings.say("versions", { number, count });
    this.#tellEnd(strings);
  }

  /** What the reader should know of how it ended. */
  #tellEnd(strings) {
    const { state, finishReason, answer } = this.version;
    const cut = state === "done" && `cut_${finishReason}`;
    this.#notice.replaceChildren();
    this.#notice.hidden = !(state === "failed" || (cut && strings.has(cut)));
    this.#notice.classList.toggle("mild", state !== "failed");
    if (this.#notice.hidden) return;
    const text = state === "failed" ? this.#reason() : strings.say(cut);
    this.#notice.append(element("p", {}, text));
    if (state !== "failed") return;
    const reference = this.version.error.reference || answer.reference;
    if (reference) {
      const line = element("p", { class: "reference" }, strings.say("reference", { reference }));
      this.#notice.append(line);
    }
    if (isWorthRetrying(problemOf(this.version.error))) {
      const retry = element("button", { type: "button", class: "retry" }, strings.say("retry"));
      retry.addEventListener("click", () => this.#host.retry(this));
      this.#notice.append(retry);
    }
  }

  #reason() {
    return this.#host.strings().say(problemOf(this.version.error));
  }

  async #copy() {
    await this.#copyFrom(this.#buttons.copy, this.text, "copy");
  }

  #codeHead(language) {
    const button = iconButton("copy", "quiet copy-code", () => {
      let text = "";
      let pre = head.nextElementSibling;
      do {
        text += pre.textContent;
        pre = pre.nextElementSibling;
      } while (pre?.classList.contains("continued"));
      this.#copyFrom(button, text.replace(/\n$/, ""), "copy_code");
    });
    label(button, this.#host.strings().say("copy_code"));
    const name = element("span", {}, language);
    const head = element("div", { class: "code-head", "data-kept": `code ${language}` }, name, button);
    return head;
  }

  async #copyFrom(button, text, key) {
    if (!(await copied(text, this.element))) return;
    const strings = this.#host.strings();
    button.replaceChildren(icon("done"), strings.say("copied"));
    label(button, strings.say("copied"));
    this.#host.announce(strings.say("copied"));
    setTimeout(() => {
      button.replaceChildren(icon("copy"));
      label(button, this.#host.strings().say(key));
    }, COPIED_MS);
  }
}

/** Put text on the clipboard; whether that worked. Pages without TLS have no clipboard of their own. */
async function copied(text, place) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const box = element("textarea", { class: "hidden", tabindex: "-1", "aria-hidden": "true" });
    const before = place.getRootNode().activeElement;
    box.value = text;
    place.append(box);
    box.select();
    const done = document.execCommand("copy");
    box.remove();
    before?.focus();
    return done;
  }
}
