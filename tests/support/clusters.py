"""A standalone Spark cluster on this machine: a master, and workers as a test wants them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pyspark

from instar.pipeline.session import java_home, jvm_options

_PACKAGE = "org.apache.spark.deploy"
_SECONDS = 60.0
# Begins a command that is killed when the process which has started it ends, however that ends.
_END_WITH_PARENT = ["setpriv", "--pdeathsig", "KILL"]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class Cluster:
    """`url` is its master. What it writes lies under `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._started: list[subprocess.Popen[bytes]] = []
        port = free_port()
        self.url = f"spark://127.0.0.1:{port}"
        master = ["master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
        self._master = self._start(master, "New state: ALIVE")

    def worker(self, *, within: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """Start a worker with two cores, whose command line is begun by `within`; returns when it has registered."""
        work = self._directory / f"work-{len(self._started)}"
        arguments = ["--host", "127.0.0.1", "--webui-port", "0", "-c", "2", "-m", "1g", "-d", str(work), self.url]
        return self._start(["worker.Worker", *arguments], "Successfully registered with master", within)

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        """End one of its processes, with what it has started."""
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        """End all of it."""
        for process in self._started:
            if process.poll() is None:
                self.stop(process)

    def _start(self, arguments: list[str], ready: str, within: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        log = self._directory / f"log-{len(self._started)}"
        home = Path(pyspark.__file__).parent
        (core,) = (home / "jars").glob("spark-core_*.jar")
        java = [str(java_home() / "bin" / "java"), *jvm_options(java_home()), "-Xmx256m"]
        java += ["-cp", f"{home / 'conf'}:{home / 'jars' / '*'}"]  # as Spark's own scripts do
        environment = {
            "PATH": os.environ["PATH"],
            "SPARK_LOCAL_DIRS": str(self._directory),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_HOME": str(home),
            "SPARK_SCALA_VERSION": core.name.split("_")[1].split("-")[0],
            "JAVA_HOME": str(java_home()),
        }
        with log.open("wb") as output:
            started = subprocess.Popen(
                [*within, *_END_WITH_PARENT, *java, f"{_PACKAGE}.{arguments[0]}", *arguments[1:]],
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        self._started.append(started)
        deadline = time.monotonic() + _SECONDS
        while ready not in log.read_text(errors="replace"):
            gone = started.poll() is not None or time.monotonic() > deadline
            assert not gone, log.read_text(errors="replace")[-2000:]
            time.sleep(0.05)
        return started
