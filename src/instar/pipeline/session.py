"""The one Spark session of a process: found, started, kept warm, stopped.

Starting Spark takes five to ten seconds (a JVM, the first Python workers), so the session belongs in the
background worker, is started when the first large piece of work comes, and stays. Nothing in a foreground path imports
this module's Spark.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from instar import errors
from instar.gently import set_aside
from instar.pipeline.read_ahead import read_ahead
from instar.pipeline.scratch import MEMORY, fits_in_memory, new_scratch
from instar.scheduling import in_idle_thread

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

MINIMUM_JAVA = 17
INSTALLED = Path("/usr/lib/jvm")
DEFAULT_MASTER = "local[*]"
MASTER = "INSTAR_SPARK_MASTER"  # the environment variable that names another
DEFAULT_MEMORY = "1g"

# A task is tried again if its Python worker dies; local mode would give up at once.
TASK_ATTEMPTS = 4
_LOCAL_MASTER = re.compile(r"local(\[([0-9]+|\*)\])?")

# The work is done in Python and in Spark's sorter. The quick compiler and the plain collector bring the first job from
# 11 s to 6 s after the start, cost little later, and leave the cores to whoever uses the database.
_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")

_LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
"""

_lock = threading.Lock()
_session: SparkSession | None = None
_in_memory = False  # the session's local files


def spark_session(
    master: str | None = None,
    memory: str = DEFAULT_MEMORY,
    *,
    background: bool = False,
    need: int | None = None,
    archive: Path | None = None,
) -> SparkSession:
    """The process's Spark session, started by the first call; later calls get the same one, whatever they ask for.

    `master` is Spark's master URL (or else what INSTAR_SPARK_MASTER says), `memory` the heap of driver and executors in
    Spark's notation; `background`: Spark, with the Python processes that it starts, is to run only when nobody else on
    the machine wants the processor, and on half of them (a cluster's own processes go by its settings).
    `need` is how many bytes the work makes Spark write on the way, at most: files in memory must have room for it.
    `archive`: where the JVM is to write its classes when it ends, instead of using those that another has written.
    55000 if there is no Java that Spark runs on, 58030 if Spark does not start.
    """
    global _session, _in_memory
    if _in_memory and (need is None or not fits_in_memory(need)):
        stop_session()
    with _lock:
        if _session is not None and (not jvm_runs(_session) or _is_stopped(_session)):
            old, _session = _session, None
            _stop(old)
        if _session is None:
            chosen = master or os.environ.get(MASTER) or (background_master() if background else DEFAULT_MASTER)
            local = new_scratch(need)
            _in_memory = local.parent == MEMORY
            _session = _start(chosen, memory, background, local, archive)
        return _session


def background_master() -> str:
    """Where Spark runs in the background: on half of this host's processors, at least on one."""
    return f"local[{max(1, (os.cpu_count() or 1) // 2)}]"


def is_lost() -> bool:
    """Whether the process's JVM is gone; asked when a job has failed, so it is given a second to die."""
    session = _session
    if session is None:
        return True
    gateway: Any = session.sparkContext._gateway
    if gateway.proc is None:
        return False
    try:
        gateway.proc.wait(timeout=1.0)
    except subprocess.TimeoutExpired:
        return False
    return True


def activate(session: SparkSession) -> None:
    """Make `session` the calling thread's own: where PySpark is handed functions it looks for the thread's session, and
    a new thread has none. (Spark's Python API offers this to the thread that made the session only.)"""
    jvm: Any = session._jvm
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)


def stop_session() -> None:
    """Stop the process's session if it has one, its JVM included."""
    global _session
    with _lock:
        session, _session = _session, None
    if session is not None:
        _stop(session)


def _is_stopped(session: SparkSession) -> bool:
    """Whether Spark itself has given up (its cluster is gone, or no executor could be started), or does not answer: its
    JVM has ended just now."""
    from py4j.protocol import Py4JError

    context: Any = session.sparkContext
    try:
        stopped: bool = context._jsc.sc().isStopped()
    except (Py4JError, OSError):
        return True
    return stopped


