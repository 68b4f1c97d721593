/**
 * What was received, kept over reloads: in IndexedDB, or in memory where that is denied, broken or
 * full. A cache and never the record: whatever is lost here, the gateway has.
 */

const VERSION = 1;
const STORE = "answers";
const PATIENCE_MS = 2000; // some browsers never answer when storage is blocked

const settled = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = request.oncomplete = () => resolve(request.result);
    request.onerror = request.onabort = () => reject(request.error);
  });

export class Cache {
  #name;
  #limits;
  #memory = new Map(); // by session id, what storage would not take
  #opening = null; // a promise of the database; null in it: there is none

  /** @param {{name: string, storage: string, sessions: number, bytes: number}} options */
  constructor({ name, storage, ...limits }) {
    this.#name = name;
    this.#limits = limits;
    if (storage === "memory") this.#opening = Promise.resolve(null);
  }

  async get(id) {
    return this.#memory.get(id) ?? (await this.#use("readonly", (store) => settled(store.get(id)))) ?? null;
  }

  /** Newest first. */
  async list() {
    const stored = (await this.#use("readonly", (store) => settled(store.getAll()))) ?? [];
    const all = new Map([...stored.map((record) => [record.id, record]), ...this.#memory]);
    return [...all.values()].sort((a, b) => b.updatedAt - a.updatedAt);
  }

  /** Keeps `record` ({id, seq, text, …}), unless another tab has come further with the session. */
  async put(record) {
    const bytes = 2 * JSON.stringify(record).length;
    record = { ...record, updatedAt: Date.now(), bytes };
    for (const limit of [this.#limits.bytes, this.#limits.bytes / 2]) {
      const taken = await this.#use("readwrite", async (store) => {
        if ((await settled(store.get(record.id)))?.seq > record.seq) return true;
        // Room first: a full store takes nothing.
        await this.#trim(store, { sessions: this.#limits.sessions - 1, bytes: limit - bytes }, record.id);
        await settled(store.put(record));
        return true;
      });
      if (taken) return void this.#memory.delete(record.id);
    }
    this.#memory.delete(record.id);
    this.#memory.set(record.id, record);
    let room = this.#limits.bytes;
    for (const [id, { bytes }] of [...this.#memory].reverse()) {
      room -= bytes;
      if (room < 0 && id !== record.id) this.#memory.delete(id);
    }
    if (this.#memory.size > this.#limits.sessions) this.#memory.delete(this.#memory.keys().next().value);
  }

  /** Forgets one session, or all. */
  async delete(id) {
    if (id === undefined) this.#memory.clear();
    else this.#memory.delete(id);
    await this.#use("readwrite", (store) => settled(id === undefined ? store.clear() : store.delete(id)));
  }

  async close() {
    (await this.#opening)?.close();
    this.#opening = null;
  }

  /** The least recently used beyond the limits are let go. Reads no texts: the index has the sizes. */
  async #trim(store, room, kept) {
    const request = store.index("use").openKeyCursor(null, "prev");
    await new Promise((resolve, reject) => {
      request.onerror = () => reject(request.error);
      request.onsuccess = () => {
        const cursor = request.result;
        if (!cursor) return resolve();
        if (cursor.primaryKey !== kept) {
          room.sessions -= 1;
          room.bytes -= cursor.key[1];
          if (room.sessions < 0 || room.bytes < 0) store.delete(cursor.primaryKey);
        }
        cursor.continue();
      };
    });
  }

  /** Runs `work` in a transaction; undefined where storage would not. */
  async #use(mode, work) {
    try {
      this.#opening ??= this.#open();
      const db = await this.#opening;
      if (!db) return undefined;
      const transaction = db.transaction(STORE, mode);
      const complete = settled(transaction);
      complete.catch(() => {}); // `work` fails first, and says more
      const result = await work(transaction.objectStore(STORE));
      await complete;
      return result;
    } catch {
      return undefined; // denied, full or broken: the caller goes on in memory
    }
  }

  async #open() {
    let timer;
    const impatience = new Promise((resolve) => {
      timer = setTimeout(resolve, PATIENCE_MS, null);
    });
    try {
      const request = indexedDB.open(this.#name, VERSION);
      request.onupgradeneeded = () => {
        const db = request.result;
        for (const name of db.objectStoreNames) db.deleteObjectStore(name); // it is only a cache
        db.createObjectStore(STORE, { keyPath: "id" }).createIndex("use", ["updatedAt", "bytes"]);
      };
      const db = await Promise.race([settled(request), impatience]);
      if (db) {
        // Another tab brings a newer version, or the browser clears its storage.
        db.onversionchange = db.onclose = () => {
          db.close();
          this.#opening = null;
        };
      }
      return db;
    } catch {
      return null; // no IndexedDB here, or not for us
    } finally {
      clearTimeout(timer);
    }
  }
}
