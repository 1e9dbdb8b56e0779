"""python -m qsidecar work module:app"""

from __future__ import annotations

import argparse
import importlib
import io
import logging
import os
import sys
import traceback
from typing import Dict, List, Optional, Tuple

from ._processes import fork_if_first
from .client import ORDERS
from .errors import Error
from .worker import ACKS, App, exit_code


EXITS = (
    "Exit codes: 0 it was stopped or has drained, 1 it cannot go on or got a second signal, 2 wrong arguments, "
    "5 the sidecar or its database is away (--drain), or was for a minute when the worker ended."
)


def _queue(text: str) -> Tuple[str, Optional[int]]:
    name, equals, count = text.partition("=")
    if "," in name:
        raise argparse.ArgumentTypeError(f"{text!r}: name each queue with a --queue of its own")
    if not name or equals and not (count.isdecimal() and int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} isn't a queue, or a queue and how many of its jobs run at once: mail=8")
    return name, int(count) if equals else None


def _weights(text: str) -> Dict[str, int]:
    weights = {}
    for item in text.split(","):
        name, _, number = item.strip().partition("=")
        if not name or not number.isdecimal() or name in weights:
            raise argparse.ArgumentTypeError(f"{text!r} isn't a list of different queues and numbers: mail=3,bulk=1")
        weights[name] = int(number)
    return weights


def _broken(module: str, error: BaseException) -> int:
    """Prints why the application's module can't be imported, with its own part of the traceback."""
    at = error.__traceback__
    while at is not None and ("importlib" in at.tb_frame.f_code.co_filename or at.tb_frame.f_globals is globals()):
        at = at.tb_next
    traceback.print_exception(type(error), error, at)
    print(f"qsidecar: the module {module} can't be imported: its error is above", file=sys.stderr)
    return 1


def main(args: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m qsidecar", description="Works the jobs of an app's queues.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="work")
    work = commands.add_parser("work", help="work until SIGTERM, which lets the jobs under way finish", epilog=EXITS)
    work.add_argument("app", metavar="MODULE:APP", help="where the qsidecar.App is, mailer:app for example")
    work.add_argument("-j", "--concurrency", type=int, default=8, metavar="N", help="so many jobs at once (default: 8)")
    work.add_argument(
        "-q",
        "--queue",
        action="append",
        type=_queue,
        metavar="NAME[=N]",
        help="work this queue of the app, with N jobs at once of its own; can be repeated (default: all, which share -j)",
    )
    work.add_argument("--processes", action="store_true", help="in processes of one thread each, not in threads")
    work.add_argument("--drain", action="store_true", help="end when nothing is ready and the own jobs are done")
    work.add_argument(
        "--order",
        choices=ORDERS[::-1],
        default="rotate",
        help="strict: a queue's jobs come only if those before it are empty; rotate: the queues take turns (default)",
    )
    work.add_argument(
        "--weights", type=_weights, metavar="NAME=N,…", help="turns of queues where the others have one, as mail=3,bulk=1 (default: all 1)"
    )
    work.add_argument("--ack", choices=ACKS, default=ACKS[0], help="sync: wait for each ack before the next job (default: behind)")
    chosen, rest = parser.parse_known_args(args)
    if rest:
        hint = ": did you mean -j (--concurrency)?" if rest[0].partition("=")[0] in ("-c", "--jobs", "--threads", "--workers") else ""
        parser.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
    if chosen.concurrency < 1:
        parser.error("--concurrency is 1 at least")
    module, _, name = chosen.app.partition(":")
    if not all(part.isidentifier() for part in [*module.split("."), name]):
        parser.error(f"name the app as MODULE:APP, mailer:app for example, not {chosen.app!r}")
    if module.endswith(".py"):
        parser.error(f"a module's name has no .py: {module[:-3]}:{name}")
    queues = dict(chosen.queue) if chosen.queue else None
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Otherwise the output of a job is invisible in a file or pipe until a buffer is full, and lost if the worker is killed.
        sys.stdout.reconfigure(line_buffering=True)
    fork_if_first()  # before the module, which can start threads and connect to databases
    sys.path.insert(0, "")  # import modules from the working directory
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as e:
        if e.name is None or not f"{module}.".startswith(f"{e.name}."):
            return _broken(module, e)  # the module was found, and imports another one that is missing
        print(f"qsidecar: {e}, neither in {os.getcwd()} nor on Python's path (PYTHONPATH)", file=sys.stderr)
        return 2
    except Exception as e:
        return _broken(module, e)
    app = getattr(loaded, name, None)
    if not logging.getLogger("qsidecar").hasHandlers():  # the application has not configured logging
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if not isinstance(app, App):
        apps = [f"{module}:{key}" for key, value in vars(loaded).items() if isinstance(value, App)]
        found = f"it has {', '.join(apps)}" if apps else "it has no qsidecar.App"
        wrong = f"{chosen.app} isn't a qsidecar.App, but {app!r}" if hasattr(loaded, name) else f"{module} has no {name}"
        print(f"qsidecar: {wrong}; {found}", file=sys.stderr)
        return 2
    try:
        app._shares(chosen.concurrency, queues)
        app._check_weights(queues, chosen.order, chosen.weights)
    except ValueError as e:
        print(f"qsidecar: {chosen.app}: {e}", file=sys.stderr)
        return 2
    try:
        app.run(
            chosen.concurrency,
            queues=queues,
            processes=chosen.processes,
            drain=chosen.drain,
            ack=chosen.ack,
            order=chosen.order,
            weights=chosen.weights,
        )
    except Error as e:
        print(f"qsidecar: {e}", file=sys.stderr)
        return exit_code(e)
    return 0


if __name__ == "__main__":
    sys.exit(main())
