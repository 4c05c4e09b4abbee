"""The commands of `instar`. What is heavy (database, Arrow, prompt) is imported by the command that needs it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from instar import __version__, errors
from instar.cli import output
from instar.cli.runner import Runner, Settings, run_script
from instar.cli.statements import lines_of, open_script, split, standard_input

if TYPE_CHECKING:
    from instar.dbapi import Connection

app = typer.Typer(
    name="instar",
    help="A SQL database whose schema changes while it runs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Synchronous = Annotated[
    str | None,
    typer.Option(
        metavar="full|normal|off",
        help="How durable a commit is, chosen when a database is made (full if not said).",
        show_default=False,
    ),
]
SchemaLease = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="For how long a process may use its cached schema, chosen when a database is made (0 if not said: never "
        "without asking).",
        show_default=False,
    ),
]
Retention = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="For how long what was changed and dropped can still be read and brought back, chosen when a database is "
        "made (600 if not said).",
        show_default=False,
    ),
]
LogMaxBytes = Annotated[
    int | None,
    typer.Option(
        metavar="BYTES",
        help="How much that may be, chosen when a database is made (4294967296 if not said).",
        show_default=False,
    ),
]


def _directory(given: str) -> Path:
    """What a shell makes of a variable that is not set is no directory, the current one least of all."""
    if not given:
        raise typer.BadParameter("the path is empty")
    return Path(given)


DatabasePath = Annotated[
    Path, typer.Argument(parser=_directory, metavar="PATH", help="The database's directory.", show_default=False)
]


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[bool, typer.Option("--version", help="Print the version and leave.", is_eager=True)] = False,
) -> None:
    if show:
        print(f"instar {__version__}")
        raise typer.Exit


@contextmanager
def opened(
    path: Path,
    *,
    create: bool = False,
    synchronous: str | None = None,
    schema_lease: float | None = None,
    retention: float | None = None,
    log_max_bytes: int | None = None,
) -> Iterator[Connection]:
    """A connection in autocommit, to a database as durable, with the leases and the log, as it was made."""
    from instar.dbapi import connect

    connection = connect(
        path,
        synchronous=synchronous,
        schema_lease=schema_lease,
        retention=retention,
        log_max_bytes=log_max_bytes,
        autocommit=True,
        create=create,
    )
    try:
        yield connection
    finally:
        connection.close()


# --- sql -------------------------------------------------------------------------------------------------------------


@app.command()
def sql(
    path: DatabasePath,
    commands: Annotated[
        list[str] | None, typer.Option("-c", "--command", metavar="SQL", help="Run this and leave; may be repeated.")
    ] = None,
    files: Annotated[
        list[Path] | None, typer.Option("-f", "--file", metavar="FILE", help="Run this file and leave; - is stdin.")
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Results as CSV.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Results as JSON: an array of objects each.")] = False,
    table: Annotated[bool, typer.Option("--table", help="Results as tables (the default).")] = False,
    synchronous: Synchronous = None,
    schema_lease: SchemaLease = None,
    retention: Retention = None,
    log_max_bytes: LogMaxBytes = None,
) -> None:
    """Run SQL: at a prompt, from -c, from files or from a pipe. Makes the database if there is none.

    What is not typed at the prompt ends at the first error, with a non-zero status.
    """
    if csv + json + table > 1:
        raise typer.BadParameter("choose one of --csv, --json and --table")
    settings = Settings(format="csv" if csv else "json" if json else "table")
    with opened(
        path,
        create=True,
        synchronous=synchronous,
        schema_lease=schema_lease,
        retention=retention,
        log_max_bytes=log_max_bytes,
    ) as connection:
        runner = Runner(connection.session, settings)
        if not commands and not files and sys.stdin.isatty():
            from instar.cli.shell import Shell

            Shell(runner, path.resolve().name).run()
        elif not run_all(runner, commands or [], files or ([] if commands else [Path("-")])):
            raise typer.Exit(1)


def run_all(runner: Runner, commands: list[str], files: list[Path]) -> bool:
    """Run what -c and -f named, in this order, until the first error."""
    from instar.cli.commands import Commands, Quit

    backslash = Commands(runner)
    try:
        for text in commands:
            if not run_script(runner, split(lines_of(text)), "", backslash.run):
                return False
        for path in files:
            if str(path) == "-":
                done = run_script(runner, split(standard_input()), "<stdin>", backslash.run)
            else:
                with open_script(path) as file:
                    done = run_script(runner, split(file), str(path), backslash.run)
            if not done:
                return False
    except Quit:
        pass
    return True


# --- import and export -----------------------------------------------------------------------------------------------


@app.command("import")
def import_(
    path: DatabasePath,
    table: Annotated[str, typer.Argument(metavar="TABLE", show_default=False)],
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", exists=True, show_default=False)],
    create: Annotated[
        bool, typer.Option("--create", help="Make the table, with types inferred from the file.")
    ] = False,
    in_batches: Annotated[
        bool,
        typer.Option(
            "--in-batches",
            help="Commit as the import goes on, and pass over rows whose keys are there: for many rows into a table "
            "that has some, and a key. What broke off can be begun again.",
        ),
    ] = False,
    synchronous: Synchronous = None,
) -> None:
    """Append CSV (with a header) and Parquet files, or directories of them, to a table. Columns are matched by name.

    All rows are imported or none, at any size where the table is empty, and else up to max_transaction_rows.
    """
    from instar.cli.transfer import import_files

    with opened(path, create=create, synchronous=synchronous) as connection:
        print(f"IMPORT {import_files(connection, table, files, create=create, in_batches=in_batches)}")


@app.command()
def export(
    path: DatabasePath,
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="[TABLE] FILE",
            help="A .csv or .parquet file; of a table also a new directory of such files: name.parquet/",
            show_default=False,
        ),
    ],
    query: Annotated[str | None, typer.Option(metavar="SQL", help="The rows of a query in place of a table.")] = None,
) -> None:
    """Write a table, or the rows of a query, to a CSV or Parquet file.

    A table that is large is written as a directory on Spark; one file has one writer.
    """
    from instar.cli.transfer import export_query, export_table

    if len(names) != (2 if query is None else 1):
        raise typer.BadParameter("TABLE and FILE are needed, or --query SQL and FILE")
    with opened(path) as connection:
        # A DELETE given for a query would be done before it is found to have no rows.
        connection.execute("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
        if query is None:
            print(f"EXPORT {export_table(connection, *names)}")
        else:
            print(f"EXPORT {export_query(connection, query, Path(names[0]))}")


# --- schemas as files ------------------------------------------------------------------------------------------------

SchemaPath = Annotated[Path, typer.Argument(metavar="FILE", help="A schema in SQL.", show_default=False)]


@app.command()
def dump(
    path: DatabasePath,
    schema: Annotated[bool, typer.Option("--schema", help="The schema, without rows: as yet the only choice.")] = False,
) -> None:
    """Write the schema as SQL that makes it again."""
    from instar.cli import declarative

    if not schema:
        raise errors.error(
            errors.FEATURE_NOT_SUPPORTED,
            "a dump of rows is not supported",
            hint="--schema writes the schema; `instar export` writes the rows of a table.",
        )
    with opened(path) as connection:
        declarative.dump(connection, sys.stdout)


@app.command()
def plan(
    path: DatabasePath,
    file: SchemaPath,
    check: Annotated[bool, typer.Option("--check", help="The status is 2 if there is any difference.")] = False,
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show the statements, with their stages, that would give the database the schema of a file. Changes nothing."""
    from instar.cli import declarative

    wanted = declarative.read(file)
    with opened(path) as connection:
        status = declarative.plan(connection, wanted, sys.stdout, json=json, check=check)
    if status:
        raise typer.Exit(status)


