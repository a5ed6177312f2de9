"""Cells: processes that measure candidates, one candidate at a time each, and may die of it.

A `Cell` is a child process and the patience that its jobs get.  What is killed, crashes or hangs is a
rejected candidate, and the next job gets a new process.  `run_job` runs one in the cell of the calling
thread; that is what executors call, be they threads here (`local_executor`) or workers of a Dask cluster
(`dask_executor`).

The processes are started as commands, not by `multiprocessing`: a script that calls `rt.tune` then needs no
`if __name__ == "__main__"`, and Dask's workers, which are daemons, may have no other children.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import queue
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

from ...errors import DeviceError, UserError
from ...runtime.tuned import Place

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.stdin.readline()); "
    "from retarget.optimize.search.worker import main; main()"
)
#: Seconds to wait for an answer that is not to a candidate.
_PATIENCE = 120.0
#: Jobs after which a process is replaced: what candidates leak goes with it.
_JOBS = 500

_own = threading.local()
_cells: weakref.WeakSet[Cell] = weakref.WeakSet()


class Cell:
    """One worker process, started when a job needs it.

    Parameters
    ----------
    command
        What to start instead of the worker; it speaks as `worker` says.
    """

    def __init__(self, command: Sequence[str] = (sys.executable, "-c", _START)) -> None:
        self.command = list(command)
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._jobs = 0
        self._closed = False
        _cells.add(self)

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """Return the result of a job; one that the process did not survive is rejected.

        The job's "limits" say how many seconds each phase may take; waiting for other measurements on the
        machine does not count.
        """
        limits = job.get("limits", {})
        try:
            process = self._started()
            assert process.stdin is not None
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
        except OSError as error:
            self.stop()
            return {"rejected": "crash", "detail": str(error)}
        phase, patience = "start", _PATIENCE
        while True:
            try:
                line = self._lines.get(timeout=patience)
            except queue.Empty:
                self.stop()
                return {"rejected": "too slow", "detail": f"{phase} took longer than {patience:g} s"}
            if not line:
                code = self.stop()
                return {"rejected": "crash", "detail": f"its process ended with {_ending(code)} at {phase}"}
            try:
                message = json.loads(line)
            except ValueError:
                self.stop()
                return {"rejected": "crash", "detail": f"its process wrote {line[:60]!r}"}
            if "result" in message:
                return message["result"]  # type: ignore[no-any-return]
            phase = message["phase"]
            patience = limits.get(phase, _PATIENCE)

    def stop(self) -> int | None:
        """End the process, if there is one; return its status."""
        process, self._process = self._process, None
        if process is None:
            return None
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        return process.returncode

    def close(self) -> None:
        """End the process, and start no other."""
        self._closed = True
        self.stop()

    def __del__(self) -> None:
        self.stop()

    def _started(self) -> subprocess.Popen[str]:
        if self._closed:
            raise OSError("the search has ended")
        self._jobs += 1
        if self._jobs > _JOBS or (self._process is not None and self._process.poll() is not None):
            self.stop()
            self._jobs = 0
        if self._process is None:
            process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                text=True, encoding="utf-8", start_new_session=True,
            )  # fmt: skip
            self._process = process
            self._lines = queue.SimpleQueue()
            threading.Thread(target=_read, args=(process, self._lines), daemon=True).start()
            assert process.stdin is not None
            process.stdin.write(json.dumps(sys.path) + "\n")
        return self._process


def _read(process: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
    """Pass on what a process says; an empty line is its end."""
    assert process.stdout is not None
    with contextlib.suppress(ValueError, OSError):  # closed from the other side
        for line in process.stdout:
            lines.put(line)
    lines.put("")


def _ending(code: int | None) -> str:
    import signal

    if code is None or code >= 0:
        return f"status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def run_job(job: dict[str, Any]) -> dict[str, Any]:
    """Run a job in the cell of this thread."""
    cell: Cell | None = getattr(_own, "cell", None)
    if cell is None or cell._closed:
        cell = _own.cell = Cell()
    return cell.run(job)


def close_cells() -> None:
    """End the worker processes of this process."""
    for cell in list(_cells):
        cell.close()


@contextlib.contextmanager
def local_executor(workers: int) -> Iterator[tuple[Executor, int]]:
    """Give an executor whose threads have a worker process each, and how many there are."""
    pool = ThreadPoolExecutor(workers, thread_name_prefix="retarget-tune")
    try:
        yield pool, workers
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        close_cells()


@contextlib.contextmanager
def dask_executor(address: str, place: Place, device: str) -> Iterator[tuple[Executor, int]]:
    """Give the executor of a Dask cluster's workers, and how many threads they have.

    Only workers on machines like this one are used: a schedule is kept for the machine it was measured on.

    Raises
    ------
    UserError
        If `distributed` is not installed, or nothing answers at the address.
    DeviceError
        If no worker measures for this place; the text says what differs.
    """
    try:
        connect: Any = importlib.import_module("distributed").Client
    except ImportError as error:
        raise UserError(
            "--scheduler needs dask.distributed: pip install 'retarget[distributed]'"
        ) from error
    try:
        client = connect(address, timeout=10, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise UserError(f"no Dask scheduler answers at {address!r}: {error}") from error
    with client:
        asked = {"kind": "place", "target": place.target, "device": device}
        answers: dict[str, Any] = client.run(run_job, asked, on_error="return")
        if not answers:
            raise DeviceError(f"the Dask scheduler at {address} has no workers")
        fit, others = [], []
        for worker, answer in sorted(answers.items()):
            if isinstance(answer, BaseException) or "place" not in answer:
                why = repr(answer) if isinstance(answer, BaseException) else answer.get("detail", "no answer")
                others.append(f"{worker}: {why}")
                continue
            differences = place.differences(Place(*answer["place"]))
            if differences:
                others.append(f"{worker}: {'; '.join(differences)}")
            else:
                fit.append(worker)
        if not fit:
            raise DeviceError(
                "no worker of the cluster measures what would hold here; start workers on machines like this "
                "one, with the same packages\n  " + "\n  ".join(others)
            )
        for line in others:
            warnings.warn(f"a worker is left out: what it measures does not hold here: {line}", stacklevel=2)
        threads = sum(client.nthreads()[w] for w in fit)
        try:
            yield client.get_executor(workers=fit, retries=0), threads
        finally:
            with contextlib.suppress(OSError, TimeoutError):
                client.run(close_cells, workers=fit, on_error="ignore")
