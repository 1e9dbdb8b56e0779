"""python -m qsidecar work module:app"""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from typing import List, Optional

from ._processes import fork_if_first
from .errors import Error
from .worker import ACKS, App, exit_code


EXITS = (
    "Exit codes: 0 it was stopped or has drained, 1 it cannot go on, 2 wrong arguments, "
    "5 (--drain) no sidecar answers, or its database is away."
)


def main(args: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m qsidecar", description="Works the jobs of an app's queues.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="work")
    work = commands.add_parser("work", help="work until SIGTERM, which lets the jobs under way finish", epilog=EXITS)
    work.add_argument("app", metavar="MODULE:APP", help="where the qsidecar.App is, mailer:app for example")
    work.add_argument("-j", "--concurrency", type=int, default=8, metavar="N", help="so many jobs at once (default: 8)")
    work.add_argument("--processes", action="store_true", help="in processes of one thread each, not in threads")
    work.add_argument("--drain", action="store_true", help="end when nothing is ready and the own jobs are done")
    work.add_argument("--ack", choices=ACKS, default=ACKS[0], help="sync: wait for each ack before the next job (default: behind)")
    chosen = parser.parse_args(args)
    if chosen.concurrency < 1:
        parser.error("--concurrency is 1 at least")
    module, colon, name = chosen.app.partition(":")
    if not module or not colon or not name:
        parser.error(f"name the app as MODULE:APP, mailer:app for example, not {chosen.app!r}")
    fork_if_first()  # before the module, which can start threads and connect to databases
    sys.path.insert(0, "")  # import modules from the working directory
    app = getattr(importlib.import_module(module), name, None)
    if not logging.getLogger("qsidecar").hasHandlers():  # the application has not configured logging
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if not isinstance(app, App):
        print(f"qsidecar: {chosen.app} is no qsidecar.App but {app!r}", file=sys.stderr)
        return 2
    try:
        app.run(chosen.concurrency, processes=chosen.processes, drain=chosen.drain, ack=chosen.ack)
    except Error as e:
        print(f"qsidecar: {e}", file=sys.stderr)
        return exit_code(e)
    return 0


if __name__ == "__main__":
    sys.exit(main())
