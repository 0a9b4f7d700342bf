"""A process that runs one stage of a pipeline that another process on this machine has launched.

    python -m graphport.distributed.workers FOLDER STAGE

The folder has `pipeline.json` and the program of the stage. The process ends when the pipeline is
closed, and when the process that has launched it is gone, whatever it is doing. That is looked for
from the start on, before the seconds that the import of torch takes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

_LOOK = 0.5


def main(folder: Path, stage: int) -> None:
    about = json.loads((folder / "pipeline.json").read_text())
    threading.Thread(target=_follow, args=(about["parent"], folder), daemon=True).start()
    # The process that has launched this one decides what a Ctrl-C means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _work(about, folder, stage)


def _follow(parent: int, folder: Path) -> None:
    """End with the process that has launched this one."""
    while os.getppid() == parent:
        time.sleep(_LOOK)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def _work(about: dict[str, Any], folder: Path, stage: int) -> None:
    import torch
    import torch.distributed as dist

    from graphport.distributed.meeting import Meeting
    from graphport.distributed.runtimes import runtime
    from graphport.distributed.serving import Lost, described, serving
    from graphport.distributed.stages import FRONT, Route
    from graphport.program.files import load

    torch.set_num_threads(about["threads"])
    store = dist.TCPStore(about["host"], about["port"], wait_for_workers=False)
    ranks = {FRONT: 0, **{k: k + 1 for k in range(len(about["routes"]))}}
    meeting = Meeting(store, ranks[stage], len(ranks))
    try:
        for name in about["imports"]:
            import_module(name)
        row = about["routes"][stage]
        route = Route(**{**row, "sends": {int(to): names for to, names in row["sends"].items()}})
        path = folder / f"stage{stage}.gpx"
        run = runtime(about["runtime"], load(path, verify=False) if path.exists() else None)
    except Exception as error:
        meeting.failed(described(error))
        raise
    meeting.ready()
    meeting.wait_to_begin(about["start_timeout"])
    channel = meeting.connected(about["host"])
    try:
        serving(route, run, channel, ranks).until_closed()
    except Lost:
        sys.exit(1)  # another process has failed, and the front says so


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
