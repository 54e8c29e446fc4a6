"""The look of figures and pages: two palettes, one style sheet, and the script of maps."""

__all__ = ["CSS", "DARK", "LIGHT", "SCALE", "SCRIPT"]

LIGHT = {
    "paper": "#fbfbfa",
    "card": "#ffffff",
    "ink": "#1c2733",
    "muted": "#5d6b7a",
    "rule": "#dfe4ea",
    "best": "#b3261e",
    "alike": "#1f55b5",
    "series-1": "#4c6a92",
    "series-2": "#c8501e",
    "series-3": "#1d7f6b",
    "series-4": "#8a4f9e",
    "series-5": "#a37b16",
    "series-6": "#3f8fb5",
    "series-7": "#a33d5a",
    "series-8": "#6b7d2a",
}
"""Colours of the light theme by name. A method's curves, points and headings share the colour of its series."""

DARK = {
    "paper": "#12161b",
    "card": "#191f26",
    "ink": "#e6eaee",
    "muted": "#98a5b3",
    "rule": "#2c353f",
    "best": "#ff8a80",
    "alike": "#8ab4ff",
    "series-1": "#8fb0dd",
    "series-2": "#f5905f",
    "series-3": "#5cc4ad",
    "series-4": "#c795d8",
    "series-5": "#dcb95a",
    "series-6": "#7cc3e6",
    "series-7": "#e58ba3",
    "series-8": "#b3c766",
}
"""Colours of the dark theme, with the same names."""

SCALE = ("#3b6fc4", "#5d86c2", "#8099b8", "#a3a3a3", "#bb9377", "#cc7c4e", "#d9642c", "#df4d12")
"""Colours from small to large values, which can be seen on a light and on a dark background."""


