// The page in the iframe: takes the token from the page around it, and from no other.
//
//   frame: {type: "unbroken:ready"}             it listens
//   page:  {type: "unbroken:token", token, conversation?}   first, and whenever the frame needs another
//   frame: {type: "unbroken:token-needed"}      the token has expired
//
// The frames of all tenants and of all users of a browser share one storage: only a conversation that
// the page has named outlives the frame.
//
// Messages go to the parent's exact origin, and come from it.

const parents = document
  .querySelector('meta[name="unbroken-parents"]')
  .content.split(" ")
  .filter((origin) => origin !== "");
const tenant = document.querySelector('meta[name="unbroken-tenant"]').content;
const chat = document.createElement("unbroken-chat");
chat.id = "chat";
chat.setAttribute("inline", "");

/** @type {((token: string) => void)[]} who waits for the next token */
const waiting = [];

/** The origins that the page around us may have: one, where the browser tells which. */
function candidates() {
  const around = window.location.ancestorOrigins?.[0] ?? originOf(document.referrer);
  if (around === undefined) return parents;
  return parents.includes(around) ? [around] : [];
}

/** @param {string} address */
function originOf(address) {
  return URL.canParse(address) ? new URL(address).origin : undefined;
}

/** @param {{type: string}} message */
function tell(message) {
  for (const origin of candidates()) window.parent.postMessage(message, origin);
}

window.addEventListener("message", (event) => {
  if (event.source !== window.parent || !parents.includes(event.origin)) return;
  const message = event.data;
  if (message?.type !== "unbroken:token" || typeof message.token !== "string") return;
  converse(typeof message.conversation === "string" ? message.conversation : "", message.token);
  for (const resolve of waiting.splice(0)) resolve(message.token);
});

/** Show this conversation: it is another one when another user has logged in. */
function converse(name, token) {
  const conversation = name && `${tenant}:${name}`;
  const isOther = !chat.isConnected || (chat.getAttribute("conversation") ?? "") !== conversation;
  if (isOther) chat.remove();
  chat.token = token;
  if (!isOther) return;
  chat.setAttribute("storage", name ? "indexeddb" : "memory");
  if (name) chat.setAttribute("conversation", conversation);
  else chat.removeAttribute("conversation");
  document.body.append(chat);
}

/** What the widget calls when its token has expired. */
chat.refreshToken = () =>
  new Promise((resolve) => {
    waiting.push(resolve);
    tell({ type: "unbroken:token-needed" });
  });

if (window.parent !== window) tell({ type: "unbroken:ready" });
