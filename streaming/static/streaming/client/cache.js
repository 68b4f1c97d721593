/** What was received: in IndexedDB, or in memory where that is denied, broken or full. */

const VERSION = 1;

const settled = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = request.oncomplete = () => resolve(request.result);
    request.onerror = request.onabort = () => reject(request.error);
  });

export class Cache {
  #name;
  #limits;
  #memory = new Map(); // what storage would not take
  #opening; // the database, or null where there is none

  constructor(name, storage, limits) {
    this.#name = name;
    this.#limits = limits;
    if (storage === "memory") this.#opening = Promise.resolve(null);
  }

  async get(id) {
    return this.#memory.get(id) ?? this.#use((store) => settled(store.get(id)));
  }

  /** Newest first. */
  async list() {
    const stored = (await this.#use((store) => settled(store.getAll()))) ?? [];
    const all = new Map([...stored.map((record) => [record.id, record]), ...this.#memory]);
    return [...all.values()].sort((a, b) => b.updatedAt - a.updatedAt);
  }

  /** Keeps {id, seq, …}, unless another tab has come further with the session. */
  async put(record) {
    const { id, seq } = record;
    const bytes = 2 * JSON.stringify(record).length;
    record = { ...record, updatedAt: Date.now(), bytes };
    const put = (limit) => async (store) => {
      if ((await settled(store.get(id)))?.seq > seq) return true;
      await this.#trim(store, id, this.#limits.sessions - 1, limit - bytes);
      await settled(store.put(record));
      return true;
    };
    const { bytes: limit } = this.#limits;
    this.#memory.delete(id);
    if ((await this.#use(put(limit))) || (await this.#use(put(limit / 2)))) return;
    this.#memory.set(id, record);
    let [sessions, room] = [this.#limits.sessions, limit];
    for (const [old, { bytes }] of [...this.#memory].reverse()) {
      if (--sessions < 0 || ((room -= bytes) < 0 && old !== id)) this.#memory.delete(old);
    }
  }

  /** Forgets one session, or all. */
  async delete(id) {
    if (id) this.#memory.delete(id);
    else this.#memory.clear();
    await this.#use((store) => settled(id ? store.delete(id) : store.clear()));
  }

  async close() {
    (await this.#opening)?.close();
    this.#opening = null;
  }

  /** Lets the least recently used go, by the sizes in the index. */
  async #trim(store, kept, sessions, bytes) {
    const request = store.index("use").openKeyCursor(null, "prev");
    for (let cursor; (cursor = await settled(request)); cursor.continue()) {
      if (cursor.primaryKey === kept) continue;
      bytes -= cursor.key[1];
      if (--sessions < 0 || bytes < 0) store.delete(cursor.primaryKey);
    }
  }

  /** What `work` gives; undefined where storage fails. */
  async #use(work) {
    try {
      const db = await (this.#opening ??= this.#open());
      if (!db) return;
      const transaction = db.transaction("answers", "readwrite");
      const [result] = await Promise.all([work(transaction.objectStore("answers")), settled(transaction)]);
      return result;
    } catch {
      return undefined;
    }
  }

  async #open() {
    try {
      const request = indexedDB.open(this.#name, VERSION);
      request.onupgradeneeded = () => {
        const db = request.result;
        for (const name of db.objectStoreNames) db.deleteObjectStore(name); // it is only a cache
        db.createObjectStore("answers", { keyPath: "id" }).createIndex("use", ["updatedAt", "bytes"]);
      };
      // Some browsers never answer where storage is blocked.
      const impatience = new Promise((resolve) => setTimeout(resolve, 2000, null));
      const db = await Promise.race([settled(request), impatience]);
      // For another tab's newer version.
      if (db) db.onversionchange = db.onclose = () => void this.close();
      return db;
    } catch {
      return null; // none here, or not for us
    }
  }
}
