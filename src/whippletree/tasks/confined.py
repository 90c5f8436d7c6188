"""Runs a suite's grader inside a sandbox, and says on a line of its own what it printed. Standard library alone.

Its text is handed to the sandbox's Python, so that nothing of this package has to lie there. A grader may run what the
agent has written; that code is a child of it, and must not be able to speak in its place. So the way out is a
descriptor that children do not inherit, the process is closed to others of the same user (they could open its
descriptors through /proc), and the line begins with a secret that came on standard input.
"""

import ctypes
import io
import json
import os
import runpy
import sys
import traceback

CRASHED = 70


def main() -> None:
    """Run the script that is named by the first argument with the others, and say what it printed. Never returns."""
    secret = sys.stdin.readline().strip()
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
    way_out = os.dup(1)  # not inherited
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    script, *arguments = sys.argv[1:]
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(script))  # noqa: PTH120
    kept = io.BytesIO()
    sys.stdout = io.TextIOWrapper(kept, encoding="utf-8", write_through=True)
    code: object = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = CRASHED
    if code not in (None, 0):
        if not isinstance(code, int):  # as Python itself does
            print(code, file=sys.stderr, flush=True)
            code = 1
        os._exit(code)
    said = kept.getvalue().decode("utf-8", errors="replace")
    with os.fdopen(way_out, "w", encoding="utf-8") as out:
        out.write(f"\n{secret} {json.dumps(said)}\n")
    os._exit(0)  # what the grader has left running may not hold it up


if __name__ == "__main__":
    main()
