/**
 * The chat widget, in one tag:
 *
 *     <script type="module" src="https://gateway.example/static/streaming/widget.js"
 *       data-token="ub-embed-…" data-title="Ask us"></script>
 *
 * or as an element, where the page says so: `<unbroken-chat inline></unbroken-chat>`. docs/widget.md.
 */

import { UnbrokenChat } from "./widget/element.js";

export { UnbrokenChat };
export { addStrings } from "./widget/strings.js";

const TAG = "unbroken-chat";
/** What a script tag may say as data-…, and what becomes of it. */
const OPTIONS = [
  "token", "token-url", "base-url", "model", "lang", "theme", "title", "placeholder", "greeting",
  "storage", "conversation", "history", "open",
];

if (!customElements.get(TAG)) customElements.define(TAG, UnbrokenChat);
if (document.body) mount();
else document.addEventListener("DOMContentLoaded", mount, { once: true });

/** One widget for each script tag of this module that has options: document.currentScript knows no modules. */
function mount() {
  for (const script of document.querySelectorAll("script[type=module][src]")) {
    if (script.src !== import.meta.url || !Object.keys(script.dataset).length) continue;
    const chat = document.createElement(TAG);
    for (const name of OPTIONS) {
      const value = script.getAttribute(`data-${name}`);
      if (value !== null) chat.setAttribute(name, value);
    }
    script.removeAttribute("data-token");
    document.body.append(chat);
  }
}
