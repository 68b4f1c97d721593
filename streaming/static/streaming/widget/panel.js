/** The parts of the widget on the page, without what is said in them: see element.js and thread.js. */

import { element, icon, iconButton, label } from "./dom.js";
import { dress } from "./styles.js";

let panels = 0;

export class Panel {
  /** @type {Record<string, HTMLElement>} */
  parts;
  #host;
  #acts;

  /**
   * @param {HTMLElement} host the custom element
   * @param {Record<"send" | "stop" | "clear" | "toEnd" | "toggle" | "close", (text?: string) => void>} acts
   */
  constructor(host, acts) {
    this.#host = host;
    this.#acts = acts;
    const shadow = host.attachShadow({ mode: "open" });
    dress(shadow);
    this.parts = this.#build(`panel-${(panels += 1)}`);
    shadow.append(this.parts.root);
    this.#listen();
  }

  #build(id) {
    const acts = this.#acts;
    const launcher = iconButton("chat", "launcher", () => acts.toggle());
    launcher.setAttribute("aria-controls", id);
    launcher.setAttribute("part", "launcher");
    const title = element("h2", { id: `${id}-title` });
    const fresh = iconButton("fresh", "quiet fresh", () => acts.clear());
    const close = iconButton("close", "quiet close", () => acts.close());
    const head = element("header", { class: "head", part: "head" }, title, fresh, close);
    const offline = element("p", { class: "offline", hidden: true });
    const greeting = element("p", { class: "greeting", dir: "auto", hidden: true });
    // Nothing in it is read out by itself: `status` says what matters, once.
    const log = element(
      "div",
      { class: "log", role: "log", "aria-live": "off", tabindex: "0", part: "log" },
      greeting,
    );
    const latest = iconButton("down", "latest", () => acts.toEnd());
    latest.hidden = true;
    const question = element("textarea", { rows: "1", enterkeyhint: "send", maxlength: "32000" });
    const send = element("button", { type: "submit", class: "send" }, icon("send"));
    const stop = iconButton("stop", "stop", () => acts.stop());
    stop.hidden = true;
    const composer = element("form", { class: "composer", part: "composer" }, question, send, stop);
    const setup = element("div", { class: "notice setup", hidden: true });
    const panel = element(
      "section",
      { class: "panel", id, "aria-labelledby": title.id, part: "panel" },
      ...[head, offline, setup, log, latest, composer],
    );
    const status = element("p", { class: "hidden status", role: "status" });
    // An empty title: that of the element is the panel's name, not a tooltip over all of it.
    const root = element("div", { class: "root", title: "" }, panel, launcher, status);
    return {
      root, launcher, panel, title, fresh, close, offline, greeting, log, latest, question, send, stop,
      composer, setup, status,
    };
  }

  #listen() {
    const { composer, question, panel } = this.parts;
    composer.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    question.addEventListener("keydown", (event) => {
      // Safari ends a composition before the key that ended it is told; 229 is that key.
      const isComposing = event.isComposing || event.keyCode === 229;
      if (event.key !== "Enter" || event.shiftKey || isComposing) return;
      event.preventDefault();
      this.#send();
    });
    question.addEventListener("input", () => this.fitQuestion());
    question.addEventListener("input", () => this.#turnQuestion());
    panel.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || event.isComposing || this.isInline) return;
      event.stopPropagation();
      this.#acts.close();
    });
  }

  get isInline() {
    return this.#host.hasAttribute("inline");
  }

  get isOpen() {
    return !this.parts.panel.hidden;
  }

  #send() {
    const { question } = this.parts;
    if (!question.value.trim() || question.disabled) return;
    if (this.#acts.send(question.value) === false) return;
    question.value = "";
    this.fitQuestion();
    this.#turnQuestion();
  }

  /** Written text has its own direction; the placeholder has that of its language. */
  #turnQuestion() {
    const { question, root } = this.parts;
    question.dir = question.value ? "auto" : root.dir;
  }

  /** As high as its text, where the browser does not do so itself. */
  fitQuestion() {
    if (CSS.supports("field-sizing", "content")) return;
    const { question } = this.parts;
    question.style.height = "auto";
    question.style.height = `${question.scrollHeight}px`;
  }

  /** In the page, or floating over it behind a launcher. */
  place() {
    const { root, panel, launcher, close } = this.parts;
    const { isInline } = this;
    root.classList.toggle("inline", isInline);
    root.classList.toggle("floating", !isInline);
    launcher.hidden = close.hidden = isInline;
    panel.setAttribute("role", isInline ? "region" : "dialog");
    this.show(isInline || this.#host.hasAttribute("open"));
  }

  show(isOpen) {
    const { panel, launcher } = this.parts;
    panel.hidden = !isOpen;
    launcher.setAttribute("aria-expanded", String(isOpen));
    launcher.replaceChildren(icon(isOpen ? "close" : "chat"));
  }

  /** @param {import("./strings.js").Strings} strings */
  translate(strings) {
    const { root, launcher, title, fresh, close, offline, greeting, log, latest, question, send, stop } = this.parts;
    const own = (name) => this.#host.getAttribute(name);
    root.dir = strings.direction;
    root.lang = strings.language;
    title.textContent = own("title") || strings.say("title");
    greeting.textContent = own("greeting") ?? "";
    greeting.hidden = !greeting.textContent;
    label(fresh, strings.say("new_chat"));
    label(close, strings.say("close"));
    label(latest, strings.say("latest"));
    label(send, strings.say("send"));
    label(stop, strings.say("stop"));
    label(launcher, strings.say(this.isOpen ? "close" : "open"));
    offline.textContent = strings.say("offline");
    log.setAttribute("aria-label", strings.say("messages"));
    question.setAttribute("aria-label", strings.say("message"));
    this.#turnQuestion();
    question.placeholder = own("placeholder") || strings.say("placeholder");
  }

  /** While an answer comes there is no sending, but stopping. */
  setBusy(isBusy) {
    const { send, stop, log, launcher, question } = this.parts;
    const hadFocus = this.#host.shadowRoot.activeElement;
    send.hidden = isBusy;
    stop.hidden = !isBusy;
    log.setAttribute("aria-busy", String(isBusy));
    launcher.classList.toggle("busy", isBusy && !this.isOpen);
    if (hadFocus && [send, stop].includes(hadFocus) && hadFocus.hidden) question.focus();
  }

  /** A widget that cannot work says why; with "" it can. */
  setProblem(text) {
    const { setup, question, send } = this.parts;
    setup.textContent = text;
    setup.hidden = !text;
    question.disabled = send.disabled = Boolean(text);
  }

  /** Keeps the panel above a keyboard on the screen, which shrinks the visual viewport only. */
  fitScreen() {
    const view = window.visualViewport;
    if (!view) return;
    const { style } = this.parts.root;
    style.setProperty("--view-top", `${view.offsetTop}px`);
    style.setProperty("--view-height", `${view.height}px`);
  }
}