@app.command("apply")
def apply_(
    path: DatabasePath,
    file: SchemaPath,
    allow_destructive: Annotated[
        bool, typer.Option("--allow-destructive", help="Also what destroys rows or values.")
    ] = False,
    synchronous: Synchronous = None,
) -> None:
    """Give the database the schema of a file, as one change. Makes the database if there is none."""
    from instar.cli import declarative

    wanted = declarative.read(file)
    with opened(path, create=True, synchronous=synchronous) as connection:
        declarative.apply(connection, wanted, sys.stdout, allow_destructive=allow_destructive)


# --- background work -------------------------------------------------------------------------------------------------


@app.command()
def worker(
    path: DatabasePath,
    job_hook: Annotated[
        str,
        typer.Option(
            metavar="COMMAND",
            envvar="INSTAR_JOB_HOOK",
            help="Run this whenever a job enters a stage or state; INSTAR_JOB_ID, INSTAR_JOB_STATE, ... say which.",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Do the background work of a database here: jobs, garbage collection. Starts by itself where it is needed.

    Ends when there has been nothing to do for a minute, or at once where another worker is at it.
    """
    from instar.scheduling import stand_back
    from instar.worker import NICENESS

    stand_back(NICENESS)
    from instar.worker.process import main as run

    raise typer.Exit(run([str(path), "--job-hook", job_hook]))


# --- looking inside --------------------------------------------------------------------------------------------------


@app.command()
def check(path: DatabasePath) -> None:
    """Check the whole database; the status is non-zero if there are problems."""
    from instar.cli import inspection

    with opened(path) as connection:
        if not inspection.check(connection, sys.stdout):
            raise typer.Exit(1)


@app.command()
def jobs(
    path: DatabasePath,
    action: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[pause N | resume N | cancel N | set N NAME=VALUE...]",
            help="What to do with job N; priority, max_rows_per_second and reorganize_latency_target can be set.",
            show_default=False,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="An array of objects.")] = False,
    once: Annotated[bool, typer.Option("--once", help="As they are now, though on a terminal.")] = False,
) -> None:
    """Watch the schema changes that run, wait, or have ended; or steer one.

    On a terminal the view is drawn anew until no job is left to wait for, or Ctrl-C; elsewhere it is a list.
    """
    from rich.console import Console

    from instar.cli import jobs as view

    with opened(path) as connection:
        connection.on_notice = lambda notice: print(output.notice_line(notice), file=sys.stderr)
        console = Console()
        if action:
            print(view.control(connection, action))
        elif json or once or not console.is_terminal:
            view.write(connection, sys.stdout, json=json)
        else:
            view.watch(connection, console)


@app.command()
def debug(
    path: DatabasePath,
    parts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PART...]",
            help="store, tables, rowsets, records, rows, log, or the name of a table; all parts if none is named.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print keys and values as they lie in the store, in words; what cannot be read, in hexadecimal."""
    from instar.cli import inspection

    with opened(path) as connection:
        inspection.debug(connection.database, parts or list(inspection.PARTS), sys.stdout)


# --- errors ----------------------------------------------------------------------------------------------------------


def _fail(message: str) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(1)


def guarded(run: Callable[[], object]) -> None:
    """Run the command line; errors of the database and of files are one report on stderr and status 1."""
    try:
        try:
            run()
        finally:
            _flush_output()
    except errors.Error as error:
        _fail(output.error_report(error))
    except RecursionError:
        _fail(f"ERROR:  {errors.STATEMENT_TOO_COMPLEX}: an expression is too deeply nested")
    except BrokenPipeError:  # the reader has seen enough (head, a pager)
        sys.exit(1)
    except OSError as error:
        _fail(output.error_report(output.file_error(error)))


def _flush_output() -> None:
    try:
        sys.stdout.flush()
    except OSError:
        # The interpreter must not complain again when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def _fill_standard_files() -> None:
    """Standard files that are closed become /dev/null: else those of the store would get their numbers, and be written
    what is meant for them."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def main() -> None:
    """The console script."""
    _fill_standard_files()
    guarded(app)


if __name__ == "__main__":
    main()
