"""The command line: ``emo analyze``, ``emo whatif``, ``emo version``, ``emo doctor``.

A thin shell: options in, one document out, errors as one line. The work is done elsewhere, and
is imported only by the command that needs it, since most of a short run's time is imports.

Exit codes: 0 ok, 1 own failure, 2 bad input or usage, 3 no feasible plan, 4 quality gate refused,
130 interrupted, 141 the reader of a pipe went away.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from emo.errors import EmoError, InputError, QualityGateError
from emo.terminal import StageProgress, printable

if TYPE_CHECKING:
    from emo.graph.model import EdgeType

EXIT_OK, EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 0, 1, 130, 141

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
    output: Annotated[
        str | None,
        typer.Option(
            "-o", "--output", metavar="FILE.html", help="write an HTML report, one self-contained file"
        ),
    ] = None,
    overlay: Annotated[
        str | None,
        typer.Option(
            "--overlay",
            metavar="FILE.json.gz",
            help="write the trace with critical path and slack, for ui.perfetto.dev",
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
        _print_json(document)
    else:
        from emo.api.analysis import AnalysisReport
        from emo.summary import analysis_text

        _print(analysis_text(AnalysisReport.model_validate(document)))
        for path in outputs.values():
            _print(f"written: {printable(str(path))}")
    _require_complete_step(analysis.complete_steps, traces)
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
    from emo.documents import complete_steps, whatif_document
    from emo.graph.build import build_graph
    from emo.graph.replay import replay
    from emo.graph.whatif import scale_vector

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
        _print_json(document)
    else:
        from emo.api.analysis import WhatIfReport
        from emo.summary import whatif_text

        _print(whatif_text(WhatIfReport.model_validate(document)))
    _require_complete_step(sum(complete_steps(trace.quality.steps) for trace in read), traces)
    return EXIT_OK


@app.command(name="version")
def version_command(as_json: AsJson = False) -> int:
    """Print the versions of EMO, Python and the native extension."""
    from emo.doctor import version_document

    document = version_document()
    if as_json:
        _print_json(document)
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
        _print_json(document)
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


def _print_json(document: dict[str, Any]) -> None:
    import json

    _print(json.dumps(document, allow_nan=False, separators=(",", ":")))


def _require_complete_step(complete_steps: int, traces: Sequence[str]) -> None:
    """Raise QualityGateError if nothing can be concluded from any step (after it has been printed)."""
    if not complete_steps:
        raise QualityGateError(
            f"{', '.join(traces)}: no step is complete, launches lack their GPU ops; expected 99 % of them; "
            "record again with a larger profiler buffer or a shorter window"
        )


# --------------------------------------------------------------------------- the process


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code. Nothing is raised, whatever happens."""
    # Set before numpy is imported: starting a pool of threads that nothing here uses takes longer
    # than all the linear algebra there is.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        code = _run(list(sys.argv[1:] if arguments is None else arguments))
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except (_ReaderGoneError, BrokenPipeError):
        _discard_stdout()
        return EXIT_BROKEN_PIPE
    except OSError as error:
        _discard_stdout()
        where = error.filename if error.filename is not None else "standard output"
        return _complain(f"{where}: {error.strerror or error}", EXIT_FAILURE)
    except EmoError as error:
        return _complain(str(error), error.exit_code)
    except typer.TyperException as error:
        return _complain(f"{error.format_message().rstrip('.')}; see {_help_of(error)}", error.exit_code)
    except MemoryError:
        return _complain(
            "out of memory; expected about three times the uncompressed trace; record less", EXIT_FAILURE
        )
    except Exception as error:
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        advice = "please report this with the command that you ran; set EMO_DEBUG=1 for a traceback"
        return _complain(f"internal: {what}; {advice}", EXIT_FAILURE)


def _run(arguments: list[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal's encoding lacks must not end the program.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    command = typer.main.get_command(app)
    code = command.main(args=arguments or ["--help"], prog_name="emo", standalone_mode=False)
    return code if isinstance(code, int) else EXIT_OK


def _discard_stdout() -> None:
    """Python flushes stdout once more at exit; where that cannot succeed it must not complain."""
    if sys.stdout is sys.__stdout__ and sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(message: str, exit_code: int) -> int:
    if os.environ.get("EMO_DEBUG") == "1":
        import traceback

        traceback.print_exc()
    print(f"emo: error: {printable(message)}", file=sys.stderr)
    return exit_code


def _help_of(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.command_path} --help" if context is not None else "emo --help"
