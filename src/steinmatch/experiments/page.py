"""index.html: the figures and the claims on one page, no scripts, no outside files."""

import html
from collections.abc import Mapping, Sequence
from pathlib import Path

from steinmatch._files import write_whole
from steinmatch.experiments.claims import Claim

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
img { max-width: 100%; border: 1px solid #eee; } table { border-collapse: collapse; width: 100%; font-size: 0.92rem; }
td, th { padding: 0.35rem 0.6rem; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top; }
.no { color: #b00020; font-weight: 600; } .yes { color: #00693e; } small { color: #666; }
"""


def write_page(out: Path, titles: Mapping[str, tuple[str, str]], claims: Sequence[Claim], note: str) -> None:
    """A page over what lies in `out`."""
    parts = ["<!doctype html><html lang=en><meta charset=utf-8><title>SVGD as moment matching</title>"]
    parts.append(f"<style>{_STYLE}</style>")
    parts.append("<h1>SVGD as moment matching: the paper's experiments</h1>")
    parts.append(f"<p><small>{html.escape(note)}</small></p><h2>Claims</h2><table>")
    for claim in sorted(claims, key=lambda claim: (claim.number, claim.text)):
        state = "<td class=yes>holds" if claim.holds else "<td class=no>does not hold"
        why = "" if claim.holds or not claim.why else f"<br><small>{html.escape(claim.why)}</small>"
        cells = (str(claim.number), html.escape(claim.text) + why, html.escape(claim.measured))
        parts.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + f"{state}</td></tr>")
    parts.append("</table>")
    for name, (title, caption) in titles.items():
        parts.append(f"<h2>{html.escape(title)}</h2><p>{html.escape(caption)}</p>")
        for picture in sorted(out.glob(f"{name}*.png")):
            parts.append(
                f'<p><a href="{picture.stem}.svg"><img src="{picture.name}" alt="{html.escape(title)}"></a></p>'
            )
        parts.append(f'<p><a href="{name}.csv">{name}.csv</a></p>')
    write_whole(out / "index.html", "\n".join(parts) + "</html>\n")
