"""The report of an audit as one page that needs nothing else. Invariant: all text from outside is escaped."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

Json = Mapping[str, Any]

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1b1b1b }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; padding: .3rem .6rem; vertical-align: top }
tr { border-top: 1px solid #ddd } pre { background: #f5f5f2; padding: .6rem; overflow-x: auto; white-space: pre-wrap }
.confirmed { color: #9b1c1c; font-weight: 600 } .lead { color: #7a5c00 }
@media (prefers-color-scheme: dark) { body { background: #16161a; color: #e8e8e8 } pre { background: #222 } }
"""


def audit_page(reports: Sequence[Json]) -> str:
    """The page of one or several reports, as `Report.as_json` gives them."""
    body = "\n".join(map(_report, reports))
    names = ", ".join(str(report["subject"]) for report in reports[:3]) + (" ..." if len(reports) > 3 else "")
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Audit of {escape(names)}</title>'
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n'
    )


def _report(report: Json) -> str:
    findings: Sequence[Json] = report["findings"]
    sure = sum(finding["kind"] == "confirmed" for finding in findings)
    parts = [
        f"<h1>Audit of {escape(str(report['subject']))}</h1>",
        f"<p>{sure} confirmed, {len(findings) - sure} leads, {report['seconds']:g} s. {escape(cap(report['ceiling']))}</p>",
        "<h2>Findings</h2>",
        _findings(findings) if findings else "<p>None.</p>",
        "<h2>Rates</h2>",
        _rates(report["rates"]),
        "<h2>Not checked</h2>",
        "<ul>" + "".join(f"<li>{escape(str(text))}</li>" for text in report["not_checked"]) + "</ul>",
    ]
    if report.get("reach"):
        parts += ["<h2>Reachability</h2>", _reach(report["reach"])]
    return "\n".join(parts)


def cap(ceiling: Json | None) -> str:
    """What the false-negative rate caps the score near, as a sentence."""
    if ceiling is None or ceiling["rate"] is None:
        return "No right answer was tried, so there is no ceiling to tell."
    return (
        f"This verifier caps the score near {ceiling['rate']:.2f} (95 %: {ceiling['low']:.2f} to {ceiling['high']:.2f}; "
        f"{ceiling['hits']} of {ceiling['of']} right answers pass)."
    )


def _findings(findings: Sequence[Json]) -> str:
    rows: list[str] = []
    for finding in findings:
        kind = str(finding["kind"])
        answers = [a if isinstance(a, str) else json.dumps(a, indent=1) for a in finding["replay"]["answers"][:2]]
        shown = "".join(f"<pre>{escape(text[:2000])}</pre>" for text in answers)
        if shown:
            shown = f"<details><summary>answer</summary>{shown}</details>"
        hint = f"<p>{escape(finding['suggestion'])}</p>" if finding["suggestion"] else ""
        task = escape(str(finding["task"])) + (f" and {finding['tasks'] - 1} more" if finding["tasks"] > 1 else "")
        rows.append(
            f'<tr><td>{finding["tier"]}</td><td class="{escape(kind)}">{escape(kind)}</td><td>{task}</td>'
            f"<td>{escape(str(finding['claim']))}{hint}{shown}</td></tr>"
        )
    return f"<table><tr><th>tier</th><th>kind</th><th>task</th><th>claim</th></tr>{''.join(rows)}</table>"


def _rates(rates: Mapping[str, Json]) -> str:
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{rate['hits']} of {rate['of']}</td><td>{rate['rate']:.3f}</td>"
        f"<td>{rate['low']:.3f} to {rate['high']:.3f}</td></tr>"
        for name, rate in rates.items()
        if rate["of"]
    )
    return f"<table><tr><th></th><th></th><th>rate</th><th>95 % (Wilson)</th></tr>{rows}</table>"


def _reach(reach: Json) -> str:
    counts = ", ".join(f"{reach[key]} {key.replace('_', ' ')}" for key in ("all_pass", "mixed", "all_fail", "unscored"))
    rows = "".join(
        f"<tr><td>{escape(str(task['task']))}</td><td>{task['passed']} of {task['of']}</td>"
        f"<td>{escape(str(task['cause']))}</td><td>{escape(str(task['evidence']))}</td></tr>"
        for task in reach["tasks"]
    )
    return f"<p>{counts}</p><table><tr><th>task</th><th>passed</th><th>cause</th><th>evidence</th></tr>{rows}</table>"
