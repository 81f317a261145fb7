"""The report: one HTML file with everything in it, the same bytes for the same analysis."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from importlib.resources import files
from os import PathLike
from pathlib import PurePath
from string import Template

from emo.analysis import Analysis
from emo.files import write_atomically
from emo.report.breakdown import path_section, slack_section
from emo.report.curve import what_if_curve
from emo.report.plan import plan_section
from emo.report.quality import quality_section
from emo.report.summary import Summary, summarize
from emo.report.text import count, duration, escape, listing, plural
from emo.report.timeline import lanes_section
from emo.report.whatif import curve_section


def write_report(analysis: Analysis, path: str | PathLike[str], *, plan: object | None = None) -> None:
    """Write the report of an analysis, and of a plan if there is one, as one self-contained HTML file.

    ``plan`` is a mapping or a pydantic model. Raises InputError if ``path`` cannot be written.
    """
    text = render(analysis, plan=plan)
    with write_atomically(path) as stream:
        stream.write(text.encode("utf-8"))


def render(analysis: Analysis, *, plan: object | None = None) -> str:
    """The report as text. It holds no time of its making and no machine's name."""
    curve = what_if_curve(analysis)
    summary = summarize(analysis, curve, planned=plan is not None)
    timeline, script = lanes_section(analysis)
    sections = [("summary", "Summary", _summary_section(summary))]
    if plan is not None:
        sections.append(("plan", "Plan", plan_section(plan)))
    if analysis.graph.gpus:
        sections.append(("lanes", "GPUs over time", timeline))
    sections.append(("path", "Critical path", path_section(analysis)))
    if curve is not None:
        sections.append(("whatif", "What if the GPUs ran slower?", curve_section(analysis, curve)))
        sections.append(("slack", "Slack by cause", slack_section(analysis)))
    sections.append(("quality", "Quality", quality_section(analysis)))
    return Template(_asset("page.html")).substitute(
        title=escape(PurePath(analysis.traces[0].path).name if analysis.traces else "no trace"),
        css=_asset("page.css"),
        headline=escape(summary.headline),
        source=_source(analysis),
        contents="".join(f'<li><a href="#{key}">{escape(title)}</a></li>' for key, title, _ in sections),
        sections="\n".join(
            f'<section id="{key}" aria-labelledby="{key}-title">'
            f'<h2 id="{key}-title">{escape(title)}</h2>{body}</section>'
            for key, title, body in sections
        ),
        version=escape(_version()),
        script=f"{script}<script>\n{_asset('page.js')}</script>" if script else "",
    )


def _summary_section(summary: Summary) -> str:
    cards = "".join(
        f'<div><dt>{escape(card.title)}</dt><dd class="value">{escape(card.value)}</dd>'
        f'<dd class="note">{escape(card.note)}</dd></div>'
        for card in summary.cards
    )
    sentences = "".join(f"<p>{sentence}</p>" for sentence in summary.sentences)
    steps = "".join(f"<li>{step}</li>" for step in summary.advice)
    advice = f'<div class="next"><h3>What to do next</h3><ol>{steps}</ol></div>' if steps else ""
    return f'<dl class="cards">{cards}</dl>{sentences}{advice}'


def _source(analysis: Analysis) -> str:
    """Where the numbers come from: files, format, GPUs, ops."""
    traces = analysis.traces
    names = [f"<code>{escape(PurePath(trace.path).name)}</code>" for trace in traces]
    shown = listing(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1} more ranks"
    models = sorted({device.name for trace in traces for device in trace.devices if device.name})
    gpus = plural(len(analysis.graph.gpus), "GPU")
    on_gpu = int((analysis.graph.nodes.gpu >= 0).sum())
    parts = [
        shown,
        f"format {escape(listing(sorted({trace.format for trace in traces})))}",
        gpus + (f" ({escape(listing(models))})" if models else ""),
        f"{count(on_gpu)} GPU ops in {duration(analysis.graph.makespan_ns)}",
    ]
    return " · ".join(parts)


def _version() -> str:
    try:
        return package_version("emo")
    except PackageNotFoundError:
        return "(not installed)"


@cache
def _asset(name: str) -> str:
    return files("emo.report").joinpath(name).read_text(encoding="utf-8")
