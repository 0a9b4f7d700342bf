"""The worker process: runs one stage of a pipeline that was launched on this machine.

    python -m graphport.partition.pipelines.worker

What it has to do is said in its standard input, in terms of open files and sockets that it has
inherited. The process ends when the pipeline is closed, and when the process that has launched it
is gone, whatever it is doing. That is looked for from the start on, before the seconds that the
import of torch takes.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from importlib import import_module
from typing import Any

from graphport.partition.pipelines.sockets import SocketGroup, SocketStore

_POLL_SECONDS = 0.5


def main() -> None:
    about = json.load(sys.stdin)
    threading.Thread(target=_exit_with_parent, args=(about["parent"],), daemon=True).start()
    board = SocketStore([socket.socket(fileno=about["board"])], lost=lambda: os._exit(1))
    # The process that has launched this one decides what a Ctrl-C means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _run_stage(about, board)


def _exit_with_parent(parent: int) -> None:
    """End with the process that has launched this one, also if a fork of that has its sockets."""
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os._exit(1)


def _run_stage(about: dict[str, Any], board: SocketStore) -> None:
    import torch

    from graphport.partition.pipelines.rendezvous import Rendezvous
    from graphport.partition.pipelines.stage_server import (
        ConnectionLost,
        describe_error,
        make_stage_runner,
        make_stage_server,
    )
    from graphport.partition.pipelines.stages import FRONT, Route
    from graphport.partition.pipelines.wire import Channel
    from graphport.program.files import load

    torch.set_num_threads(about["threads"])
    stage = about["stage"]
    ranks = {FRONT: 0, **{k: k + 1 for k in range(len(about["routes"]))}}
    rendezvous = Rendezvous(board, ranks[stage], len(ranks))
    try:
        for name in about["imports"]:
            import_module(name)
        row = about["routes"][stage]
        route = Route(**{**row, "sends": {int(to): names for to, names in row["sends"].items()}})
        program = None
        if "program" in about:
            program = load(f"/dev/fd/{about['program']}", verify=False, allow=("*",))
            os.close(about["program"])
        run = make_stage_runner(about["runtime"], program)
    except Exception as error:
        rendezvous.report_failure(describe_error(error))
        raise
    rendezvous.ready()
    rendezvous.wait_for_start(about["start_timeout"])
    sockets = {int(rank): socket.socket(fileno=n) for rank, n in about["sockets"].items()}
    channel = Channel(SocketGroup(sockets), ranks[stage])
    try:
        make_stage_server(route, run, channel, ranks).serve_until_closed()
    except ConnectionLost:
        sys.exit(1)  # another process has failed, and the front says so


if __name__ == "__main__":
    main()
