"""The commands: options in, one document out, as JSON or in words.

A thin shell. The work is done elsewhere, and is imported only by the command that needs it, since
most of a short run's time is imports.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from emo.errors import InputError, QualityGateError
from emo.terminal import StageProgress, printable

if TYPE_CHECKING:
    from pathlib import Path

    from emo.graph.model import EdgeType

EXIT_OK = 0

DEFAULT_QUEUE_DEPTH = 1024

app = typer.Typer(
    name="emo",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: importing rich for it takes longer than printing it
    context_settings={"help_option_names": ["-h", "--help"]},
    help="EMO saves GPU energy without breaking latency targets.\n\n"
    "It finds where a workload has slack, from the trace that its profiler already writes.",
    epilog="Exit codes: 0 ok, 1 own failure, 2 bad input or usage, 3 no feasible plan, 4 quality gate "
    "refused. EMO_DEBUG=1 shows tracebacks.",
)

Traces = Annotated[
    list[str],
    typer.Argument(
        metavar="TRACE...", help="trace files, one per rank of one job, in any order", show_default=False
    ),
]
Report = Annotated[
    str | None,
    typer.Option("-o", "--output", metavar="FILE.html", help="write an HTML report, one self-contained file"),
]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON document on stdout, nothing else")]
QueueDepth = Annotated[
    int,
    typer.Option(
        "--queue-depth", min=1, metavar="N", help="launches that a GPU queues before a launch call blocks"
    ),
]
Without = Annotated[
    list[str] | None,
    typer.Option(
        "--without",
        metavar="RULE",
        help="expert: leave a rule of the graph out (repeatable), e.g. event_inferred",
    ),
]


def _examples(*lines: str) -> str:
    """Text under a command's options; the control character keeps the lines as they are."""
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines)))


@app.callback()
def _root() -> None:
    """Options of the program itself: none so far; makes typer keep the command names."""


@app.command(
    name="analyze",
    epilog=_examples(
        "emo analyze trace.json.gz",
        "emo analyze rank*.json.gz -o report.html",
        "emo analyze trace.json.gz --json | jq .gpus",
    ),
)
def analyze_command(
    traces: Traces,
    as_json: AsJson = False,
    output: Report = None,
    overlay: Annotated[
        str | None,
        typer.Option(
            "--overlay",
            metavar="FILE.json.gz",
            help="write GPU ops, API calls, critical path and slack, for ui.perfetto.dev",
        ),
    ] = None,
    queue_depth: QueueDepth = DEFAULT_QUEUE_DEPTH,
    without: Without = None,
) -> int:
    """Show what bounds the step, where the GPUs have slack, and why.

    Reads Kineto (PyTorch profiler) JSON, nsys SQLite exports and rocprofiler-sdk JSON, plain or
    gzipped; the format is found from the content.
    """
    from emo.outputs import check_outputs

    outputs = check_outputs({"--output": output, "--overlay": overlay}, traces)

    from emo.analysis import analyze
    from emo.documents import analysis_document

    rules = _rules(without)
    with StageProgress(len(traces) + 2 + len(outputs)) as progress:
        analysis = analyze(traces, queue_depth=queue_depth, without=rules, progress=progress)
        if output is not None:
            from emo.report.html import write_report

            progress(f"writing {output}")
            write_report(analysis, outputs["--output"])
        if overlay is not None:
            from emo.report.overlay import write_overlay

            progress(f"writing {overlay}")
            write_overlay(analysis, outputs["--overlay"])
    document = analysis_document(analysis, without=rules)
    if as_json:
        _print(_dumps(document))
    else:
        from emo.api.analysis import AnalysisReport
        from emo.summary import analysis_text

        _print(analysis_text(AnalysisReport.model_validate(document)))
        _print_written(outputs.values())
    return EXIT_OK


