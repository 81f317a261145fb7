"""What people read on the terminal: the documents in plain words, findings before figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from emo.api.analysis import AnalysisReport, GpuReport, SlackWindow, WhatIfReport
from emo.api.environment import DoctorReport, VersionReport
from emo.terminal import console, printable

if TYPE_CHECKING:
    from rich.console import Console

_CAUSES = {
    "cpu": "the CPU launched late",
    "sync": "the CPU waited for the GPU first",
    "stream": "another stream had to finish first",
    "peer_cpu": "another rank's CPU was late",
    "peer_gpu": "another rank's GPU was late",
    "contention": "another stream filled the GPU",
    "unexplained": "not explained by the trace",
    "capture": "edge of the capture",
}
_SHORT_CAUSES = {
    "cpu": "CPU late",
    "sync": "CPU waited",
    "stream": "other stream",
    "peer_cpu": "peer's CPU",
    "peer_gpu": "peer's GPU",
    "contention": "contention",
    "unexplained": "unexplained",
    "capture": "capture edge",
}
_SHOWN_GPUS = 16
_SHOWN_WINDOWS = 3
_SHOWN_NAMES = 3


def duration(ns: float) -> str:
    """A duration with four digits at most: ``12.3 us``, ``348.0 ms``, ``1.738 s``."""
    size = abs(ns)
    if size < 999.5:
        return f"{ns:.0f} ns"
    if size < 999_950:
        return f"{ns / 1e3:.1f} us"
    if size < 999_950_000:
        return f"{ns / 1e6:.1f} ms"
    return f"{ns / 1e9:.3f} s"


def percent(part: float, whole: float) -> str:
    """A share in per cent; small ones keep a digit that counts."""
    share = 100 * part / whole if whole else 0.0
    return f"{share:.0f} %" if share == 0 or share >= 9.95 else f"{share:.1f} %" if share >= 0.05 else "< 0.1 %"


# --------------------------------------------------------------------------- analyze


def print_analysis(report: AnalysisReport) -> None:
    """The summary of ``emo analyze``."""
    out = console()
    out.print(_headline(report))
    out.print()
    _say(out, "Bound by", _bound(report))
    _say(out, "Slack", _slack(report))
    _say(out, "Trust", _trust(report))
    out.print()
    out.print(_gpu_table(report))
    _list(out, "Largest slack windows", [_window(gpu, window) for gpu, window in _windows(report)])
    _list(out, "Most GPU time on the critical path", _names(report))
    _list(out, "Collectives across ranks", _collectives(report))
    _list(out, "Quality", _quality(report))
    _list(out, "To learn more", report.hints)
    mode = "Recommend only" if report.allowed_mode == "Recommend" else "Recommend or Enforce"
    _list(out, f"A plan from this trace: {mode}", report.allowed_mode_reasons)


def _headline(report: AnalysisReport) -> str:
    files = report.files
    models = {gpu.name for gpu in report.gpus if gpu.name}
    gpus = f"{len(report.gpus)} GPU{_s(report.gpus)}" + (f" ({', '.join(sorted(models))})" if models else "")
    if report.step_time_ns is not None:
        pace = f"{duration(report.step_time_ns)} per step over {len(report.iterations)} iterations"
    else:
        pace = f"window of {duration(report.makespan_ns)} taken as one step"
    name = files[0].path if len(files) == 1 else f"{len(files)} files, {len({f.rank for f in files})} ranks"
    return printable(f"{name}: {gpus}, {pace}")


def _bound(report: AnalysisReport) -> str:
    path, whole = report.critical_path, report.makespan_ns
    parts = {
        "CPU work": path.cpu_ns,
        "GPU kernels": path.gpu_ns,
        "communication": path.collective_ns,
        "copies": path.copy_ns,
        "latencies and gaps": path.idle_ns,
    }
    ranked = sorted(parts.items(), key=lambda part: -part[1])
    rest = ", ".join(f"{name} {percent(ns, whole)}" for name, ns in ranked[1:] if ns)
    return f"{ranked[0][0]}: {percent(ranked[0][1], whole)} of the critical path" + (f" ({rest})." if rest else ".")


def _slack(report: AnalysisReport) -> str:
    total = sum(gpu.slack_ns for gpu in report.gpus)
    if not total:
        return "none that could be used: no GPU only waits while something else decides the time."
    share = percent(total, report.makespan_ns * len(report.gpus))
    causes: dict[str, int] = {}
    for gpu in report.gpus:
        for cause, ns in gpu.slack_by_cause.items():
            causes[cause] = causes.get(cause, 0) + ns
    why = ", ".join(
        f"{_CAUSES[cause]} ({percent(ns, total)})"
        for cause, ns in sorted(causes.items(), key=lambda item: -item[1])
        if ns >= 0.01 * total
    )
    whose = "the GPU's time" if len(report.gpus) == 1 else "the GPUs' time"
    return f"{share} of {whose} ({duration(total)}) could be filled without delaying anything. Why: {why}."


def _trust(report: AnalysisReport) -> str:
    text = (
        f"replay error {report.replay_error_ratio:.2%} of the makespan, "
        f"{report.unexplained_ratio:.2%} rests on delays that no rule explains"
    )
    errors = report.cross_iteration_error
    if errors.median is not None and errors.p95 is not None:
        text += f"; one iteration foretells another within {errors.median:.2%} (median), {errors.p95:.2%} (p95)"
    return text + "."


def _gpu_table(report: AnalysisReport) -> object:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("rank:GPU", no_wrap=True)
    for name in ("busy", "peer wait", "idle", "slack", "persistent", "windows"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("main cause", no_wrap=True)
    shown = sorted(report.gpus, key=lambda gpu: (gpu.rank, gpu.device))[:_SHOWN_GPUS]
    for gpu in shown:
        whole = report.makespan_ns
        main = max(gpu.slack_by_cause.items(), key=lambda item: item[1], default=("", 0))
        table.add_row(
            f"{gpu.rank}:{gpu.device}",
            percent(gpu.busy_ns, whole),
            percent(gpu.peer_wait_ns, whole),
            percent(gpu.idle_ns, whole),
            percent(gpu.slack_ns, whole),
            "-" if gpu.persistent_slack_ns is None else duration(gpu.persistent_slack_ns),
            str(gpu.slack_windows),
            _SHORT_CAUSES[main[0]] if main[1] else "-",
        )
    if len(report.gpus) > len(shown):
        table.caption = f"{len(report.gpus) - len(shown)} more GPUs: see --json"
    return table


def _windows(report: AnalysisReport) -> list[tuple[GpuReport, SlackWindow]]:
    found = [(gpu, window) for gpu in report.gpus for window in gpu.top_windows if window.slack_ns and not window.edge]
    return sorted(found, key=lambda item: -item[1].slack_ns)[:_SHOWN_WINDOWS]


def _window(gpu: GpuReport, window: SlackWindow) -> str:
    where = f"rank {gpu.rank} GPU {gpu.device} at {duration(window.start_ns)}"
    culprit = "" if window.culprit_rank is None else f" (rank {window.culprit_rank})"
    before = f", before {short_name(window.next_op)}" if window.next_op else ""
    return f"{duration(window.slack_ns)}, {where}: {_CAUSES[window.cause]}{culprit}{before}"


def _names(report: AnalysisReport) -> list[str]:
    top = report.critical_path.top[:_SHOWN_NAMES]
    whole = report.makespan_ns
    return [f"{percent(e.time_ns, whole)} {short_name(e.name)} ({e.count} times)" for e in top if e.time_ns >= 0.01 * whole]


def _collectives(report: AnalysisReport) -> list[str]:
    if not report.collectives:
        return []
    inner = [collective for collective in report.collectives if not collective.edge]
    waits: dict[str, int] = {}
    for collective in inner:
        for rank, ns in collective.wait_ns_by_rank.items():
            waits[rank] = waits.get(rank, 0) + ns
    wire = sum(collective.wire_ns for collective in report.collectives)
    lines = [f"{len(report.collectives)} matched, {duration(wire)} on the wire"]
    if any(waits.values()):
        longest, shortest = max(waits, key=lambda rank: waits[rank]), min(waits, key=lambda rank: waits[rank])
        lines.append(
            f"rank {longest} waited the longest for the others ({duration(waits[longest])}), "
            f"rank {shortest} the least ({duration(waits[shortest])})"
        )
    if len(inner) < len(report.collectives):
        lines.append("waits in the first one of each rank come from the opening of the capture: not counted")
    return lines


def _quality(report: AnalysisReport) -> list[str]:
    quality = report.quality
    lines = [
        f"{percent(quality.completeness, 1)} of launches have their GPU op; "
        f"{quality.complete_steps} of {quality.steps} iterations are complete"
    ]
    for file in quality.files:
        findings = [f"{n} records {what} ({reason})" for what, table in (("dropped", file.dropped), ("repaired", file.repaired)) for reason, n in table.items()]
        if file.truncated:
            findings.append("the file ends early")
        if file.kernels_without_launch:
            findings.append(f"{file.kernels_without_launch} GPU ops have no launch")
        if findings:
            lines.append((f"{file.path}: " if len(quality.files) > 1 else "") + ", ".join(findings))
    return lines


# --------------------------------------------------------------------------- whatif


def print_whatif(report: WhatIfReport) -> None:
    """The summary of ``emo whatif``."""
    out = console()
    change = ", ".join(f"{scaling.selector} x {scaling.factor:g}" for scaling in report.scale) or "nothing changed"
    out.print(printable(f"What if: {change}"))
    out.print()
    if report.step_time_ns is not None and report.baseline_step_time_ns is not None:
        _say(out, "Step time", _change(report.baseline_step_time_ns, report.step_time_ns))
    _say(out, "Makespan", _change(report.baseline_ns, report.makespan_ns))
    _say(out, "Bound", f"{duration(report.bound_ns)} for the busiest stream alone.")
    moved = sorted((c for c in report.collectives if c.delay_ns), key=lambda c: -abs(c.delay_ns))
    _list(
        out,
        "Collectives that move most",
        [f"{c.index} {short_name(c.name)}: {c.delay_ns / 1e3:+.1f} us" for c in moved[:_SHOWN_NAMES]],
    )


def _change(before_ns: int, after_ns: int) -> str:
    return f"{duration(before_ns)} -> {duration(after_ns)} ({after_ns / before_ns - 1 if before_ns else 0:+.2%})."


# --------------------------------------------------------------------------- version, doctor


def print_version(report: VersionReport) -> None:
    """What ``emo version`` prints."""
    native = report.native or "cannot be loaded: see emo doctor"
    for name, value in (("emo", report.emo), ("python", report.python), ("native", native), ("platform", report.platform)):
        print(printable(f"{name:<9} {value}"))


def print_doctor(report: DoctorReport) -> None:
    """What ``emo doctor`` prints: every check with what to do, grouped."""
    out = console()
    titles = {"core": "Analysis and planning", "gpu": "GPUs of this machine", "extras": "Optional parts"}
    for group, title in titles.items():
        out.print(title, style="bold")
        for check in report.checks:
            if check.group == group:
                _wrapped(out, f"  {check.status:<8} ", f"{check.name}: {check.found}")
                if check.advice:
                    _wrapped(out, " " * 11 + "-> ", f"{check.advice} (for {check.needed_for})")
        out.print()
    bad = sum(check.status == "problem" for check in report.checks)
    out.print("Everything that is here works." if not bad else f"{bad} problem{'s' if bad > 1 else ''}: see above.")


# --------------------------------------------------------------------------- layout


def short_name(name: str, limit: int = 48) -> str:
    """A kernel's name without return type, namespaces and template arguments, as far as it must be shortened."""
    if len(name) <= limit:
        return name
    bare = name.removeprefix("void ").split("<", 1)[0].split("(", 1)[0]
    bare = bare.rsplit("::", 1)[-1] if len(bare) > limit else bare
    return bare if len(bare) <= limit else bare[: limit - 3] + "..."


def _s(things: Sequence[object]) -> str:
    return "" if len(things) == 1 else "s"


def _say(out: Console, label: str, text: str) -> None:
    _wrapped(out, f"{label:<10}", text)


def _list(out: Console, title: str, lines: Iterable[str]) -> None:
    lines = list(lines)
    if not lines:
        return
    out.print()
    out.print(title, style="bold")
    for line in lines:
        _wrapped(out, "  - ", line)


def _wrapped(out: Console, lead: str, text: str) -> None:
    """Text after a lead, continued under its own beginning."""
    from rich.padding import Padding
    from rich.table import Table

    row = Table.grid()
    row.add_column(no_wrap=True)
    row.add_column()
    row.add_row(lead, Padding(printable(text), 0))
    out.print(row)
