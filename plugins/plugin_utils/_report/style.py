# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How a report looks: one style sheet, light and dark, from a phone to a wall, and on paper."""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #f7f6f2; --card: #ffffff; --ink: #16191d; --soft: #5a616b; --rule: #dcdad3; --track: #e6e4dd;
  --good: #00734f; --bad: #b3321b; --warn: #8a5a00; --calm: #2b5c8a;
  --c0: #0a5fa8; --c1: #c2410c; --c2: #00795b; --c3: #a3326f; --c4: #7a6100; --c5: #0e7490; --c6: #565b63;
    --c7: #6d3fc0;
  --h0: #f3c1b3; --h1: #f7ddc6; --h2: #eeeee6; --h3: #d6e8df; --h4: #b2d8c8;
  --s2: #e4edf6; --s3: #c6dcef; --s4: #9cc6ea;
  --mono: ui-monospace, "SF Mono", "Cascadia Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #0f1215; --card: #171b20; --ink: #eceae4; --soft: #9aa2ad; --rule: #2b3138; --track: #2a3037;
    --good: #4cc79a; --bad: #ff8468; --warn: #e8b04a; --calm: #7db4e6;
    --c0: #6db3f2; --c1: #ff9560; --c2: #4cc79a; --c3: #ef8fc0; --c4: #dcc04a; --c5: #5cc8dd; --c6: #b4bac3;
      --c7: #b79cf5;
    --h0: #5e2a1f; --h1: #4d3a26; --h2: #2c3138; --h3: #20423a; --h4: #1b5746;
    --s2: #1c2935; --s3: #213b54; --s4: #265179;
  }
}
* { box-sizing: border-box; }
html { font-size: 16px; background: var(--paper); color: var(--ink); }
body { margin: 0 auto; max-width: 92rem; padding: 0 clamp(1rem, 3vw, 4rem) 4rem;
  font-family: system-ui, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif; line-height: 1.45; }
code, pre, .tick, .when { font-family: var(--mono); font-size: 0.86em; }
code { overflow-wrap: anywhere; }
h1, h2, p, dl, ol, ul, figure, blockquote { margin: 0; padding: 0; }
h2 { font-size: 0.8rem; letter-spacing: 0.12em; text-transform: uppercase; color: var(--soft); font-weight: 600;
  border-top: 2px solid var(--ink); padding-top: 0.5rem; margin-bottom: 0.9rem; }
section { margin-top: 2.6rem; }
section > p { margin-top: 0.6rem; }
.facts { color: var(--soft); font-size: 0.92rem; }
.warn { color: var(--warn); }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
.defs { position: absolute; }
:focus-visible { outline: 3px solid var(--calm); outline-offset: 2px; }

.verdict { --tone: var(--calm); padding-top: 1.6rem; }
.succeeded .verdict { --tone: var(--good); }
.failed .verdict, .lost .verdict { --tone: var(--bad); }
.timed_out .verdict { --tone: var(--warn); }
.job { color: var(--soft); display: flex; flex-wrap: wrap; gap: 0 1rem; font-size: 0.92rem; font-weight: 600; }
.job span { font-family: var(--mono); font-weight: 400; overflow-wrap: anywhere; }
h1 { display: flex; gap: 1.1rem; align-items: flex-start; margin-top: 0.9rem; font-weight: 680;
  letter-spacing: -0.015em;
  font-size: clamp(1.5rem, 1rem + 2.1vw, 3rem); line-height: 1.15; text-wrap: balance; overflow-wrap: anywhere; }
h1 > span:last-child { min-width: 0; }
.mark { flex: none; width: 1.6em; height: 1.6em; margin-top: -0.18em; border-radius: 0.3em; background: var(--tone);
  display: grid; place-items: center; }
.mark svg { width: 62%; height: 62%; fill: none; stroke: var(--card); stroke-width: 3.2; stroke-linecap: round;
  stroke-linejoin: round; }
blockquote { margin-top: 1.1rem; padding: 0.7rem 1rem; border-left: 4px solid var(--tone); background: var(--card); }
.next { margin-top: 1rem; }
.verdict > .warn { margin-top: 0.7rem; }
pre { margin: 0.4rem 0 0; padding: 0.6rem 0.9rem; background: var(--card); border: 1px solid var(--rule);
  border-radius: 0.35rem; white-space: pre-wrap; overflow-wrap: anywhere; }

.tiles { display: flex; flex-wrap: wrap; gap: 1px;
  background: var(--card);
  border: 1px solid var(--rule); overflow: hidden; }
