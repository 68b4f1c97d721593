/**
 * Where a conversation stands, for after a reload. The answers are in the client's cache; this is
 * the thread of messages and the session of the last answer. Without storage it is just forgotten.
 *
 * @typedef {{role: "user" | "assistant", content: string}} Message
 * @typedef {object} Kept
 * @property {Message[]} messages up to the last question
 * @property {string} key the idempotency key of the last question: asking again starts nothing new
 * @property {string} [session] the session of its answer, when there is one
 * @property {boolean} [isOver] whether the reader has seen it end
 */

const PREFIX = "unbroken-chat:";
const MAX_AGE = 24 * 3600 * 1000; // ms; what is older is not what the reader comes back for
const MAX_CHARACTERS = 200_000;

export class ConversationStore {
  #name;
  #kept = null;
  #inMemory;

  /** @param {string} name `reader:conversation`, which tells conversations of one origin apart */
  constructor(name, { inMemory = false } = {}) {
    this.#name = PREFIX + name;
    this.#inMemory = inMemory;
  }

  /** Whether anything is kept under a name, whoever's it is. */
  static isAnyKept(name) {
    const isOne = (key) => key.startsWith(PREFIX) && key.endsWith(`:${name}`);
    return Boolean(withStorage((storage) => Object.keys(storage).some(isOne)));
  }

  /** @returns {Kept | null} */
  load() {
    if (this.#inMemory) return this.#kept;
    const kept = parsed(withStorage((storage) => storage.getItem(this.#name)));
    return kept && Date.now() - kept.at < MAX_AGE ? kept : null;
  }

  /** @param {Kept} kept */
  save(kept) {
    if (this.#inMemory) {
      this.#kept = kept;
      return;
    }
    const messages = lastMessages(kept.messages, MAX_CHARACTERS);
    const text = JSON.stringify({ ...kept, messages, at: Date.now() });
    withStorage((storage) => storage.setItem(this.#name, text));
  }

  clear() {
    this.#kept = null;
    if (!this.#inMemory) withStorage((storage) => storage.removeItem(this.#name));
  }
}

/** The newest messages that fit into so many characters; the last one always. */
export function lastMessages(messages, characters) {
  let room = characters;
  let first = messages.length - 1;
  while (first > 0 && (room -= messages[first - 1].content.length) > 0) first -= 1;
  return messages.slice(Math.max(0, first));
}

function parsed(text) {
  try {
    const kept = JSON.parse(text);
    const isWhole = Array.isArray(kept?.messages) && kept.messages.every(isMessage);
    return isWhole && typeof kept.key === "string" ? kept : null;
  } catch {
    return null; // another version's, or somebody else's
  }
}

function isMessage(message) {
  return ["user", "assistant"].includes(message?.role) && typeof message.content === "string";
}

/** Storage may be denied, full or switched off in the middle: the chat goes on without. */
function withStorage(use) {
  try {
    return use(localStorage);
  } catch {
    return null;
  }
}
