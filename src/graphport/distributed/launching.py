"""Processes on this machine, one for each stage of a pipeline, and their end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from graphport.distributed.stages import Staged
from graphport.program.files import save

HOST = "127.0.0.1"
_TAIL = 6
"""Lines of what a process wrote that are shown when it dies."""


class Processes:
    """Started at once; none is left after `stop`, or when this object or its process is gone."""

    def __init__(self, parts: Staged, settings: Mapping[str, Any]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="graphport-pipeline-"))
        self.running: list[subprocess.Popen[bytes]] = []
        self.stop = weakref.finalize(self, _stop, os.getpid(), self.running, self.folder)
        try:
            self._write(parts, settings)
            for stage in parts.stages:
                self.running.append(self._start(stage.route.index))
        except BaseException:
            self.stop()
            raise

    def _write(self, parts: Staged, settings: Mapping[str, Any]) -> None:
        """Each stage to a file of its own: a process reads its weights, and no others."""
        routes = [asdict(s.route) for s in parts.stages]
        about = {**settings, "parent": os.getpid(), "host": HOST, "routes": routes}
        (self.folder / "pipeline.json").write_text(json.dumps(about))
        for stage in parts.stages:
            if stage.program is not None:
                save(stage.program, self.folder / f"stage{stage.route.index}.gpx")

    def _start(self, stage: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "graphport.distributed.workers", str(self.folder)]
        # What this process can import the others can, too.
        paths = os.pathsep.join(os.path.abspath(p) for p in sys.path)
        with open(self._log(stage), "wb") as log:
            return subprocess.Popen(
                [*command, str(stage)], stdin=subprocess.DEVNULL, stderr=log,
                env={**os.environ, "PYTHONPATH": paths}, start_new_session=True,
            )  # fmt: skip

    def _log(self, stage: int) -> Path:
        return self.folder / f"stage{stage}.log"

    @property
    def ids(self) -> dict[int, int]:
        """By stage, the number of its process."""
        return {k: p.pid for k, p in enumerate(self.running)}

    def deaths(self) -> dict[int, str]:
        """The processes that have ended, and how; those that were killed first."""
        codes = {k: p.poll() for k, p in enumerate(self.running)}
        ended = {k: code for k, code in codes.items() if code is not None}
        return {k: _how(ended[k]) for k in sorted(ended, key=lambda k: (ended[k] >= 0, k))}

    def last_words(self, stage: int) -> Sequence[str]:
        try:
            return self._log(stage).read_text(errors="replace").splitlines()[-_TAIL:]
        except OSError:
            return ()


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _stop(owner: int, running: Sequence[subprocess.Popen[bytes]], folder: Path) -> None:
    """End them: gently those that listen, then for certain."""
    if os.getpid() != owner:
        return  # a fork of the process that they belong to
    for process in running:
        process.terminate()
    until = monotonic() + 2
    while monotonic() < until and any(p.poll() is None for p in running):
        sleep(0.02)
    for process in running:
        process.kill()
        process.wait()
    shutil.rmtree(folder, ignore_errors=True)
