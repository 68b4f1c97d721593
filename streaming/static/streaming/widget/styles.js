/**
 * The widget's style sheet, adopted by its shadow roots: pages that allow no styles but their own
 * (style-src 'none') allow this. docs/widget.md lists the --unbroken-… variables.
 */

const CSS = `
:host {
  all: initial; display: contents; color-scheme: light dark;
  --accent: var(--unbroken-accent, light-dark(#0f766e, #2dd4bf));
  --accent-text: var(--unbroken-accent-text, light-dark(#fff, #06231f));
  --ground: var(--unbroken-background, light-dark(#fff, #171e26));
  --raised: var(--unbroken-surface, light-dark(#eef2f3, #232d38));
  --text: var(--unbroken-text, light-dark(#1a2430, #e4eaf0));
  --soft: var(--unbroken-text-soft, light-dark(#566371, #a3b0bd));
  --line: var(--unbroken-line, light-dark(#dde3e8, #33404d));
  --question: var(--unbroken-question, light-dark(#d9efec, #12383a));
  --question-text: var(--unbroken-question-text, var(--text));
  --danger: var(--unbroken-danger, light-dark(#b42318, #f8a49a));
  --danger-ground: var(--unbroken-danger-background, light-dark(#fdecea, #3a1d1c));
  --warning: var(--unbroken-warning, light-dark(#92400e, #fbbf24));
  --warning-ground: var(--unbroken-warning-background, light-dark(#fdf0d5, #3a2d10));
  --radius: var(--unbroken-radius, 16px);
  --shadow: var(--unbroken-shadow, 0 2px 6px rgb(16 32 48 / 12%), 0 12px 40px rgb(16 32 48 / 18%));
  --edge: var(--unbroken-offset, 20px);
  font: var(--unbroken-font-size, 15px)/1.55 var(--unbroken-font, system-ui, -apple-system, "Segoe UI", Roboto,
    "Helvetica Neue", "Noto Sans", Arial, "Hiragino Sans", "Noto Sans CJK JP", sans-serif);
}
:host([theme="light"]) { color-scheme: light; }
:host([theme="dark"]) { color-scheme: dark; }
:host([hidden]), [hidden] { display: none !important; }
:host([inline]) { display: block; height: var(--unbroken-height, 600px); max-height: 100%; }

* { box-sizing: border-box; }
h2, h3, h4, h5, h6, p, ul, ol, blockquote, pre { margin: 0; }
button, textarea { font: inherit; color: inherit; }
button { cursor: pointer; touch-action: manipulation; }
:focus { outline: none; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
.icon { display: block; width: 1.25em; height: 1.25em; fill: none; stroke: currentColor; stroke-width: 2;
  stroke-linecap: round; stroke-linejoin: round; }
.icon.stop { fill: currentColor; }
[dir="rtl"] :is(.icon.previous, .icon.next) { transform: scaleX(-1); }
.hidden { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
.root { color: var(--text); height: 100%; }

.launcher {
  position: fixed; z-index: var(--unbroken-z-index, 2147483000);
  inset-block-end: calc(var(--edge) + env(safe-area-inset-bottom)); inset-inline-end: var(--edge);
  display: grid; place-items: center; width: 56px; height: 56px; padding: 0; border: 0; border-radius: 50%;
  background: var(--accent); color: var(--accent-text); box-shadow: var(--shadow); font-size: 20px;
  transition: transform .15s;
}
.launcher:hover { transform: scale(1.05); }
.launcher:focus-visible { outline-offset: 3px; }
.launcher.busy::after {
  content: ""; position: absolute; inset: -4px; border: 2px solid transparent; border-block-start-color: var(--accent);
  border-radius: 50%; animation: turn 1s linear infinite;
}

.panel { display: flex; flex-direction: column; overflow: hidden; background: var(--ground); position: relative;
  border: 1px solid var(--line); border-radius: var(--radius); }
.floating .panel {
  position: fixed; z-index: var(--unbroken-z-index, 2147483000);
  inset-block-end: calc(var(--edge) + 70px + env(safe-area-inset-bottom)); inset-inline-end: var(--edge);
  width: min(var(--unbroken-width, 400px), calc(100vw - 2 * var(--edge)));
  height: min(var(--unbroken-height, 640px), calc(100dvh - 2 * var(--edge) - 76px));
  box-shadow: var(--shadow); animation: rise .18s ease-out;
}
.inline .panel { height: 100%; }

.head { display: flex; align-items: center; gap: 2px; padding: 10px 10px 10px 18px; border-block-end: 1px solid var(--line); }
[dir="rtl"] .head { padding: 10px 18px 10px 10px; }
.head h2 { flex: 1; min-width: 0; overflow: hidden; font-size: 1.07em; font-weight: 650; line-height: 1.3;
  text-overflow: ellipsis; white-space: nowrap; }
.quiet { display: inline-grid; grid-auto-flow: column; align-items: center; gap: 5px; min-width: 32px; height: 32px; padding: 0 7px;
  border: 0; border-radius: 8px; background: none; color: var(--soft); font-size: .87em; line-height: 1; }
.head .quiet { width: 36px; height: 36px; font-size: 1em; }
.quiet:hover:not(:disabled) { background: var(--raised); color: var(--text); }
.quiet:disabled { opacity: .45; cursor: default; }

.offline { padding: 7px 18px; background: var(--warning-ground); color: var(--warning); font-size: .87em; line-height: 1.4; }

.log { flex: 1; min-height: 0; overflow-y: auto; overscroll-behavior: contain; padding: 18px; scrollbar-width: thin;
  scrollbar-color: var(--line) transparent; }
.log:focus-visible { outline-offset: -3px; border-radius: 4px; }
.inline .log > * { max-width: 46rem; margin-inline: auto; }
.greeting { margin-block-end: 18px; white-space: pre-wrap; overflow-wrap: anywhere; }

.message { margin-block-end: 14px; line-break: strict; overflow-wrap: anywhere; }
.question { display: flex; justify-content: flex-end; }
.question .body { max-width: 85%; padding: 8px 14px; border-radius: 16px; border-end-end-radius: 4px;
  background: var(--question); color: var(--question-text); white-space: pre-wrap; unicode-bidi: isolate; }

.body { unicode-bidi: isolate; }
.answer .body > * + * { margin-block-start: .75em; }
.answer .body > .continued { margin-block-start: 0; border-start-start-radius: 0; border-start-end-radius: 0; padding-block-start: 0; }
.answer :is(p, li, td, th) { white-space: pre-wrap; }
.answer :is(ul, ol) { padding-inline-start: 1.6em; }
.answer :is(li + li, li > ul, li > ol) { margin-block-start: .25em; }
.answer :is(h3, h4, h5, h6) { font-size: 1.06em; font-weight: 650; line-height: 1.35; }
.answer strong { font-weight: 650; }
.answer a { color: var(--accent); text-underline-offset: 3px; }
.answer hr { border: 0; border-block-start: 1px solid var(--line); }
.answer blockquote { padding-inline-start: .9em; border-inline-start: 3px solid var(--line); color: var(--soft); }
.answer code, .answer pre { font-family: var(--unbroken-mono, ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace);
  font-size: .92em; }
.answer :not(pre) > code { padding: .1em .35em; border-radius: 5px; background: var(--raised); unicode-bidi: isolate; }
.answer pre { overflow-x: auto; padding: 10px 14px 12px; border-radius: 10px; background: var(--raised); line-height: 1.5;
  white-space: pre; text-align: left; scrollbar-width: thin; }
.answer pre:focus-visible, .answer .table:focus-visible { outline-offset: -2px; }
.answer .code-head { display: flex; align-items: center; justify-content: space-between; direction: ltr; min-height: 34px;
  padding: 2px 6px 0 14px; border-radius: 10px 10px 0 0; background: var(--raised); color: var(--soft); font-size: .84em; user-select: none; }
.answer .code-head + pre { margin-block-start: 0; padding-block-start: 2px; border-radius: 0 0 10px 10px; }
.answer .code-head .quiet:hover { background: var(--ground); }
.answer .table { overflow-x: auto; scrollbar-width: thin; }
.answer table { border-collapse: collapse; font-size: .95em; }
.answer :is(th, td) { padding: 5px 10px; border: 1px solid var(--line); text-align: start; vertical-align: top;
  min-width: 4.5em; overflow-wrap: normal; }
.answer th { background: var(--raised); font-weight: 650; }
.control { unicode-bidi: isolate; }
.control::before { content: attr(data-code); padding: 0 .3em; border-radius: 4px; background: var(--warning-ground);
  color: var(--warning); font-size: .8em; }

/* The place where the next word will appear. */
.answer.streaming .body > :last-child:is(p, h3, h4, h5, h6)::after {
  content: ""; display: inline-block; width: .5em; height: 1em; margin-inline-start: .15em; border-radius: 2px;
  background: var(--accent); vertical-align: -.12em; animation: breathe 1.1s ease-in-out infinite;
}

/* What runs or what can be done, in one place of one height: nothing jumps at the end. */
.foot { display: flex; flex-wrap: wrap; align-items: center; gap: 0 2px; min-height: 32px; margin-block-start: 4px;
  margin-inline-start: -7px; color: var(--soft); font-size: .93em; }
.foot .state { display: flex; align-items: center; gap: 8px; padding-inline: 7px; font-size: .93em; }
.foot .state::before { content: ""; width: 8px; height: 8px; flex: none; border-radius: 50%; background: var(--accent); }
.foot .state[data-state="stopped"]::before { border-radius: 2px; background: var(--soft); }
.foot .state:is([data-state="connecting"], [data-state="thinking"])::before { animation: breathe 1.1s ease-in-out infinite; }
.foot .state:is([data-state="unreachable"], [data-state="reconnecting"], [data-state="recovering"]) { color: var(--warning); }
.foot .state:is([data-state="unreachable"], [data-state="reconnecting"], [data-state="recovering"])::before { background: var(--warning); animation: breathe .8s ease-in-out infinite; }
.foot .icon, .code-head .icon { width: 17px; height: 17px; }
.foot .count { padding-inline: 2px; font-variant-numeric: tabular-nums; font-size: .87em; white-space: nowrap; }

.notice { margin-block-start: 8px; padding: 9px 13px; border-radius: 10px; background: var(--danger-ground); color: var(--danger); font-size: .93em; }
.notice.mild { background: var(--raised); color: var(--soft); }
.notice .reference { margin-block-start: 3px; font-size: .93em; unicode-bidi: isolate; user-select: all; }
.notice button { margin-block-start: 8px; padding: 5px 12px; border: 1px solid currentColor; border-radius: 8px; background: none; }
.setup { margin: 18px; }

.latest { position: absolute; inset-inline: 0; margin-inline: auto; inset-block-end: 82px; width: 36px; height: 36px; display: grid;
  place-items: center; padding: 0; border: 1px solid var(--line); border-radius: 50%; background: var(--ground); color: var(--text);
  box-shadow: 0 2px 8px rgb(16 32 48 / 18%); }

.composer { display: flex; align-items: flex-end; gap: 8px; padding: 12px; border-block-start: 1px solid var(--line); }
.inline .composer { padding-inline: max(12px, calc((100% - 46rem) / 2)); }
.composer textarea { flex: 1; min-width: 0; min-height: 42px; max-height: 9.5em; padding: 9px 14px; resize: none; field-sizing: content;
  border: 1px solid light-dark(#8795a3, #6b7a89); border-radius: 12px; background: var(--ground); line-height: 1.45; }
.composer textarea:focus-visible { outline-offset: -1px; }
.composer textarea::placeholder { color: var(--soft); opacity: 1; }
.composer button { flex: none; display: grid; place-items: center; width: 42px; height: 42px; padding: 0; border: 0; border-radius: 12px;
  background: var(--accent); color: var(--accent-text); }
.composer button.stop { background: var(--raised); color: var(--text); }
.composer button:disabled { opacity: .5; cursor: default; }
.composer textarea:disabled { opacity: .6; }

@keyframes breathe { 50% { opacity: .3; } }
@keyframes turn { to { transform: rotate(1turn); } }
@keyframes rise { from { opacity: 0; transform: translateY(10px); } }

@media (max-width: 480px) {
  .floating .panel {
    inset: auto 0 auto 0; top: var(--view-top, 0px); width: 100%; height: var(--view-height, 100dvh); border: 0; border-radius: 0;
    padding: env(safe-area-inset-top) env(safe-area-inset-right) env(safe-area-inset-bottom) env(safe-area-inset-left);
  }
  .floating .launcher[aria-expanded="true"] { display: none; }
  .composer textarea { font-size: max(16px, 1em); } /* smaller, and iOS zooms in */
}
@media (prefers-reduced-motion: reduce) { *, ::before, ::after { animation: none !important; transition: none !important; } }
@media (forced-colors: active) { .launcher, .composer button, .quiet { border: 1px solid ButtonText; } }
`;

let sheet = null;

/** @param {ShadowRoot} root */
export function dress(root) {
  if (!sheet) {
    sheet = new CSSStyleSheet();
    sheet.replaceSync(CSS);
  }
  root.adoptedStyleSheets = [sheet];
}
