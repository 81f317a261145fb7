"""Critical path of one trace by HolisticTraceAnalysis, as one JSON line: the peer in ``make bench``.

Run by the peer's own interpreter (see ``bench_peer.py``), never imported by EMO::

    .bench/peer/bin/python tests/bench/hta_peer.py TRACE [--reevaluate N]

The whole window is analysed: an empty annotation selects every event, and the last profiler
step, which HTA drops unless told otherwise, is kept. Printed are

``import_s``       start-up: importing HTA
``seconds``        from the file to the critical path, start-up not counted
``reevaluate_s``   N further searches for the longest path in the finished graph: what a what-if
                   costs there at least, once the edge weights have been edited by hand
``peak_rss_bytes`` of this process
"""

from __future__ import annotations

import argparse
import json
import logging
import resource
import sys
import time


def main() -> int:
    """Analyse the trace named on the command line; exit code 1 if HTA finds no critical path."""
    parser = argparse.ArgumentParser(description="critical path of one trace by HTA, as one JSON line")
    parser.add_argument("trace")
    parser.add_argument("--reevaluate", type=int, default=0, metavar="N")
    arguments = parser.parse_args()

    begin = time.perf_counter()
    from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found]

    imported = time.perf_counter()
    logging.getLogger("hta").setLevel(logging.ERROR)
    analysis = TraceAnalysis(trace_files={0: arguments.trace}, include_last_profiler_step=True)
    loaded = time.perf_counter()
    graph, found = analysis.critical_path_analysis(rank=0, annotation="", instance_id=None)
    done = time.perf_counter()
    if not found:
        print("HTA found no critical path", file=sys.stderr)
        return 1

    reevaluate_s = []
    if arguments.reevaluate:
        import networkx  # type: ignore[import-untyped,unused-ignore]

        for _ in range(arguments.reevaluate):
            start = time.perf_counter()
            networkx.dag_longest_path(graph, weight="weight")
            reevaluate_s.append(time.perf_counter() - start)

    result = {
        "import_s": imported - begin,
        "load_s": loaded - imported,
        "critical_path_s": done - loaded,
        "seconds": done - imported,
        "reevaluate_s": reevaluate_s,
        # Linux counts ru_maxrss in KiB.
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "nodes": graph.number_of_nodes(),
        "edges": graph.number_of_edges(),
        "critical_path_nodes": len(graph.critical_path_nodes),
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
