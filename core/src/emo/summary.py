"""What people read on the terminal: the documents in plain words, findings before figures."""

from __future__ import annotations

from collections import Counter

from emo.api.analysis import AnalysisReport, FileQuality, GpuReport, SlackWindow, WhatIfReport
from emo.api.environment import Check, DoctorReport, VersionReport
from emo.layout import bullets, duration, heading, paragraph, percent, plural, sections, short_name, table

_CAUSES = {
    "cpu": "the CPU launched late",
    "sync": "the CPU waited for the GPU first",
    "stream": "another stream had to finish first",
    "peer_cpu": "another rank's CPU was late",
    "peer_gpu": "another rank's GPU was late",
    "contention": "another stream filled the GPU",
    "unexplained": "nothing in the trace explains it",
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
_SHOWN = 3  # of a list of examples

# Parts below this share of the whole are noise in a sentence.
_WORTH_SAYING = 0.01


# --------------------------------------------------------------------------- analyze


def analysis_text(report: AnalysisReport) -> str:
    """The summary that ``emo analyze`` prints."""
    mode = "Recommend only" if report.allowed_mode == "Recommend" else "Recommend or Enforce"
    findings = [
        paragraph(_bound(report), "Bound by  "),
        paragraph(_slack(report), "Slack     "),
        paragraph(_trust(report), "Trust     "),
    ]
    return sections(
        paragraph(_headline(report)),
        "\n".join(findings),
        _gpu_table(report.gpus, report.makespan_ns),
        bullets("Largest slack windows", _windows(report.gpus)),
        bullets("Most GPU time on the critical path", _names(report)),
        bullets("Collectives across ranks", _collectives(report)),
        bullets("Quality", _quality(report)),
        bullets("To learn more", report.hints),
        bullets(f"A plan from this trace: {mode}", report.allowed_mode_reasons),
    )


def _headline(report: AnalysisReport) -> str:
    files = report.files
    if len(files) == 1:
        name = files[0].path
    else:
        name = f"{plural(len(files), 'file')}, {plural(len({gpu.rank for gpu in report.gpus}), 'rank')}"
    models = sorted({gpu.name for gpu in report.gpus if gpu.name})
    gpus = plural(len(report.gpus), "GPU") + (f" ({', '.join(models)})" if models else "")
    if report.step_time_ns is None:
        pace = f"a window of {duration(report.makespan_ns)} taken as one step"
    else:
        pace = f"{duration(report.step_time_ns)} per step over {len(report.iterations)} iterations"
    return f"{name}: {gpus}, {pace}"


def _bound(report: AnalysisReport) -> str:
    path, whole = report.critical_path, report.makespan_ns
    parts = {
        "CPU work": path.cpu_ns,
        "GPU kernels": path.gpu_ns,
        "communication": path.collective_ns,
        "copies": path.copy_ns,
        "latencies and gaps": path.idle_ns - path.capture_ns,
        "the capture of the rank that decides opened later": path.capture_ns,
    }
    (first, most_ns), *rest = sorted(parts.items(), key=lambda part: -part[1])
    others = ", ".join(f"{name} {percent(ns, whole)}" for name, ns in rest if ns)
    return f"{first}, {percent(most_ns, whole)} of the critical path" + (f" ({others})." if others else ".")


def _slack(report: AnalysisReport) -> str:
    total_ns = sum(gpu.slack_ns for gpu in report.gpus)
    if not total_ns:
        return "none that can be used: no GPU only waits while something else decides the time."
    causes: Counter[str] = Counter()
    for gpu in report.gpus:
        causes.update(gpu.slack_by_cause)
    why = ", ".join(
        f"{_CAUSES[cause]} ({percent(ns, total_ns)})"
        for cause, ns in causes.most_common()
        if ns >= _WORTH_SAYING * total_ns
    )
    whose = "the GPU's" if len(report.gpus) == 1 else f"the {len(report.gpus)} GPUs'"
    share = percent(total_ns, report.makespan_ns * len(report.gpus))
    untraced_ns = sum(gpu.untraced_slack_ns for gpu in report.gpus)
    left = percent(untraced_ns, report.makespan_ns * len(report.gpus))
    return (
        f"{share} of {whose} time ({duration(total_ns)}) could be filled without delay. Why: {why}. "
        f"A profiler slows the CPU: without it, {left} might be left (CPU work / 1.5 assumed)."
    )


def _trust(report: AnalysisReport) -> str:
    text = f"replay error {_exact(report.replay_error_ratio)} of the makespan; "
    text += f"{_exact(report.unexplained_ratio)} of it, and {_exact(report.unexplained_gpu_ratio)} of the time on the "
    text += "worst stream, rests on delays that no rule explains"
    errors = report.cross_iteration_error
    if errors.median is not None and errors.p95 is not None:
        text += f"; one iteration foretells another to within {_exact(errors.median)} (median)"
        text += f" and {_exact(errors.p95)} (p95)"
    return text + "."


def _exact(ratio: float) -> str:
    return f"{100 * ratio:.2f} %"


def _gpu_table(gpus: list[GpuReport], makespan_ns: int) -> str:
    header = ("rank:GPU", "busy", "peer wait", "idle", "slack", "per step*", "windows", "main cause")
    rows = []
    for gpu in sorted(gpus, key=lambda gpu: (gpu.rank, gpu.device))[:_SHOWN_GPUS]:
        cause, cause_ns = max(gpu.slack_by_cause.items(), key=lambda item: item[1], default=("capture", 0))
        shares = (
            percent(ns, makespan_ns) for ns in (gpu.busy_ns, gpu.peer_wait_ns, gpu.idle_ns, gpu.slack_ns)
        )
        persistent = "-" if gpu.persistent_slack_ns is None else duration(gpu.persistent_slack_ns)
        rows.append(
            (
                f"{gpu.rank}:{gpu.device}",
                *shares,
                persistent,
                str(gpu.slack_windows),
                _SHORT_CAUSES[cause] if cause_ns else "-",
            )
        )
    note = "* slack that 9 of 10 iterations have; - with fewer than 10 iterations"
    if len(gpus) > _SHOWN_GPUS:
        note = f"{plural(len(gpus) - _SHOWN_GPUS, 'more GPU')} in --json\n{note}"
    return f"{table(header, rows, left=frozenset({0, 7}))}\n{note}"


def _windows(gpus: list[GpuReport]) -> list[str]:
    found = [
        (gpu, window) for gpu in gpus for window in gpu.top_windows if window.slack_ns and not window.edge
    ]
    found.sort(key=lambda item: -item[1].slack_ns)
    return [_window(gpu, window) for gpu, window in found[:_SHOWN]]


def _window(gpu: GpuReport, window: SlackWindow) -> str:
    culprit = "" if window.culprit_rank is None else f" (rank {window.culprit_rank})"
    before = f", before {short_name(window.next_op)}" if window.next_op else ""
    where = f"on rank {gpu.rank} GPU {gpu.device} at {duration(window.start_ns)}"
    return f"{duration(window.slack_ns)} {where}: {_CAUSES[window.cause]}{culprit}{before}"


def _names(report: AnalysisReport) -> list[str]:
    whole = report.makespan_ns
    return [
        f"{percent(entry.time_ns, whole)} {short_name(entry.name)} ({entry.count} times)"
        for entry in report.critical_path.top[:_SHOWN]
        if entry.time_ns >= _WORTH_SAYING * whole
    ]


def _collectives(report: AnalysisReport) -> list[str]:
    if not report.collectives:
        return []
    wire_ns = sum(collective.wire_ns for collective in report.collectives)
    lines = [f"{len(report.collectives)} matched, {duration(wire_ns)} on the wire in all"]
    waits: Counter[str] = Counter()
    for collective in report.collectives:
        if not collective.edge:
            waits.update(collective.wait_ns_by_rank)
    if any(waits.values()):
        (longest, longest_ns), (shortest, shortest_ns) = waits.most_common()[0], waits.most_common()[-1]
        lines.append(
            f"rank {longest} waited longest for the others ({duration(longest_ns)}), "
            f"rank {shortest} shortest ({duration(shortest_ns)})"
        )
    if any(collective.edge for collective in report.collectives):
        lines.append("waits in a rank's first one come from the opening of the capture: not counted")
    return lines


def _quality(report: AnalysisReport) -> list[str]:
    quality = report.quality
    complete = f"{quality.complete_steps} of {plural(quality.steps, 'iteration')} complete"
    if len(quality.files) == quality.steps == 1:
        complete = "the window is complete" if quality.complete_steps else "the window is incomplete"
    lines = [f"{percent(quality.completeness)} of launches have their GPU op; {complete}"]
    for file in quality.files:
        findings = _file_findings(file)
        if findings:
            lines.append((f"{file.path}: " if len(quality.files) > 1 else "") + ", ".join(findings))
    return lines


def _file_findings(file: FileQuality) -> list[str]:
    findings = [f"{plural(count, 'record')} dropped ({reason})" for reason, count in file.dropped.items()]
    findings += [f"{plural(count, 'record')} repaired ({reason})" for reason, count in file.repaired.items()]
    if file.kernels_without_launch:
        findings.append(f"{plural(file.kernels_without_launch, 'GPU op')} without a launch")
    if file.truncated:
        findings.append("the file ends early")
    return findings


# --------------------------------------------------------------------------- whatif


def whatif_text(report: WhatIfReport) -> str:
    """The summary that ``emo whatif`` prints."""
    change = ", ".join(f"{scaling.selector} x {scaling.factor:g}" for scaling in report.scale)
    figures = [
        paragraph(_change(report.baseline_ns, report.makespan_ns), "Makespan   "),
        paragraph(f"{duration(report.bound_ns)} is the least: the work of the busiest stream", "Bound      "),
    ]
    if report.step_time_ns is not None and report.baseline_step_time_ns is not None:
        figures.insert(
            0, paragraph(_change(report.baseline_step_time_ns, report.step_time_ns), "Step time  ")
        )
    return sections(
        paragraph(f"What if {change}:"),
        "\n".join(figures),
        bullets("Collectives that move most", _moved(report)),
    )


def _change(before_ns: int, after_ns: int) -> str:
    share = 100 * (after_ns / before_ns - 1) if before_ns else 0.0
    return f"{duration(before_ns)} -> {duration(after_ns)} ({share:+.2f} %)"


def _moved(report: WhatIfReport) -> list[str]:
    moved = sorted((c for c in report.collectives if c.delay_ns), key=lambda c: -abs(c.delay_ns))
    return [f"{c.delay_ns / 1e3:+.1f} us: {c.index} {short_name(c.name)}" for c in moved[:_SHOWN]]


# --------------------------------------------------------------------------- version, doctor


def version_text(report: VersionReport) -> str:
    """What ``emo version`` prints."""
    native = report.native or "cannot be loaded; see emo doctor"
    rows = (("emo", report.emo), ("python", report.python), ("native", native), ("platform", report.platform))
    return "\n".join(f"{name:<9} {value}" for name, value in rows)


def doctor_text(report: DoctorReport) -> str:
    """What ``emo doctor`` prints: every check, and for what is not there what it is for and what to do."""
    titles = {"core": "Analysis and planning", "gpu": "GPUs of this machine", "extras": "Optional parts"}
    parts = []
    for group, title in titles.items():
        checks = [_check(check) for check in report.checks if check.group == group]
        parts.append("\n".join([heading(title), *checks]) if checks else "")
    problems = sum(check.status == "problem" for check in report.checks)
    return sections(*parts, f"{plural(problems, 'problem')}, see above." if problems else "No problem found.")


def _check(check: Check) -> str:
    lines = [paragraph(f"{check.name}: {check.found}", f"  {check.status:<9}")]
    if check.status != "ok":
        lines.append(paragraph(f"for {check.needed_for}", " " * 13))
    if check.advice:
        lines.append(paragraph(check.advice, " " * 11 + "-> "))
    return "\n".join(lines)