@app.command(
    name="whatif",
    epilog=_examples(
        "emo whatif trace.json.gz --scale gpu=1.1",
        "emo whatif rank*.json --scale cpu:7=1.1 --scale kind:collective=0.5",
        "emo whatif trace.json.gz --scale 'name:gemm=1.2' --json",
    ),
)
def whatif_command(
    traces: Traces,
    scale: Annotated[
        list[str],
        typer.Option(
            "--scale",
            metavar="SELECTOR=FACTOR",
            show_default=False,
            help="multiply durations (repeatable); selectors: gpu, cpu, rank:R, cpu:R, device:D, stream:S, "
            "name:REGEX, kind:KIND",
        ),
    ],
    as_json: AsJson = False,
    queue_depth: QueueDepth = DEFAULT_QUEUE_DEPTH,
    without: Without = None,
) -> int:
    """Replay the run as if some things had taken longer or shorter.

    `gpu` and `rank:R` scale GPU work, `cpu` and `cpu:R` the work of the CPU between calls. What
    waits for what stays as it was; only times change.
    """
    from emo.graph.whatif import Scaling

    scalings = [Scaling.parse(text) for text in scale]
    rules = _rules(without)

    from emo.analysis import Stopwatch, read_traces
    from emo.documents import whatif_document
    from emo.graph.build import build_graph
    from emo.graph.replay import replay
    from emo.graph.whatif import scale_vector
    from emo.trace.validate import is_complete

    watch = Stopwatch()
    with StageProgress(len(traces) + 1) as progress:
        with watch.stage("read"):
            read = read_traces(traces, progress)
        progress("building the dependency graph")
        with watch.stage("graph"):
            graph = build_graph(read, queue_depth=queue_depth, without=rules)
        vector = scale_vector(graph, scalings)
        with watch.stage("replay"):
            timeline = replay(graph, vector)
    document = whatif_document(graph, scalings, vector, timeline, watch.seconds)
    if as_json:
        _print(_dumps(document))
    else:
        from emo.api.analysis import WhatIfReport
        from emo.summary import whatif_text

        _print(whatif_text(WhatIfReport.model_validate(document)))
    _require_complete_step(sum(is_complete(step) for trace in read for step in trace.quality.steps), traces)
    return EXIT_OK


