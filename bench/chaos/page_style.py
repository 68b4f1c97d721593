"""The style sheet of the report's page: light and dark, wide and narrow."""

STYLE = """
:root{color-scheme:light dark;--paper:#fbfaf7;--card:#fff;--ink:#1d2126;--soft:#5a626d;--line:#d9d6cd;
--grid:#e6e3da;--good:#1f6f3a;--bad:#a8242f;--good-paper:#e9f4ea;--bad-paper:#fbeaea;--area:#c9d8ee;
--s0:#2062b8;--s1:#b4500b;--s2:#257a35;--s3:#7444b8;--s4:#b02a3a;--s5:#0b7474;--s6:#7f631a;--s7:#a8307a}
@media (prefers-color-scheme:dark){:root{--paper:#15181c;--card:#1d2126;--ink:#e9e7e1;--soft:#a9b0ba;
--line:#363c45;--grid:#2b3038;--good:#7fd196;--bad:#ff9a9f;--good-paper:#1c2f23;--bad-paper:#3a2225;
--area:#2c456b;--s0:#7db2ff;--s1:#ffa869;--s2:#7fd18b;--s3:#c5a3ff;--s4:#ff8f98;--s5:#63d1cf;--s6:#dcc06b;
--s7:#ff9bd3}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,"Segoe UI",sans-serif}
main{max-width:940px;margin:0 auto;padding:32px 24px 64px}
h1{font-size:2rem;line-height:1.2;margin:0 0 8px;overflow-wrap:anywhere}
h2{font-size:1.25rem;margin:48px 0 8px}
h3{font-size:.9rem;font-weight:600;margin:0;color:var(--soft)}
.lead{font-size:1.15rem;font-weight:600;margin:0}
.lead.met{color:var(--good)}.lead.missed{color:var(--bad)}
.facts,.note{color:var(--soft);margin:4px 0 16px;overflow-wrap:anywhere}
.note{max-width:70ch}
.goals{list-style:none;margin:0;padding:0;display:grid;gap:12px;grid-template-columns:repeat(auto-fill,minmax(270px,1fr))}
.goals li{background:var(--card);border:1px solid var(--line);border-left:4px solid var(--good);
border-radius:6px;padding:12px 14px;display:flex;flex-direction:column;gap:4px}
.goals li.missed{border-left-color:var(--bad)}
.goals p{margin:0}.goals .value{font-weight:600;flex:1;overflow-wrap:anywhere}.goals .goal{color:var(--soft);font-size:.875rem}
.badge{display:inline-block;font-size:.8rem;font-weight:600;padding:0 8px;border-radius:10px;
background:var(--good-paper);color:var(--good)}
.missed .badge{background:var(--bad-paper);color:var(--bad)}
svg{display:block;max-width:100%;height:auto}
svg text{font:12px system-ui,"Segoe UI",sans-serif;fill:var(--soft)}
svg .strong{font-weight:600;fill:var(--ink)}
svg .lane{font-size:11px}
.bar.fault{color:var(--ink)}
.grid{stroke:var(--grid)}.limit{stroke:var(--ink);stroke-dasharray:3 3}
.curve{fill:none;stroke-width:2;stroke:currentColor}.bar,.point{fill:currentColor}
.area{fill:var(--area)}.point{stroke:var(--paper);stroke-width:1}
.s0{color:var(--s0)}.s1{color:var(--s1)}.s2{color:var(--s2)}.s3{color:var(--s3)}
.s4{color:var(--s4)}.s5{color:var(--s5)}.s6{color:var(--s6)}.s7{color:var(--s7)}
.bar.equal{color:var(--s2)}.bar.below{color:var(--s0)}.bar.above{color:var(--s4)}
.narrow{display:none}
.legend{list-style:none;margin:8px 0 0;padding:0;display:grid;gap:2px 20px;font-size:.875rem;
grid-template-columns:repeat(auto-fill,minmax(280px,1fr))}
.legend li{display:flex;gap:8px;align-items:baseline}.legend svg{flex:none}
table{border-collapse:collapse;width:100%;font-size:.9rem}
caption{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
th,td{text-align:left;vertical-align:top;padding:6px 10px 6px 0;border-bottom:1px solid var(--line)}
th{font-weight:600}tbody th[scope=row]{font-weight:400}
td{font-variant-numeric:tabular-nums}
tr.group th{padding-top:18px;border-bottom-color:var(--soft)}
a{color:var(--s0)}
.scrolled{overflow-x:auto}.scrolled th,.scrolled td{white-space:nowrap;padding-right:18px}
.all td:last-child{white-space:nowrap}
dt{font-weight:600;margin-top:12px}dd{margin:0;max-width:75ch;color:var(--soft);overflow-wrap:anywhere}
.machine{display:grid;grid-template-columns:max-content 1fr;gap:2px 16px}.machine dt{margin:0;font-weight:400}
pre{overflow-x:auto;background:var(--card);border:1px solid var(--line);border-radius:6px;padding:12px;
white-space:pre-wrap;overflow-wrap:anywhere;font-size:.85rem}
:focus-visible{outline:2px solid var(--s0);outline-offset:2px}
@media (max-width:920px){.wide{display:none}.narrow{display:block}.narrow svg{margin:0 auto}}
@media (max-width:600px){main{padding:20px 16px 48px}h1{font-size:1.5rem}h2{margin-top:36px}
.legend,.goals{grid-template-columns:1fr}
.all thead{display:none}.all,.all tbody,.all tr,.all th,.all td{display:block;border:0;padding:0}
.all tr{padding:8px 0;border-bottom:1px solid var(--line)}.all td:last-child{white-space:normal}
.all td{overflow-wrap:anywhere}.all tbody th[scope=row]{color:var(--soft);font-size:.85rem}}
@media print{body{background:#fff}section,li{break-inside:avoid}}
"""