def _stop(session: SparkSession) -> None:
    from py4j.protocol import Py4JError

    context: Any = session.sparkContext
    if jvm_runs(session):
        with contextlib.suppress(Py4JError, OSError):  # it has ended meanwhile
            session.stop()
    _close(context._gateway)  # the JVM has no public handle
    _forget()


def _close(gateway: Any) -> None:
    """End a JVM if it has not ended, and what this process has for talking to it."""
    gateway.shutdown()
    if gateway.proc is not None:
        gateway.proc.stdin.close()  # what the JVM waits for to end itself
        gateway.proc.wait()


def kill_session() -> None:
    """Kill the JVM of the process's session, if it has one: it does not answer. Its Python workers end with it."""
    session = _session
    if session is not None:
        gateway: Any = session.sparkContext._gateway
        if gateway.proc is not None:
            gateway.proc.kill()
            gateway.proc.wait()


def jvm_runs(session: SparkSession) -> bool:
    """Whether the JVM behind `session` is there."""
    gateway: Any = session.sparkContext._gateway
    return gateway.proc is None or gateway.proc.poll() is None


def _forget() -> None:
    """Make PySpark forget the JVM that is gone; else a later session would talk to it, and what served it go on."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    server = getattr(SparkContext._active_spark_context, "_accumulatorServer", None)
    if server is not None:
        server.shutdown()
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None


def java_home() -> Path:
    """The home of a Java that Spark runs on: $JAVA_HOME, the `java` on the path, else the oldest that will do of those
    under /usr/lib/jvm.

    55000 if there is none of version 17 or newer.
    """
    seen: list[str] = []
    for home in _candidates():
        version = java_version(home)
        if version is not None and version >= MINIMUM_JAVA:
            return home
        seen.append(f"{home} ({'no Java' if version is None else f'Java {version}'})")
    raise errors.error(
        errors.OBJECT_NOT_READY,
        f"Spark needs Java {MINIMUM_JAVA} or newer, and there is none",
        detail=f"Looked at: {', '.join(seen)}." if seen else "JAVA_HOME is not set and java is not on the path.",
        hint="Install one (Debian and Ubuntu: apt install openjdk-17-jre-headless) or point JAVA_HOME to it.",
    )


def java_version(home: Path) -> int | None:
    """The feature version (17 of 17.0.15) of the Java under `home`, read from its release file; None if unknown."""
    if not (home / "bin" / "java").exists():
        return None
    try:
        release = (home / "release").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r'^JAVA_VERSION="(?:1\.)?([0-9]+)', release, re.MULTILINE)
    return int(found.group(1)) if found else None


def _candidates() -> Iterator[Path]:
    named = os.environ.get("JAVA_HOME")
    if named:
        yield Path(named)
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path).resolve().parent.parent
    installed = [home for home in INSTALLED.glob("*") if java_version(home) is not None]
    # Of several, the oldest that will do: it is the one that Spark has been tested on the longest.
    yield from sorted(installed, key=lambda home: (java_version(home) or 0, home))


def class_archive(home: Path) -> Path:
    """Where the archive of Spark's classes lies for the Java under `home`: in the environment that has Spark's jars,
    since a JVM heeds it for these very files only (and does without it if they are others). class_archive.py makes it.
    """
    import pyspark

    name = f"spark-{pyspark.__version__}-java-{java_version(home)}.jsa"
    return Path(sys.prefix) / "share" / "instar" / name


def jvm_options(home: Path, archive: Path | None = None) -> list[str]:
    """The options of every JVM; it says nothing where it can make no use of an archive of classes."""
    silent = ["-Xlog:disable", "-Xlog:all=error:stderr"]
    if archive is not None:
        return [*_JVM, *silent, f"-XX:ArchiveClassesAtExit={archive}"]
    made = class_archive(home)
    return [*_JVM, *silent, f"-XX:SharedArchiveFile={made}"] if made.exists() else [*_JVM]


def mapped_files(home: Path) -> list[Path]:
    """What a JVM maps when it starts."""
    libraries = home / "lib"
    return [class_archive(home), libraries / "server" / "libjvm.so", libraries / "modules"]


def _start(master: str, memory: str, background: bool, local: Path, archive: Path | None) -> SparkSession:
    home = java_home()
    scratch = new_scratch()
    os.environ["JAVA_HOME"] = str(home)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

    if background:  # a second of work each
        in_idle_thread(partial(importlib.import_module, "pyspark.sql"))
        in_idle_thread(partial(read_ahead, mapped_files(home)))
    from py4j.protocol import Py4JError
    from pyspark import SparkConf
    from pyspark.errors import PySparkException

    configuration = SparkConf(loadDefaults=False).setMaster(_with_retries(master)).setAppName("instar")
    jvm = " ".join(jvm_options(home, archive))
    configuration.setAll(list(settings(scratch, local, memory, jvm).items()))
    log = scratch / "spark.log"
    try:
        session = _launch(configuration, log, background)
    except (PySparkException, Py4JError, OSError) as problem:
        tail = log.read_text(errors="replace")[-2000:].strip() if log.exists() else ""
        raise errors.error(
            errors.IO_ERROR, f"Spark did not start with the Java in {home}: {problem}", detail=tail or None
        ) from problem
    if background:
        set_aside()
    return session


def _launch(configuration: SparkConf, log: Path, background: bool) -> SparkSession:
    """A session in a JVM of its own, which ends again if Spark does not start in it."""
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    # The JVM's own words go to a file: it greets on stderr, which belongs to whoever started this process.
    with log.open("wb") as output:
        streams = {"stdout": output, "stderr": output}
        # In a process group of its own the JVM is woken if this process is killed while it stands still (turns.py).
        group = {"process_group": 0} if background else {}
        launch: Any = partial(launch_gateway, configuration, {**streams, **group})  # has no types
        gateway = in_idle_thread(launch) if background else launch()
    try:
        return SparkSession(SparkContext(conf=configuration, gateway=gateway))
    except BaseException:
        if gateway.proc is not None:
            gateway.proc.kill()
        _close(gateway)
        _forget()
        raise


def _with_retries(master: str) -> str:
    """Local mode tries a task once unless the master says otherwise; elsewhere spark.task.maxFailures does."""
    found = _LOCAL_MASTER.fullmatch(master)
    return f"local[{found.group(2) or 1},{TASK_ATTEMPTS}]" if found else master


def settings(scratch: Path, local: Path, memory: str, jvm: str) -> dict[str, str]:
    """Spark's configuration: what it writes lies under `local` (what it sorts) and `scratch` (everything else: programs
    may not lie in memory), and it talks to this host only."""
    logging = scratch / "log4j2.properties"
    logging.write_text(_LOGGING, encoding="utf-8")
    source = str(Path(__file__).resolve().parents[2])
    inherited = os.environ.get("PYTHONPATH")
    return {
        "spark.driver.memory": memory,
        "spark.executor.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": (
            f"{jvm} -Djava.io.tmpdir={scratch} -Dderby.system.home={scratch} -Dlog4j2.configurationFile=file:{logging}"
        ),
        "spark.executor.extraJavaOptions": jvm,
        "spark.local.dir": str(local),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.task.maxFailures": str(TASK_ATTEMPTS),
        # Executors import instar from where this process has it.
        "spark.executorEnv.PYTHONPATH": os.pathsep.join([source, inherited]) if inherited else source,
        # What lies in the directory that somebody has started from is no module of ours.
        "spark.executorEnv.PYTHONSAFEPATH": "1",
        "spark.python.daemon.module": "instar.pipeline.python_daemon",
        "spark.python.worker.reuse": "true",
        # A cancelled task's worker is killed so soon; what it was putting is atomic.
        "spark.python.task.killTimeout": "200ms",
        "spark.python.worker.faulthandler.enabled": "false",
        "spark.sql.execution.pyspark.udf.faulthandler.enabled": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "8192",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        # The default counts nanoseconds, which do not reach far years.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.ansi.enabled": "true",
        # Partitions are key ranges that were chosen for a reason; nobody may merge them.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
    }