@app.command(
    name="plan",
    epilog=_examples(
        "emo plan trace.json.gz --gpu H100 --max-slowdown 5%",
        "emo plan rank*.json.gz --gpu A100 --untraced-step-ms 212 -o report.html",
        "emo plan trace.json.gz --gpu V100 --plan plan.json --json | jq .rungs",
    ),
)
def plan_command(
    traces: Traces,
    gpu: Annotated[
        str,
        typer.Option("--gpu", metavar="MODEL", show_default=False, help="GPU to plan for, e.g. A100 or H100"),
    ],
    max_slowdown: Annotated[
        str,
        typer.Option("--max-slowdown", metavar="SHARE", help="how much longer a step may take: 5% or 0.05"),
    ] = "5%",
    untraced_step_ms: Annotated[
        float | None,
        typer.Option(
            "--untraced-step-ms", metavar="MS", help="step time without the profiler, which slows the CPU"
        ),
    ] = None,
    output: Report = None,
    plan: Annotated[
        str | None, typer.Option("--plan", metavar="FILE.json", help="write the plan as a JSON document")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Choose a clock for every GPU that saves energy within the allowed slowdown.

    Time and power come from priors by kernel class, so the plan is a recommendation. It holds under
    the exact replay of the trace.
    """
    from emo.outputs import check_outputs

    outputs = check_outputs({"--output": output, "--plan": plan}, traces)

    from emo.plan.command import parse_ratio, run

    slowdown = parse_ratio(max_slowdown)
    with StageProgress(len(traces) + 3 + len(outputs)) as progress:
        result = run(
            traces, gpu=gpu, max_slowdown=slowdown, untraced_step_ms=untraced_step_ms, progress=progress
        )
        if output is not None:
            from emo.report.html import write_report

            progress(f"writing {output}")
            write_report(result.analysis, outputs["--output"], plan=result.document)
        if plan is not None:
            from emo.files import write_atomically

            progress(f"writing {plan}")
            with write_atomically(outputs["--plan"]) as file:
                file.write(_dumps(result.document).encode() + b"\n")
    _print(_dumps(result.document) if as_json else result.text)
    _print_written(() if as_json else outputs.values())
    return EXIT_OK


@app.command(name="version")
def version_command(as_json: AsJson = False) -> int:
    """Print the versions of EMO, Python and the native extension."""
    from emo.doctor import version_document

    document = version_document()
    if as_json:
        _print(_dumps(document))
    else:
        from emo.api.environment import VersionReport
        from emo.summary import version_text

        _print(version_text(VersionReport.model_validate(document)))
    return EXIT_OK


@app.command(name="doctor")
def doctor_command(as_json: AsJson = False) -> int:
    """Say what EMO can use here, and what to do about the rest.

    Looks at the installation, the NVIDIA driver, permissions and optional packages. Works
    without a GPU, writes to none, and always exits with 0.
    """
    from emo.doctor import doctor_document

    document = doctor_document()
    if as_json:
        _print(_dumps(document))
    else:
        from emo.api.environment import DoctorReport
        from emo.summary import doctor_text

        _print(doctor_text(DoctorReport.model_validate(document)))
    return EXIT_OK


class _ReaderGoneError(Exception):
    """Whoever read our output has closed it."""


# --------------------------------------------------------------------------- shared by commands


def _rules(names: Sequence[str] | None) -> tuple[EdgeType, ...]:
    """Edge rules by their names on the command line; raises InputError."""
    if not names:
        return ()
    from emo.graph.model import EdgeType

    known = {rule.name.lower(): rule for rule in EdgeType}
    wanted = [name.lower().replace("-", "_") for name in names]
    for name in wanted:
        if name not in known:
            raise InputError(f"--without {name}: no such rule; expected one of {', '.join(known)}")
    return tuple(known[name] for name in wanted)


def _print(text: str) -> None:
    """Write to stdout at once, so that whatever goes wrong there is known here."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Under another name, since typer would end the program with code 1 on this one.
        raise _ReaderGoneError from None


def _print_written(paths: Iterable[Path]) -> None:
    for path in paths:
        _print(f"\nwritten: {printable(str(path))}")


def _dumps(document: dict[str, Any]) -> str:
    """One line of JSON. NaN, which JSON does not have, is a bug and raises ValueError."""
    import json

    return json.dumps(document, allow_nan=False, separators=(",", ":"))


def _require_complete_step(complete_steps: int, traces: Sequence[str]) -> None:
    """Raise QualityGateError if nothing can be concluded from any step (after it has been printed)."""
    if not complete_steps:
        raise QualityGateError(
            f"{', '.join(traces)}: no step is complete, launches lack their GPU ops; expected 99 % of them; "
            "record again with a larger profiler buffer or a shorter window"
        )


# --------------------------------------------------------------------------- the parser


def invoke(arguments: Sequence[str]) -> int:
    """Run the command that the arguments name and return its exit code; without any, show the help.

    Raises InputError for bad usage, BrokenPipeError if the reader of stdout has gone, and whatever
    the command raises.
    """
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal's encoding lacks must not end the program.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    command = typer.main.get_command(app)
    try:
        code = command.main(args=list(arguments) or ["--help"], prog_name="emo", standalone_mode=False)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        where = context.command_path if context is not None else "emo"
        raise InputError(f"{error.format_message().rstrip('.')}; see {where} --help") from None
    except _ReaderGoneError:
        raise BrokenPipeError from None
    except typer.Abort:
        raise KeyboardInterrupt from None
    return code if isinstance(code, int) else EXIT_OK
