"""The command line's process: what it ends with, and what it says when something goes wrong.

Exit codes: 0 ok, 1 own failure, 2 bad input or usage, 3 no feasible plan, 4 quality gate refused,
130 interrupted, 141 the reader of a pipe went away.

The commands are in :mod:`emo.cli.commands`. They are imported inside :func:`main`, so that an
interruption while Python still loads them ends as quietly as a later one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from emo.errors import EmoError

EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 1, 130, 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code. Nothing is raised, whatever happens."""
    # Set before numpy is imported: starting a pool of threads that nothing here uses takes longer
    # than all the linear algebra there is.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        from emo.cli.commands import invoke

        code = invoke(sys.argv[1:] if arguments is None else arguments)
        if sys.stdout is not None:  # None: started with a closed stdout
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _discard_stdout()
        return EXIT_BROKEN_PIPE
    except OSError as error:
        _discard_stdout()
        where = error.filename if error.filename is not None else "standard output"
        return _complain(f"{where}: {error.strerror or error}", EXIT_FAILURE)
    except EmoError as error:
        return _complain(str(error), error.exit_code)
    except MemoryError:
        found = "out of memory; expected about three times the size of the uncompressed trace"
        return _complain(f"{found}; record a shorter window", EXIT_FAILURE)
    except Exception as error:
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        advice = "please report this with the command that you ran; set EMO_DEBUG=1 for a traceback"
        return _complain(f"internal: {what}; {advice}", EXIT_FAILURE)


def _discard_stdout() -> None:
    """Python flushes stdout once more at exit; where that cannot succeed it must not complain."""
    if sys.stdout is sys.__stdout__ and sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(message: str, exit_code: int) -> int:
    if os.environ.get("EMO_DEBUG") == "1":
        import traceback

        traceback.print_exc()
    from emo.terminal import printable

    print(f"emo: error: {printable(message)}", file=sys.stderr)
    return exit_code