.tiles > div { flex: 1 1 8.2rem; box-shadow: 0 0 0 1px var(--rule); padding: 0.8rem 1rem; display: flex;
  flex-direction: column; }
.tiles dt { color: var(--soft); font-size: 0.8rem; }
.tiles dd { margin: 0; font-size: 1.75rem; font-weight: 650; letter-spacing: -0.02em; overflow-wrap: anywhere;
  font-variant-numeric: tabular-nums; }

.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 21rem), 1fr)); gap: 1.4rem 2rem; }
figcaption { display: flex; flex-wrap: wrap; align-items: baseline; gap: 0 0.7rem; }
.name { font-weight: 650; }
.last { font-size: 1.5rem; font-weight: 650; letter-spacing: -0.02em; font-variant-numeric: tabular-nums; }
.last small { font-size: 0.8rem; font-weight: 400; letter-spacing: 0; color: var(--soft); }
.reach { flex-basis: 100%; color: var(--soft); font-size: 0.8rem; }
.plot { display: grid; grid-template-columns: max-content minmax(0, 1fr); }
.plot > svg, .strip svg { display: block; overflow: visible; }
.grid, .mark-of-time { stroke: var(--rule); stroke-width: 1; }
.faint { fill: none; stroke: var(--tone); stroke-width: 1; opacity: 0.2; stroke-linejoin: round; }
.tick { fill: var(--soft); font-size: 11px; paint-order: stroke; stroke: var(--paper); stroke-width: 3px; }
.line { fill: none; stroke: var(--tone); stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.line:hover { stroke-width: 4; }
.thin { stroke-width: 1.5; }
.band { fill: var(--c0); opacity: 0.22; }
.dot { fill: var(--tone); stroke: var(--paper); stroke-width: 1.5; }
.odd { fill: var(--bad); font-size: 12px; font-weight: 700; }
.l0 { --tone: var(--c0); } .l1 { --tone: var(--c1); stroke-dasharray: 7 4; }
.l2 { --tone: var(--c2); stroke-dasharray: 2 4; }
.l3 { --tone: var(--c3); stroke-dasharray: 10 3 2 3; } .l4 { --tone: var(--c4); stroke-dasharray: 14 5; }
.l5 { --tone: var(--c5); stroke-dasharray: 4 2; } .l6 { --tone: var(--c6); stroke-dasharray: 1 3; }
.l7 { --tone: var(--c7); stroke-dasharray: 10 3 2 3 2 3; }
.dot, .faint { stroke-dasharray: none; }
.keys { list-style: none; display: flex; flex-wrap: wrap; gap: 0.1rem 1.1rem; font-size: 0.84rem;
  color: var(--soft); }
h2 + .keys { margin-bottom: 0.9rem; }
.keys li { display: flex; align-items: center; gap: 0.4rem; }

table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; }
.wide th, .wide td { text-align: left; vertical-align: top; padding: 0.4rem 0.9rem 0.4rem 0;
  border-bottom: 1px solid var(--rule); }
.wide thead th { color: var(--soft); font-size: 0.8rem; font-weight: 600; }
.wide tbody th { font-weight: 600; }
.state { white-space: nowrap; font-weight: 600; color: var(--soft); }
.state.succeeded { color: var(--good); } .state.failed { color: var(--bad); } .state.saved { color: var(--calm); }
.cells td, .cells th { white-space: nowrap; }
.ranks td:not(:last-child) { white-space: nowrap; }
.ranks td[data-head="node"] { white-space: normal; overflow-wrap: anywhere; max-width: 15rem; }
.reasons { font-size: 0.92rem; } .reasons tbody th { width: 45%; font-weight: 400; }
details { margin-top: 0.6rem; }
summary { cursor: pointer; color: var(--soft); font-size: 0.88rem; }

.lanes th, .lanes td { padding: 0.12rem 0; font-weight: 400; text-align: left; font-size: 0.88rem; }
.lanes th { white-space: nowrap; padding-right: 1rem; width: 1%; color: var(--soft); }
.lanes .long { white-space: normal; overflow-wrap: anywhere; min-width: 15rem; }
.lanes .what { padding-left: 1rem; width: 25%; color: var(--soft); }
.lanes .heading th, .lanes .node th { font-weight: 650; color: var(--ink); }
.lanes .heading th, tr:not(.node) + .node > * { padding-top: 0.7rem !important; }
.lanes .heading td { padding-top: 0.7rem; }
.ruler .strip { border-top: 1px solid var(--rule); }
.track { fill: var(--track); }
.bar { fill: var(--c6); }
.bar.succeeded { fill: var(--good); } .bar.failed { fill: var(--bad); } .bar.saved { fill: var(--calm); }
.bar.ended { fill: var(--c6); } .bar.silent { fill: var(--track); }
.bar.starting { fill: var(--h1); } .bar.running { fill: var(--c0); } .bar.ending { fill: var(--c3); }
.bar.epoch0 { fill: var(--c0); opacity: 0.75; } .bar.epoch1 { fill: var(--c0); opacity: 0.35; }
.hatch { fill: none; stroke: var(--paper); stroke-width: 1.4; opacity: 0.75; }

