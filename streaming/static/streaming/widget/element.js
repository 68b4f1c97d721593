/**
 * `<unbroken-chat>`: what pages set and call, and what it tells them. See docs/widget.md.
 */

import { UnbrokenClient } from "../unbroken.js";
import { Painter } from "./painter.js";
import { Panel } from "./panel.js";
import { isSecretKey, SECRET_KEY_WARNING } from "./problems.js";
import { readerOf } from "./reader.js";
import { Scroller } from "./scroller.js";
import { ConversationStore } from "./storage.js";
import { changed, stringsFor } from "./strings.js";
import { Thread } from "./thread.js";

const DEFAULT_MODEL = "chat-default";
const HISTORY_CHARACTERS = 24_000;
const TOKEN_MS = 3000; // how long a page may take to bring a token before we complain
const FIRST_PAUSE = 1000; // ms between tries to get the first token, longer each time
const LONGEST_PAUSE = 30_000;
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
  #reader = ""; // whose conversation is shown
  #fetching = null; // the signal of the connection that is getting its first token
  #waiting = ""; // what was asked before there was a token
  #isReady = false;
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
    if (this.#take(token ?? "")) this.#begin();
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
    this.#begin();
  }

  /** Ask something, as if the reader had written it. Whether that was possible. */
  send(text) {
    if (this.#thread) {
      this.#scroller.toEnd();
      return this.#thread.ask(text);
    }
    if (!this.#canRefresh || !this.isConnected || this.#waiting || !text.trim()) return false;
    this.#waiting = text;
    this.#begin();
    return true;
  }

  /** End the answer that is coming. */
  stop() {
    this.#thread?.stop();
  }

  /** Start a new conversation. */
  clear() {
    this.#waiting = "";
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
    if (!this.#thread) this.#begin();
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
    this.#leave();
    this.#isReady = false;
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
      else {
        this.#panel.place();
        if (!this.#thread) this.#begin();
      }
    }
  }

  get #canRefresh() {
    return Boolean(this.refreshToken) || this.hasAttribute("token-url");
  }

  /** Connect, once there is a token: before that nobody knows whose conversation may be shown. */
  #begin() {
    // Attributes come before the element has been put into place.
    if (!this.isConnected || (this.#connection?.signal.aborted ?? true)) return;
    if (!this.#token && !this.#canRefresh) {
      // A page may still bring its token.
      setTimeout(() => {
        const hasNone = !this.#thread && !this.#token && !this.#canRefresh;
        if (hasNone && this.isConnected && !this.#problem) this.#setProblem("error_token");
      }, TOKEN_MS);
      return;
    }
    if (this.#token && (readerOf(this.#token) || !this.#canRefresh)) this.#converse();
    else if (!this.#thread) {
      // Who only passes by needs no token.
      if (this.#problem === "error_token") this.#setProblem("");
      if (this.#panel.isOpen || this.#waiting || ConversationStore.isAnyKept(this.#name)) this.#fetchFirst();
    }
    if (!this.#isReady) {
      this.#isReady = true;
      this.#tell("unbroken:ready", {});
    }
  }

  /** Get the first token, however long that takes. */
  async #fetchFirst() {
    const { signal } = this.#connection;
    if (this.#fetching === signal) return;
    this.#fetching = signal;
    for (let pause = FIRST_PAUSE; ; pause = Math.min(2 * pause, LONGEST_PAUSE)) {
      try {
        await this.#refresh();
        break;
      } catch (error) {
        if (signal.aborted || this.#thread || this.#problem === "error_key") break;
        console.warn("unbroken-chat: there is no token yet:", error);
        this.#setProblem("unreachable");
      }
      await new Promise((resolve) => {
        setTimeout(resolve, pause);
        window.addEventListener("online", resolve, { once: true, signal });
      });
      if (signal.aborted || this.#thread) break;
    }
    if (this.#fetching === signal) this.#fetching = null;
  }

  /** Show the conversation of the reader whose token it is, and of nobody else. */
  #converse() {
    const reader = readerOf(this.#token);
    if (this.#thread && this.#reader === reader) return;
    if (this.#thread) this.#leave();
    this.#reader = reader;
    this.#setProblem("");
    // Of whom we cannot tell from others, nothing is kept.
    const storage = reader ? (this.getAttribute("storage") ?? "indexeddb") : "memory";
    const name = `${reader}:${this.#name}`;
    this.#client = this.#makeClient(reader, storage, name);
    this.#thread = new Thread({
      client: () => this.#client,
      request: () => ({ model: this.getAttribute("model") || DEFAULT_MODEL, stream: true }),
      historyCharacters: () => Number(this.getAttribute("history")) || HISTORY_CHARACTERS,
      store: new ConversationStore(name, { inMemory: storage === "memory" }),
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
    const text = this.#waiting;
    this.#waiting = "";
    if (text && !this.#thread.ask(text)) this.#panel.parts.question.value = text;
  }

  /** Take the conversation out of sight. Its answers go on at the gateway, and here when it comes back. */
  #leave() {
    this.#client?.close();
    this.#client = this.#thread = null;
    this.#waiting = "";
    const { log, greeting, question, status } = this.#panel.parts;
    log.replaceChildren(greeting);
    question.value = status.textContent = "";
    this.#panel.setBusy(false);
  }

  #makeClient(reader, storage, name) {
    const baseUrl = this.getAttribute("base-url");
    // A request of one reader is never sent with the token of the next.
    const own = (token) => {
      if (readerOf(token) !== reader) throw new Error("This token is another reader's.");
      return token;
    };
    return new UnbrokenClient({
      ...(baseUrl && { baseUrl: new URL(baseUrl, document.baseURI).href.replace(/\/$/, "") }),
      token: this.#token,
      refreshToken: async () => own(await this.#refresh()),
      storage,
      namespace: `chat:${name}`,
    });
  }

  /** Whether it is one that a browser may hold. */
  #take(token) {
    const isSecret = isSecretKey(token);
    this.#token = isSecret ? "" : token;
    if (isSecret) {
      console.error(SECRET_KEY_WARNING);
      this.#setProblem("error_key");
    }
    return !isSecret;
  }

  async #refresh() {
    const { signal } = this.#connection;
    const before = this.#token;
    const token = await (this.refreshToken ?? (() => this.#fetchToken()))();
    if (this.#token !== before) return this.#token; // the page was quicker, and knows better
    if (typeof token !== "string" || !token) throw new Error("There is no other token.");
    if (!this.#take(token)) throw new Error("A secret key is no token for a browser.");
    if (!signal.aborted) this.#converse();
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
