/** The cards of the engine nodes: how each is, which one is answering, and the button that kills it. */

const POLL_MS = 1000;

export class Nodes {
  #config;
  #list;
  #problem;
  #killed;
  #cards = new Map();
  #serving = "";
  #doing = "";
  #timer = 0;

  /** @param {(name: string) => void} killed called when the visitor has killed a node */
  constructor(config, list, problem, killed) {
    this.#config = config;
    this.#list = list;
    this.#problem = problem;
    this.#killed = killed;
    document.addEventListener("visibilitychange", () => this.#schedule(0));
    this.#schedule(0);
  }

  /** Which node is answering now ("" for none), and what it is doing, in words. */
  serving(name, doing = "") {
    this.#serving = name;
    this.#doing = doing;
    for (const card of this.#cards.values()) this.#show(card);
  }

  #schedule(delay) {
    clearTimeout(this.#timer);
    if (!document.hidden) this.#timer = setTimeout(() => this.#poll(), delay);
  }

  async #poll() {
    try {
      const response = await fetch(this.#config.nodes, { headers: { Accept: "application/json" } });
      if (!response.ok) throw new Error(`HTTP ${response.status}`);
      this.#update(await response.json());
      this.#problem.hidden = true;
    } catch (error) {
      this.#problem.textContent = `The state of the engines is not known (${error.message}).`;
      this.#problem.hidden = false;
    }
    this.#schedule(POLL_MS);
  }

  #update(rows) {
    const names = new Set(rows.map((row) => row.name));
    for (const [name, card] of this.#cards) {
      if (!names.has(name)) {
        card.item.remove();
        this.#cards.delete(name);
      }
    }
    for (const row of rows) {
      const card = this.#cards.get(row.name) ?? this.#add(row.name);
      card.row = row;
      this.#show(card);
    }
    if (!rows.length) this.#list.textContent = "";
  }

  #add(name) {
    const item = element("li", "node");
    const head = element("div", "head", item);
    element("span", "dot", head);
    element("h3", "", head).textContent = name;
    const state = element("span", "state", head);
    const model = element("p", "model", item);
    const kill = element("button", "kill", item);
    kill.type = "button";
    kill.textContent = "Kill this engine";
    kill.setAttribute("aria-label", `Kill engine ${name} (SIGKILL)`);
    kill.title = "SIGKILL: no warning, no clean-up";
    kill.addEventListener("click", () => this.#kill(name));
    this.#list.append(item);
    const card = { item, state, model, kill, row: null };
    this.#cards.set(name, card);
    return card;
  }

  #show({ item, state, model, kill, row }) {
    if (!row) return;
    const [kind, words] = condition(row);
    const serving = row.name === this.#serving;
    item.dataset.state = kind;
    item.classList.toggle("serving", serving);
    state.textContent = serving ? this.#doing : words;
    model.textContent = [row.model, row.dialect].filter(Boolean).join(" · ");
    kill.hidden = row.killable === null;
    kill.disabled = row.killable !== true;
  }

  async #kill(name) {
    const card = this.#cards.get(name);
    card.kill.disabled = true;
    const url = `${this.#config.nodes}/${encodeURIComponent(name)}/kill`;
    try {
      const response = await fetch(url, {
        method: "POST",
        headers: { "X-CSRFToken": this.#config.csrf },
      });
      if (response.ok) this.#killed(name);
    } finally {
      this.#schedule(0);
    }
  }
}

/** A word for the style sheet, and what to tell people. */
function condition({ health, killable, admin_state: wanted }) {
  if (killable === false) return ["dead", "dead, restarting"];
  if (wanted !== "active") return ["drained", wanted];
  if (health === "up") return ["up", "ready"];
  if (health === "unknown") return ["waiting", "not probed yet"];
  return killable ? ["waiting", "starting"] : ["dead", health];
}

function element(tag, className, parent) {
  const node = document.createElement(tag);
  node.className = className;
  parent?.append(node);
  return node;
}
