"""Group commit inside one process: sessions that commit at once share one write transaction, and so one fsync.

A thread that finds nobody committing leads: it enters the atomic section, takes along whoever has queued meanwhile,
commits for all and hands the lead to the first that queued after. A single thread pays for one uncontended lock.

Who holds the lead's lock leads; handing over is waking a member while the lock stays taken. A follower queues up first
and then sees whether the lead is free: a leader that leaves frees it first and then looks for followers once more. So
one of the two sees the other.

An interrupt (Ctrl-C in the main thread) may come between any two instructions, between taking the lead and knowing of
it too. No order of instructions helps against that: so who has waited for long looks whether anybody leads at all.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from types import FrameType

from instar import errors
from instar.clock import Clock
from instar.store.apply import apply_commit
from instar.store.engine import Commit, Derive, Refused
from instar.store.presence import Presence
from instar.store.section import WriteSection

# A waiting member looks so often whether it has been called, and whether there is somebody to call it.
_LOOK_SECONDS = 0.5


class _Member:
    """A commit that waits for a leader, or to become one."""

    __slots__ = ("called", "error", "finished", "request", "taken", "timestamp", "wake")

    def __init__(self, request: Commit | Derive) -> None:
        self.request = request
        self.timestamp = 0
        self.error: Exception | None = None
        self.finished = False
        self.called = False
        self.taken = False  # by a leader, into its group
        self.wake = threading.Lock()
        self.wake.acquire()

    def call(self) -> None:
        """Wake the member, to lead or to find itself finished. The flag stays when an interrupt eats the waking."""
        self.called = True
        self.wake.release()

    def fail(self, error: Exception) -> None:
        self.error = error

    def outcome(self) -> int:
        if self.error is not None:
            raise self.error
        return self.timestamp


class CommitQueue:
    """The commits of one process on one store.

    `begin` enters the engine's atomic section (waiting for other processes), `translate` turns an engine's exception
    into the error that leaves the store; it is asked once per member, so that threads never share an exception.
    """

    def __init__(
        self,
        begin: Callable[[], WriteSection],
        translate: Callable[[Exception], Exception],
        clock: Clock,
        presence: Presence,
    ) -> None:
        self._begin = begin
        self._translate = translate
        self._clock = clock
        self._presence = presence
        self._lead = threading.Lock()
        self._queue: deque[_Member] = deque()
        self._looking = threading.Lock()

    def commit(self, request: Commit | Derive) -> int:
        """Commit, alone or in a group; returns the timestamp, raises what this member is refused for."""
        if self._lead.acquire(False):
            return self._commit_leading(request)
        member = _Member(request)
        self._queue.append(member)
        if self._lead.acquire(False):
            self._hand_over()
        return self._follow(member)

    def derived(self, derive: Derive) -> int:
        """The same for what is derived, which an engine may have a shorter way for."""
        return self.commit(derive)

    def _follow(self, member: _Member) -> int:
        interrupt: BaseException | None = None
        while not member.called:
            try:
                if not member.wake.acquire(timeout=_LOOK_SECONDS):
                    self._look_for_leader(member)
            except BaseException as caught:  # KeyboardInterrupt: leave the queue in order, whoever's turn it is
                if self._withdraw(member):
                    raise
                interrupt = caught
        if interrupt is not None:
            if not member.finished:
                self._hand_over()
            raise interrupt
        if member.finished:
            return member.outcome()
        return self._commit_leading(member.request)

    def _look_for_leader(self, member: _Member) -> None:
        """Call `member` if nobody is left who would."""
        with self._looking:
            if member.called or not self._take_lost_lead():
                return
            self._withdraw(member)
            if member.taken:
                self._unresolved([member], KeyboardInterrupt())
                member.finished = True
                self._hand_over()
            member.called = True

    def _take_lost_lead(self) -> bool:
        """Take the lead if it is free, or if nobody knows of having it; looked at twice, for leaders come and go."""
        for _look in range(2):
            if self._lead.acquire(False):
                return True
            if self._is_led():
                return False
        return True

    def _is_led(self) -> bool:
        """Whether another thread leads, or is on its way to."""
        mine = threading.get_ident()
        return any(self._leads(frame) for thread, frame in sys._current_frames().items() if thread != mine)

    def _leads(self, frame: FrameType | None) -> bool:
        """Whether a thread's stack goes through this queue, other than to wait in it."""
        inside = False
        while frame is not None:
            if frame.f_locals.get("self") is self:
                member = frame.f_locals.get("member")
                if frame.f_code is _FOLLOW and member is not None and not member.called:
                    return False
                inside = True
            frame = frame.f_back
        return inside

    def _withdraw(self, member: _Member) -> bool:
        """Take a member out of the queue, if nobody else has."""
        try:
            self._queue.remove(member)
        except ValueError:
            return False
        return True

    def _commit_leading(self, request: Commit | Derive) -> int:
        """Commit `request` and with it all that queue up until the atomic section is entered."""
        presence = self._presence
        try:
            presence.wait_begins()
            try:
                section = self._begin()
            except Exception as caught:
                raise self._translate(caught) from caught
            return self._led(section, request)
        finally:
            self._ended()
            presence.wait_ends()
            self._leave()

    def _ended(self) -> None:
        """Whatever has been interrupted, this thread is not in the section any more."""

    def _leave(self) -> None:
        """Give the lead to whoever waits for it, or up."""
        if self._queue:
            self._hand_over()
            return
        # As `_hand_over` does it, without the call: mostly nobody is there.
        self._lead.release()
        if self._queue and self._lead.acquire(False):
            self._hand_over()

    def _led(self, section: WriteSection, request: Commit | Derive) -> int:
        """Commit in a section that has been entered, with those that have queued up meanwhile."""
        return self._with_followers(section, request) if self._queue else self._alone(section, request)

    def _with_followers(self, section: WriteSection, request: Commit | Derive) -> int:
        leader = _Member(request)
        followers = self._drain()
        try:
            self._together(section, [leader, *followers])
        finally:
            for member in followers:
                member.finished = True
                member.call()
        return leader.outcome()

    def _hand_over(self) -> None:
        """Let the first of the queue lead, or nobody."""
        queue = self._queue
        while True:
            following = self._next() if queue else None
            if following is not None:
                following.call()
                return
            self._lead.release()
            if not queue or not self._lead.acquire(False):
                return

    def _next(self) -> _Member | None:
        try:
            return self._queue.popleft()
        except IndexError:  # nobody is there, or whoever was has been interrupted
            return None

    def _drain(self) -> list[_Member]:
        members = []
        while (member := self._next()) is not None:
            member.taken = True
            members.append(member)
        return members

    def _alone(self, section: WriteSection, request: Commit | Derive) -> int:
        try:
            timestamp = apply_commit(section, request, self._clock)
            if not timestamp:
                section.abort()
                return 0
            if section.moved:
                section.store_header()
            section.commit()
        except Exception as caught:
            section.abort()
            if isinstance(caught, Refused | errors.Error):
                raise
            raise self._translate(caught) from caught
        except BaseException:
            section.abort()
            raise
        return timestamp

    def _together(self, section: WriteSection, members: list[_Member]) -> None:
        """One write transaction for all: each is judged on the state its predecessors left (rule 2)."""
        applied = []
        try:
            for member in members:
                before = section.timestamp
                try:
                    member.timestamp = apply_commit(section, member.request, self._clock)
                    if member.timestamp:
                        applied.append(member)
                except (Refused, errors.Error) as refusal:
                    if section.timestamp != before:  # it has begun to write
                        raise
                    member.fail(refusal)
            if applied and section.moved:
                section.store_header()
        except Exception:  # noqa: BLE001 - each member is tried again and gets what befalls it
            # One member cannot be written (a key too long, the disk full): its writes cannot be told from the others'.
            section.abort()
            self._one_by_one(members)
            return
        except BaseException as caught:
            section.abort()
            self._unresolved(members, caught)
            raise
        try:
            if applied:
                section.commit()
            else:
                section.abort()
        except Exception as caught:  # noqa: BLE001 - each member gets what befell the group
            section.abort()
            for member in applied:
                member.fail(self._translate(caught))
            # What the others were refused for, or found to be nothing, may have been a change that has not come about.
            self._one_by_one([member for member in members if member not in applied])
        except BaseException as caught:
            section.abort()
            self._unresolved(applied, caught)
            raise

    def _one_by_one(self, members: list[_Member]) -> None:
        for member in members:
            member.error, member.timestamp = None, 0
        for number, member in enumerate(members):
            try:
                member.timestamp = self._alone(self._begin(), member.request)
            except (Refused, errors.Error) as refusal:
                member.fail(refusal)
            except Exception as caught:  # noqa: BLE001 - each member gets what befell it
                member.fail(self._translate(caught))
            except BaseException as caught:
                self._unresolved(members[number:], caught)
                raise

    @staticmethod
    def _unresolved(members: list[_Member], cause: BaseException) -> None:
        for member in members:
            what = f"the commit was interrupted ({type(cause).__name__}): it may stand or not"
            member.fail(errors.error("08007", what))


_FOLLOW = CommitQueue._follow.__code__
