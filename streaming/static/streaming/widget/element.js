/**
 * `<unbroken-chat>`: what pages set and call, and what it tells them. See docs/widget.md.
 */

import { UnbrokenClient } from "../unbroken.js";
import { Painter } from "./painter.js";
import { Panel } from "./panel.js";
import { isSecretKey, SECRET_KEY_WARNING } from "./problems.js";
import { Scroller } from "./scroller.js";
import { ConversationStore } from "./storage.js";
import { changed, stringsFor } from "./strings.js";
import { Thread } from "./thread.js";

const DEFAULT_MODEL = "chat-default";
const HISTORY_CHARACTERS = 24_000;
const TOKEN_MS = 3000; // how long a page may take to bring a token before we complain
const WORDS = ["lang", "title", "placeholder", "greeting"];
const names = new Set(); // of the conversations on this page

export class UnbrokenChat extends HTMLElement {
  static observedAttributes = ["token", "inline", "open", ...WORDS];

  #refreshToken = null;
  #token = "";
  #client = null;
  #panel;
  #scroller;
  #painter;
  #thread = null;
  #name = "";
  #strings = stringsFor([]);
  #connection = null; // an AbortController while it is on a page
  #problem = ""; // the string that says why it cannot work
  #said = 0;

  constructor() {
    super();
    this.#panel = new Panel(this, {
      send: (text) => this.send(text),
      stop: () => this.stop(),
      clear: () => this.clear(),
      toEnd: () => this.#toEnd(),
      toggle: () => (this.#panel.isOpen ? this.close() : this.open()),
      close: () => this.close(),
    });
    const { log, latest } = this.#panel.parts;
    this.#scroller = new Scroller(log, (following) => (latest.hidden = following));
    this.#painter = new Painter({ after: () => this.#scroller.keep() });
  }

  /** The token in use. Set as a property it is nowhere in the page. */
  get token() {
    return this.#token;
  }

  set token(token) {
    if (isSecretKey(token ?? "")) {
      console.error(SECRET_KEY_WARNING);
      this.#token = "";
      this.#setProblem("error_key");
      return;
    }
    this.#token = token ?? "";
    if (this.isConnected) this.#begin();
  }

  /**
   * Called when the token is missing or has expired; gives a new one. Wins over `token-url`.
   * @type {(() => Promise<string>) | null}
   */
  get refreshToken() {
    return this.#refreshToken;
  }

  set refreshToken(refresh) {
    this.#refreshToken = refresh;
    if (this.isConnected) this.#begin();
  }

  /** Ask something, as if the reader had written it. Whether that was possible. */
  send(text) {
    if (!this.#thread) return false;
    this.#scroller.toEnd();
    return this.#thread.ask(text);
  }

  /** End the answer that is coming. */
  stop() {
    this.#thread?.stop();
  }

  /** Start a new conversation. */
  clear() {
    this.#thread?.clear();
    this.#toEnd();
    if (this.#panel.isOpen) this.#panel.parts.question.focus();
  }

  open() {
    this.#panel.show(true);
    this.#panel.translate(this.#strings);
    this.#panel.setBusy(Boolean(this.#thread?.isBusy));
    this.#panel.fitQuestion();
    this.#toEnd();
    const { question, close } = this.#panel.parts;
    (question.disabled ? close : question).focus({ preventScroll: true });
  }

  close() {
    if (this.#panel.isInline || !this.#panel.isOpen) return;
    this.#panel.show(false);
    this.#panel.translate(this.#strings);
    this.#panel.setBusy(Boolean(this.#thread?.isBusy));
    this.#panel.parts.launcher.focus({ preventScroll: true });
  }

  connectedCallback() {
    this.#connection = new AbortController();
    const { signal } = this.#connection;
    const told = { signal };
    this.#name = freeName(this.getAttribute("conversation") ?? this.id);
    changed.addEventListener("change", () => this.#translate(), told);
    window.addEventListener("languagechange", () => this.#translate(), told);
    for (const name of ["online", "offline"]) window.addEventListener(name, () => this.#showNetwork(), told);
    for (const name of ["resize", "scroll"]) {
      window.visualViewport?.addEventListener(name, () => this.#panel.fitScreen(), told);
    }
    this.#panel.fitScreen();
    this.#panel.place();
    this.#translate();
    this.#showNetwork();
    this.#begin();
  }

  disconnectedCallback() {
    this.#connection.abort();
    this.#client?.close(); // its answers go on at the gateway, and here when it comes back
    this.#client = this.#thread = null;
    this.#panel.parts.log.replaceChildren(this.#panel.parts.greeting);
    names.delete(this.#name);
  }

  attributeChangedCallback(name, before, value) {
    if (name === "token") {
      // A token that stands in the page is taken out of it; what sees the page need not see it.
      if (value === null) return;
      this.removeAttribute("token");
      this.token = value;
    } else if (this.isConnected && before !== value) {
      if (WORDS.includes(name)) this.#translate();
      else this.#panel.place();
    }
  }

  /** Connect, once there is a way to get a token. */
  #begin() {
    if (this.#thread || !this.isConnected) return;
    if (!this.#token && !this.refreshToken && !this.hasAttribute("token-url")) {
      // A page may still bring its token.
      setTimeout(() => {
        if (!this.#thread && this.isConnected && !this.#problem) this.#setProblem("error_token");
      }, TOKEN_MS);
      return;
    }
    this.#setProblem("");
    this.#client = this.#makeClient();
    this.#thread = new Thread({
      client: () => this.#client,
      request: () => ({ model: this.getAttribute("model") || DEFAULT_MODEL, stream: true }),
      historyCharacters: () => Number(this.getAttribute("history")) || HISTORY_CHARACTERS,
      store: new ConversationStore(this.#name, { inMemory: this.getAttribute("storage") === "memory" }),
      log: this.#panel.parts.log,
      strings: () => this.#strings,
      painter: this.#painter,
      announce: (text) => this.#announce(text),
      busy: (isBusy) => {
        this.#panel.setBusy(isBusy);
        this.#scroller.keep();
      },
      tell: (name, detail) => this.#tell(name, detail),
    });
    this.#thread.restore();
    this.#tell("unbroken:ready", {});
  }

  #makeClient() {
    const baseUrl = this.getAttribute("base-url");
    return new UnbrokenClient({
      ...(baseUrl && { baseUrl: new URL(baseUrl, document.baseURI).href.replace(/\/$/, "") }),
      token: async () => this.#token || this.#refresh(),
      refreshToken: () => this.#refresh(),
      storage: this.getAttribute("storage") ?? "indexeddb",
      namespace: `chat:${this.#name}`,
    });
  }

  async #refresh() {
    const token = await (this.refreshToken ?? (() => this.#fetchToken()))();
    if (typeof token !== "string" || !token) throw new Error("There is no other token.");
    if (isSecretKey(token)) {
      console.error(SECRET_KEY_WARNING);
      throw new Error("A secret key is no token for a browser.");
    }
    this.#token = token;
    return token;
  }

  /** The page's backend, which knows its reader by cookie, mints a token for them. */
  async #fetchToken() {
    const url = this.getAttribute("token-url");
    if (!url) return this.#token; // no better one to be had: the error stands
    const response = await fetch(url, { method: "POST", credentials: "same-origin", headers: { Accept: "application/json" } });
    if (!response.ok) throw new Error(`${url} answered with ${response.status}.`);
    return (await response.json()).token;
  }

  #translate() {
    const own = this.getAttribute("lang");
    this.#strings = stringsFor([...(own ? [own] : []), ...navigator.languages]);
    this.#panel.translate(this.#strings);
    this.#setProblem(this.#problem);
    this.#thread?.translate();
  }

  #setProblem(problem) {
    this.#problem = problem;
    this.#panel.setProblem(problem && this.#strings.say(problem));
  }

  #showNetwork() {
    this.#panel.parts.offline.hidden = navigator.onLine;
  }

  #toEnd() {
    this.#scroller.toEnd();
    this.#panel.parts.latest.hidden = true;
  }

  /** Said once, by screen readers; the same words again are a change too. */
  #announce(text) {
    this.#said += 1;
    this.#panel.parts.status.textContent = this.#said % 2 ? text : `${text}\u00a0`;
  }

  #tell(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail, bubbles: true, composed: true }));
  }
}

/** A name that no other widget on the page has: two on one page are two conversations. */
function freeName(wanted) {
  let name = wanted;
  for (let number = 2; names.has(name); number += 1) name = `${wanted}:${number}`;
  names.add(name);
  return name;
}