def _variables(palette: dict[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in palette.items())


CSS = f"""\
:root {{ {_variables(LIGHT)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}
@media print {{ :root {{ {_variables(LIGHT)} --paper: #ffffff; }} }}

* {{ box-sizing: border-box; }}
html {{ -webkit-text-size-adjust: 100%; }}
body {{
  margin: 0 auto; max-width: 50rem; padding: 3.5rem 1.5rem 4rem;
  background: var(--paper); color: var(--ink);
  font: 1.0625rem/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}}
h1 {{ margin: 0 0 1rem; font-size: 2.1rem; line-height: 1.2; letter-spacing: -0.02em; text-wrap: balance; }}
h2 {{ margin: 3.25rem 0 0.75rem; font-size: 1.35rem; line-height: 1.3; letter-spacing: -0.01em; text-wrap: balance; }}
p {{ margin: 0 0 1rem; text-wrap: pretty; }}
h3 {{ margin: 2rem 0 0.5rem; font-size: 1.08rem; line-height: 1.35; text-wrap: balance; }}
a {{ color: var(--alike); }}
nav ul {{
  display: flex; flex-wrap: wrap; gap: 0.2rem 1.2rem; margin: 0; padding: 0; list-style: none; font-size: 0.95rem;
}}
.findings {{ margin: 1rem 0; padding: 0; list-style: none; }}
.findings li {{
  margin: 0 0 0.75rem; padding: 0.7rem 1rem; border-left: 4px solid var(--rule); border-radius: 0 8px 8px 0;
  background: var(--card); box-shadow: 0 0 0 1px var(--rule);
}}
.findings .good {{ border-left-color: var(--series-3); }}
.findings .bad {{ border-left-color: var(--series-2); }}
.findings p {{ margin: 0; }}
pre {{
  margin: 0.5rem 0 0; padding: 0.45rem 0.7rem; border-radius: 6px; background: var(--paper); overflow-wrap: anywhere;
  white-space: pre-wrap; font: 0.86rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
}}
.lead {{ font-size: 1.15rem; color: var(--muted); }}
.note {{ font-size: 0.95rem; color: var(--muted); }}
.key {{
  padding: 0.9rem 1.1rem; border-left: 4px solid var(--series-2); border-radius: 0 8px 8px 0;
  background: var(--card); box-shadow: 0 0 0 1px var(--rule);
}}

.scroll {{
  overflow-x: auto; margin: 1.25rem 0;
  /* A shadow at the edge behind which there is more: the covers move with the content, the shadows do not. */
  background:
    linear-gradient(to right, var(--paper) 30%, transparent) left / 2.5rem 100% no-repeat local,
    linear-gradient(to left, var(--paper) 30%, transparent) right / 2.5rem 100% no-repeat local,
    linear-gradient(to right, rgb(0 0 0 / 0.2), transparent) left / 0.7rem 100% no-repeat scroll,
    linear-gradient(to left, rgb(0 0 0 / 0.2), transparent) right / 0.7rem 100% no-repeat scroll;
}}
.caption {{ margin: 1.25rem 0 0; font-size: 0.95rem; color: var(--muted); }}
.caption + .scroll {{ margin-top: 0.5rem; }}
table {{ width: 100%; border-collapse: collapse; font-size: 1rem; line-height: 1.4; }}
th, td {{
  padding: 0.55rem 0 0.55rem 1.25rem; vertical-align: top; text-align: left; border-bottom: 1px solid var(--rule);
}}
th:first-child {{ padding-left: 0; font-weight: 400; }}
.numeric th:first-child {{ position: sticky; left: 0; min-width: 11rem; background: var(--paper); }}
thead th, thead th:first-child {{ vertical-align: bottom; border-bottom: 2px solid var(--ink); font-weight: 600; }}
.numeric td, .numeric thead th:not(:first-child) {{
  text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums;
}}
td.red {{ color: var(--best); font-weight: 600; }}
td.blue {{ color: var(--alike); font-style: italic; }}
small {{ display: block; font-size: 0.85rem; line-height: 1.35; color: var(--muted); }}

figure {{ margin: 0; }}
figcaption {{ font-size: 0.9rem; line-height: 1.45; color: var(--muted); }}
img, svg {{ display: block; width: 100%; height: auto; }}
img {{ image-rendering: pixelated; }}
.picture img {{ image-rendering: auto; }}
svg text {{ font-family: inherit !important; }}
.tick {{ font-size: 12px; fill: var(--muted); }}
.drawing, .picture {{ margin: 1.25rem 0; }}
.drawing svg {{ max-width: 36rem; margin: 0 auto; }}
.pictures svg {{ max-width: 27rem; }}
.drawing figcaption, .picture figcaption {{ margin-top: 0.6rem; }}
.pictures {{
  display: grid; grid-template-columns: repeat(auto-fit, minmax(15rem, 1fr)); gap: 1.5rem; margin: 1.25rem 0;
}}
.charts {{
  display: grid; grid-template-columns: repeat(auto-fill, minmax(14rem, 1fr)); gap: 1.1rem 1.2rem; margin: 1.25rem 0;
}}
.charts figcaption {{ color: var(--ink); overflow-wrap: anywhere; }}
.point:hover {{ stroke: var(--ink); stroke-width: 2; }}
.peek {{
  position: absolute; z-index: 2; max-width: 17rem; padding: 0.5rem 0.6rem; border-radius: 8px; background: var(--card);
  box-shadow: 0 0 0 1px var(--rule), 0 4px 16px rgb(0 0 0 / 0.25); pointer-events: none;
}}
.peek .frame {{ position: relative; overflow: hidden; }}
.peek img {{ position: absolute; max-width: none; }}
.peek p {{ margin: 0; font-size: 0.85rem; line-height: 1.4; white-space: pre-line; }}
.peek .frame + p {{ margin-top: 0.35rem; }}
.pictures figcaption, .strips figcaption {{ font-weight: 600; color: var(--ink); padding-right: 0.5rem; }}
.pictures figcaption {{ margin-bottom: 0.4rem; }}
.strips {{ display: grid; gap: 0.5rem; margin: 1.25rem 0; }}
.strips figure {{ display: grid; grid-template-columns: 5.5rem 1fr; align-items: center; }}
.tiles {{
  display: grid; grid-template-columns: repeat(auto-fill, minmax(3.2rem, 1fr)); gap: 0.9rem 0.6rem; margin: 1.25rem 0;
}}
.tiles.named {{ grid-template-columns: repeat(auto-fill, minmax(6.5rem, 1fr)); }}
.tiles.named figcaption {{ overflow-wrap: anywhere; white-space: pre-line; }}
.tiles img + img {{ margin-top: 3px; }}
.tiles figcaption {{ margin-top: 0.25rem; font-size: 0.78rem; text-align: center; font-variant-numeric: tabular-nums; }}
.tiles img {{ border-radius: 2px; }}

footer {{
  margin-top: 3.5rem; padding-top: 1rem; border-top: 1px solid var(--rule); font-size: 0.9rem; color: var(--muted);
}}

@media screen and (min-width: 54rem) {{
  .scroll {{
    position: relative; left: 50%; width: fit-content; min-width: 100%; max-width: calc(100vw - 3rem);
    transform: translateX(-50%);
  }}
}}
@media (max-width: 34rem) {{
  body {{ padding: 2rem 1.1rem 3rem; font-size: 1rem; }}
  h1 {{ font-size: 1.65rem; }}
  h2 {{ margin-top: 2.5rem; }}
  th, td {{ padding-left: 0.6rem; }}
  table {{ font-size: 0.86rem; }}
  .numeric th:first-child {{ min-width: 8.5rem; max-width: 11rem; overflow-wrap: anywhere; }}
  .numeric:not(.unbroken) td {{ min-width: 3.6rem; white-space: normal; }}
  small {{ font-size: 0.76rem; }}
  .strips figure {{ grid-template-columns: 1fr; gap: 0.15rem; }}
  .tiles {{ grid-template-columns: repeat(6, 1fr); gap: 0.8rem 0.45rem; }}
  .tiles.named {{ grid-template-columns: repeat(3, 1fr); }}
  .charts {{ grid-template-columns: 1fr 1fr; }}
}}
@media print {{
  body {{ max-width: none; padding: 0; font-size: 10.5pt; }}
  section > *, tr, figure {{ break-inside: avoid; }}
  .scroll {{ overflow: visible; }}
  .numeric th:first-child {{ position: static; background: none; }}
  table {{ font-size: 8pt; }}
  th, td {{ padding-left: 0.5rem; }}
  h2 {{ break-after: avoid; }}
  img {{ print-color-adjust: exact; }}
}}
"""
"""The style sheet of a page: for desktop screens and phones, light and dark themes, and print."""

SCRIPT = """\
for (const section of document.querySelectorAll("section")) {
  const peek = section.querySelector(".peek");
  if (!peek) continue;
  const frame = peek.querySelector(".frame"), image = peek.querySelector("img"), text = peek.querySelector("p");
  const { columns, rows } = peek.dataset;
  document.body.append(peek);
  for (const point of section.querySelectorAll(".point")) {
    const title = point.querySelector("title"), label = title.textContent;
    title.remove();
    point.addEventListener("pointerenter", event => {
      text.textContent = label;
      if (frame) {
        const width = image.naturalWidth / columns, height = image.naturalHeight / rows;
        const zoom = Math.max(1, Math.floor(128 / Math.max(width, height)));
        const at = Number(point.dataset.at);
        frame.style.width = zoom * width + "px";
        frame.style.height = zoom * height + "px";
        image.style.width = zoom * image.naturalWidth + "px";
        image.style.left = -zoom * width * (at % columns) + "px";
        image.style.top = -zoom * height * Math.floor(at / columns) + "px";
      }
      peek.hidden = false;
      const room = document.documentElement.clientWidth - peek.offsetWidth - 8;
      peek.style.left = Math.max(8, Math.min(event.pageX + 14, room)) + "px";
      peek.style.top = event.pageY + 14 + "px";
    });
    point.addEventListener("pointerleave", () => { peek.hidden = true; });
  }
}
"""
"""The script of a page with maps: it shows the instance of the point under the pointer."""
