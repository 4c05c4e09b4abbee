"""Backslash commands: what the shell answers itself, at the prompt and in scripts."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from instar import errors
from instar.catalog.descriptors import Sequence, Table, View
from instar.cli import describe, output
from instar.cli.runner import Runner, run_script
from instar.cli.statements import open_script, split

Handler = Callable[["Commands", str], bool]
_MOST_INCLUDED = 50


class Quit(Exception):
    """The user wants to leave."""


class _Failed(Exception):
    """A command that could not be done, for a reason that has no SQLSTATE in psql either."""


class Commands:
    """The commands of one runner."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._settings = runner.settings
        self._included = 0  # how many files that are being run have included one another

    def run(self, text: str, place: str = "") -> bool:
        """Run one line that begins with a backslash; False if it failed. `place` names where it stands. Raises Quit."""
        name, _, argument = text.rstrip().rstrip(";").partition(" ")
        try:
            if name not in COMMANDS:
                raise _Failed(f"invalid command {name}: \\? shows those that there are")
            return COMMANDS[name][0](self, argument.strip())
        except _Failed as failed:
            report = f"{place}{failed}"
        except errors.Error as error:
            report = output.error_report(error, place=place)
        except OSError as error:
            report = output.error_report(output.file_error(error), place=place)
        print(report, file=self._settings.err)
        return False

    def _say(self, message: str) -> None:
        # About the shell itself: not part of what a program reads.
        if self._settings.format in ("table", "expanded"):
            print(message, file=self._settings.out)

    def _found(self, found: bool, what: str, pattern: str) -> bool:
        if not found and pattern:
            raise _Failed(f"Did not find any {what} named {pattern}.")
        if not found:
            self._say(f"Did not find any {what}s.")
        return True

    def describe(self, pattern: str) -> bool:
        objects = list(self._runner.objects())
        if not pattern:
            kinds = (Table, View, Sequence)
            return self._found(describe.list_objects(objects, kinds, "", self._settings.out), "relation", "")
        found = describe.matching(objects, pattern)
        by_id = {each.id: each for each in objects}
        for each in found:
            describe.describe(each, by_id, self._settings.out)
        if found:
            return True
        return self._found(describe.list_indexes(objects, pattern, self._settings.out), "relation", pattern)

    def list_tables(self, pattern: str) -> bool:
        return self._list((Table,), "table", pattern)

    def list_views(self, pattern: str) -> bool:
        return self._list((View,), "view", pattern)

    def list_sequences(self, pattern: str) -> bool:
        return self._list((Sequence,), "sequence", pattern)

    def _list(self, kinds: tuple[type, ...], what: str, pattern: str) -> bool:
        return self._found(
            describe.list_objects(self._runner.objects(), kinds, pattern, self._settings.out), what, pattern
        )

    def list_indexes(self, pattern: str) -> bool:
        return self._found(describe.list_indexes(self._runner.objects(), pattern, self._settings.out), "index", pattern)

    def timing(self, argument: str) -> bool:
        self._settings.timing = self._switch(argument, self._settings.timing)
        self._say(f"Timing is {'on' if self._settings.timing else 'off'}.")
        return True

    def expanded(self, argument: str) -> bool:
        on = self._switch(argument, self._settings.format == "expanded")
        self._settings.format = "expanded" if on else "table"
        self._say(f"Expanded display is {'on' if on else 'off'}.")
        return True

    @staticmethod
    def _switch(argument: str, now: bool) -> bool:
        if argument not in ("", "on", "off"):
            raise errors.error(errors.INVALID_PARAMETER, f'"{argument}" is neither on nor off')
        return not now if argument == "" else argument == "on"

    def include(self, argument: str) -> bool:
        path = Path(_file_name(argument))
        if self._included == _MOST_INCLUDED:  # by itself, most likely
            raise errors.error(errors.LIMIT_EXCEEDED, f"{path}: files include files more than {_MOST_INCLUDED} deep")
        self._included += 1
        try:
            with open_script(path) as file:
                return run_script(self._runner, split(file), str(path), self.run)
        finally:
            self._included -= 1

    def redirect(self, argument: str) -> bool:
        # The file stays open for what follows, until the next \o or the end.
        new = Path(_file_name(argument)).open("w", encoding="utf-8") if argument else sys.stdout  # noqa: SIM115
        if self._settings.out is not sys.stdout:
            self._settings.out.close()
        self._settings.out = new
        return True

    def help(self, argument: str) -> bool:
        for name, (_, arguments, text) in COMMANDS.items():
            print(f"  {name + ' ' + arguments:<18} {text}", file=self._settings.out)
        return True

    def quit(self, argument: str) -> bool:
        raise Quit


def _file_name(argument: str) -> str:
    try:
        words = shlex.split(argument)
    except ValueError as error:
        raise errors.error(errors.SYNTAX_ERROR, f"invalid file name: {error}") from None
    if len(words) != 1 or "\0" in words[0]:
        raise errors.error(errors.INVALID_PARAMETER, "one file name is needed")
    return str(Path(words[0]).expanduser())


COMMANDS: dict[str, tuple[Handler, str, str]] = {
    "\\d": (Commands.describe, "[NAME]", "a table, view, sequence or index; without a name, all that there is"),
    "\\dt": (Commands.list_tables, "[PATTERN]", "tables"),
    "\\di": (Commands.list_indexes, "[PATTERN]", "indexes, and the state of those being built"),
    "\\dv": (Commands.list_views, "[PATTERN]", "views"),
    "\\ds": (Commands.list_sequences, "[PATTERN]", "sequences"),
    "\\x": (Commands.expanded, "[on|off]", "one line per value, for wide rows"),
    "\\timing": (Commands.timing, "[on|off]", "how long each statement took"),
    "\\i": (Commands.include, "FILE", "run the statements of a file"),
    "\\o": (Commands.redirect, "[FILE]", "write results to a file; without one, here again"),
    "\\?": (Commands.help, "", "this list"),
    "\\q": (Commands.quit, "", "leave (so does Ctrl-D)"),
}