.events { list-style: none; border-left: 3px solid var(--rule); }
.events li { display: grid; grid-template-columns: 9.5em 1.4em 1fr; gap: 0.3rem; padding: 0.22rem 0 0.22rem 0.9rem; }
.events span { min-width: 0; overflow-wrap: anywhere; }
.events .when { color: var(--soft); }
.events .first { background: var(--card); box-shadow: -3px 0 0 var(--bad); }
.events em { font-style: normal; font-weight: 650; color: var(--bad); }
.events + div { margin-top: 1.2rem; }

.pairs { display: grid; grid-template-columns: max-content 1fr; gap: 0.25rem 1.4rem; }
.pairs dt { color: var(--soft); } .pairs dd { margin: 0; font-family: var(--mono); font-size: 0.88em;
  overflow-wrap: anywhere; }
.heat { width: auto; } .heat td, .heat th { padding: 0.45rem 0.7rem; white-space: nowrap;
  border: 2px solid var(--paper); }
.heat td, .heat thead th:not(:first-child) { text-align: right; }
.share { display: block; padding: 0 0.4rem; border-radius: 0.2rem; }
.s0 { color: var(--soft); } .s2 { background: var(--s2); } .s3 { background: var(--s3); }
.s4 { background: var(--s4); font-weight: 650; }
.h0 { background: var(--h0); } .h1 { background: var(--h1); } .h2 { background: var(--h2); }
.h3 { background: var(--h3); }
.h4 { background: var(--h4); }
footer { margin-top: 3rem; color: var(--soft); font-size: 0.84rem; }

@media (max-width: 44rem) {
  .tiles > div { flex-basis: 40%; } .tiles dd { font-size: 1.4rem; }
  .ranks thead, .reasons thead { display: none; }
  .ranks tr, .reasons tr { display: block; padding: 0.5rem 0; border-bottom: 1px solid var(--rule); }
  .ranks tr > *:not(:last-child) { display: inline-block !important; margin-right: 1rem; }
  .ranks td::before { min-width: 0 !important; margin-right: 0.4em; }
  .ranks th, .ranks td, .reasons th, .reasons td { display: block; border: 0; padding: 0.05rem 0; width: auto; }
  .ranks th::before { content: "rank "; }
  .reasons tbody th { width: auto; }
  .ranks td::before, .reasons td::before { content: attr(data-head) " "; color: var(--soft); display: inline-block;
    min-width: 5.5em; }
  .ranks td:empty { display: none; }
  .lanes, .lanes tbody { display: block; }
  .lanes tr { display: grid; grid-template-columns: minmax(0, auto) minmax(0, 1fr); }
  .lanes .long { grid-column: 1 / 3; min-width: 0; } .lanes .long ~ .strip { grid-row: 3; }
  .lanes .long ~ .what { grid-column: 1 / 3; }
  .lanes .heading .strip:has(.track:only-child) { display: none; }
  .lanes .strip { grid-column: 1 / 3; grid-row: 2; } .lanes .what { text-align: right; width: auto; }
  .events li { grid-template-columns: 1.4em 1fr; } .events .when { grid-column: 1 / 3; }
  .pairs { grid-template-columns: 1fr; gap: 0; } .pairs dd { margin-bottom: 0.5rem; }
}
@media (min-width: 2200px) {
  body { zoom: 1.25; max-width: none; }
  main { columns: 2; column-gap: 3.5rem; }
  .verdict, .whole { column-span: all; }
  section { break-inside: avoid; margin-top: 0; padding-top: 2rem; }
  .lanes .long { white-space: normal; overflow-wrap: anywhere; min-width: 15rem; }
.lanes .what { width: 33%; }
}
@media (min-width: 3400px) { body { zoom: 1.9; } }
@media print {
  html { font-size: 9pt; } body { padding: 0; } section { break-inside: avoid; margin-top: 1.8rem; }
  .charts { grid-template-columns: repeat(2, 1fr); gap: 1rem; } .tiles dd { font-size: 1.3rem; }
  details:not([open]) { display: none; }
}
"""
