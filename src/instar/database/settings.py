"""Settings of a session: what SET, SHOW and RESET know, with PostgreSQL's names where PostgreSQL has them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from instar import errors
from instar.catalog.versions import DEFAULT_CACHE_BYTES
from instar.store.header import DEFAULT_LOG_MAX_BYTES, DEFAULT_RETENTION_SECONDS
from instar.transactions.transaction import Isolation
from instar.values.datetimes import zone_setting


class Setting(NamedTuple):
    """One setting: its default as text, how a given text is checked and normalised, whether SET may change it."""

    default: str
    normalise: Callable[[str, str], str]
    settable: bool = True


def _bad(name: str, value: str, hint: str | None = None) -> errors.Error:
    return errors.error(errors.INVALID_PARAMETER, f'invalid value for parameter "{name}": "{value}"', hint=hint)


def _choice(*allowed: str) -> Callable[[str, str], str]:
    def check(name: str, value: str) -> str:
        if value.lower() not in allowed:
            raise _bad(name, value, f"Available values: {', '.join(allowed)}.")
        return value.lower()

    return check


def _integer(low: int, high: int) -> Callable[[str, str], str]:
    def check(name: str, value: str) -> str:
        try:
            number = int(value)
        except ValueError:
            raise _bad(name, value) from None
        if not low <= number <= high:
            raise errors.error(
                errors.INVALID_PARAMETER,
                f'{number} is outside the valid range for parameter "{name}" ({low} .. {high})',
            )
        return str(number)

    return check


_UNITS = {"us": 1, "ms": 1_000, "s": 1_000_000, "min": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(us|ms|s|min|h|d)?")


def _duration(name: str, value: str) -> str:
    """A duration as PostgreSQL writes them; a number alone is milliseconds."""
    found = _DURATION.fullmatch(value.strip())
    if found is None:
        raise _bad(name, value, 'Valid units for this parameter are "us", "ms", "s", "min", "h", and "d".')
    microseconds = round(float(found[1]) * _UNITS[found[2] or "ms"])
    if microseconds > 3_600_000_000:
        raise errors.error(
            errors.INVALID_PARAMETER, f'{value} is outside the valid range for parameter "{name}" (0 .. 1 h)'
        )
    unit = next((unit for unit in ("s", "ms") if not microseconds % _UNITS[unit]), "us")
    return f"{microseconds // _UNITS[unit]}{unit}" if microseconds else "0"


def duration_us(value: str) -> int | None:
    """Microseconds of a duration; 0, and what is none, is none."""
    found = _DURATION.fullmatch(value)
    return round(float(found[1]) * _UNITS[found[2] or "ms"]) or None if found is not None else None


def _zone(name: str, value: str) -> str:
    if value.lower() in ("default", "local", "utc", "z"):
        return "UTC"
    try:
        return zone_setting(value)
    except errors.Error:
        raise _bad(name, value) from None


def _text(name: str, value: str) -> str:
    return value


SETTINGS: dict[str, Setting] = {
    "application_name": Setting("", _text),
    "client_encoding": Setting("UTF8", _choice("utf8", "utf-8")),
    "datestyle": Setting("ISO, MDY", lambda name, value: "ISO, MDY" if "iso" in value.lower() else _fail(name, value)),
    "ddl_wait": Setting("5s", _duration),
    "default_transaction_isolation": Setting(
        Isolation.READ_COMMITTED.value, _choice(*(level.value for level in Isolation))
    ),
    "default_transaction_read_only": Setting("off", _choice("on", "off")),
    "lock_timeout": Setting("0", _duration),
    "log_max_bytes": Setting(str(DEFAULT_LOG_MAX_BYTES), _text, settable=False),
    "max_rows_per_second": Setting("0", _integer(0, 2**31 - 1)),
    "max_transaction_rows": Setting("1000000", _integer(1, 2**31 - 1)),
    "metadata_cache_bytes": Setting(str(DEFAULT_CACHE_BYTES), _text, settable=False),
    "reorganize_latency_target": Setting("0", _duration),
    "retention": Setting(f"{DEFAULT_RETENTION_SECONDS:g}", _text, settable=False),
    "schema_change_mode": Setting("wait", _choice("wait", "async")),
    "schema_lease": Setting("0", _text, settable=False),
    "search_path": Setting("public", _choice("public", '"$user", public', "public, pg_catalog")),
    "server_encoding": Setting("UTF8", _text, settable=False),
    "server_version": Setting("15.0 (Instar 0.1.0)", _text, settable=False),
    "standard_conforming_strings": Setting("on", _choice("on")),
    "synchronous": Setting("full", _text, settable=False),
    "timezone": Setting("UTC", _zone),
    "transaction_isolation": Setting("read committed", _text, settable=False),
}


def _fail(name: str, value: str) -> str:
    raise _bad(name, value)


_ALIASES = {"time zone": "timezone", "names": "client_encoding"}


def find(name: str) -> str:
    """The setting's name as SHOW prints it; 42704 if there is none."""
    lowered = name.lower()
    lowered = _ALIASES.get(lowered, lowered)
    if lowered not in SETTINGS:
        raise errors.error(errors.UNDEFINED_OBJECT, f'unrecognized configuration parameter "{name}"')
    return lowered


SavedSettings = tuple[dict[str, str], dict[str, str]]


class Settings:
    """The values of one session. SET in a transaction that rolls back is undone by `restore`, SET LOCAL by its end."""

    def __init__(self, fixed: dict[str, str]) -> None:
        self._values: dict[str, str] = {}
        self._local: dict[str, str] = {}
        self._fixed = fixed
        # What every statement or transaction asks for is kept as it is used: default_transaction_isolation, and whether
        # that is a locking level; default_transaction_read_only; max_transaction_rows.
        self._changed()

    def get(self, name: str) -> str:
        """The value as text."""
        found = name if name in SETTINGS else find(name)
        if found in self._local:
            return self._local[found]
        return self._fixed.get(found) or self._values.get(found, SETTINGS[found].default)

    def set(self, name: str, value: str | None, *, local: bool = False) -> None:
        """Change a setting, until the transaction ends if `local`; None sets its default again."""
        found = find(name)
        setting = SETTINGS[found]
        if not setting.settable:
            raise errors.error(errors.CANT_CHANGE_RUNTIME_PARAM, f'parameter "{found}" cannot be changed')
        if local:
            self._local[found] = setting.default if value is None else setting.normalise(found, value)
        else:
            self._local.pop(found, None)
            if value is None:
                self._values.pop(found, None)
            else:
                self._values[found] = setting.normalise(found, value)
        self._changed()

    def _changed(self) -> None:
        self.isolation = Isolation(self.get("default_transaction_isolation"))
        self.locking = self.isolation.is_locking
        self.read_only = self.get("default_transaction_read_only") == "on"
        self.max_rows = int(self.get("max_transaction_rows"))

    def reset_all(self) -> None:
        self._values.clear()
        self._local.clear()
        self._changed()

    def end_local(self) -> None:
        """The transaction has ended, and SET LOCAL with it."""
        if self._local:
            self._local = {}
            self._changed()

    def save(self) -> SavedSettings:
        """What `restore` takes back to."""
        return dict(self._values), dict(self._local)

    def restore(self, saved: SavedSettings) -> None:
        self._values, self._local = dict(saved[0]), dict(saved[1])
        self._changed()
