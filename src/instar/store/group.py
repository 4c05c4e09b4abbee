"""Group commit inside one process: sessions that commit at once share one write transaction, and so one fsync.

A thread that finds nobody committing leads: it enters the atomic section, takes along whoever has queued meanwhile,
commits for all and hands the lead to the first that queued after. A single thread pays for a few words in a dictionary.

Every commit has a number of its own, and `leader` has that of the one that leads: taking, handing over and giving up
the lead are one step each, of the dictionary. A follower queues up first and then sees whether the lead is free: a
leader that leaves frees it first and then looks for followers once more. So one of the two sees the other.

An interrupt (Ctrl-C in the main thread) may come between any two instructions, between taking the lead and knowing of
it too. No order of instructions helps against that. But a commit is `within` from before it may lead until after it
does: so where the number of one that is not within is the leader's, the lead is lost, and whoever waits takes it; and
whom it had taken into its group, which each member knows, sees for himself what has become of him. (That is not to be
asked of the other threads' stacks: looking at frames that run corrupts CPython 3.11's memory.)
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from itertools import count
from threading import get_ident

from instar import errors
from instar.clock import Clock
from instar.store.apply import apply_commit
from instar.store.engine import Commit, Derive, Refused
from instar.store.presence import Presence
from instar.store.section import WriteSection

# A waiting member looks so often whether it has been called, and whether there is somebody to call it.
_LOOK_SECONDS = 0.5

# The key of `CommitQueue.leader`.
LEADER = "leader"


class _Member:
    """A commit that waits for a leader, or to become one."""

    __slots__ = ("called", "error", "finished", "number", "request", "taken", "timestamp", "wake")

    def __init__(self, number: int, request: Commit | Derive) -> None:
        self.number = number
        self.request = request
        self.timestamp: int | None = None  # as long as it is not known
        self.error: Exception | None = None
        self.finished = False
        self.called = False
        self.taken: int | None = None  # by the leader of that number, into its group
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
        if self.timestamp is None:
            raise errors.error("08007", "the commit was interrupted: it may stand or not")
        return self.timestamp


class CommitQueue:
    """The commits of one process on one store.

    `begin` enters the engine's atomic section (waiting for other processes), `translate` turns an engine's exception
    into the error that leaves the store; it is asked once per member, so that threads never share an exception. `ended`
    sees to it that this thread is not in the section any more, whatever has been interrupted.

    `within`: the threads of the commits that are under way, by their numbers. `leader`: the number of the commit that
    leads, at LEADER, if one does.
    """

    def __init__(
        self,
        begin: Callable[[], WriteSection],
        translate: Callable[[Exception], Exception],
        clock: Clock,
        presence: Presence,
        ended: Callable[[], None],
    ) -> None:
        self._begin = begin
        self._ended = ended
        self._translate = translate
        self._clock = clock
        self._presence = presence
        self.within: dict[int, int] = {}
        self.leader: dict[str, int] = {}
        self._numbers = count()
        self._queue: deque[_Member] = deque()
        self._looking = threading.Lock()  # while somebody takes the lead of a leader that is gone

    def commit(self, request: Commit | Derive) -> int:
        """Commit, alone or in a group; returns the timestamp, raises what this member is refused for."""
        number = next(self._numbers)
        self.within[number] = get_ident()
        try:
            if self.leader.setdefault(LEADER, number) == number:
                return self._commit_leading(number, request)
            return self._queued(number, request)
        finally:
            del self.within[number]

    def derived(self, derive: Derive) -> int:
        """The same for what is derived, which an engine may have a shorter way for."""
        return self.commit(derive)

    def _queued(self, number: int, request: Commit | Derive) -> int:
        """Commit `request`, as somebody else leads."""
        member = _Member(number, request)
        interrupt: BaseException | None = None
        try:
            self._queue.append(member)
        except BaseException as caught:  # as below: it is done by then
            if self._withdraw(member):
                raise
            interrupt = caught
        while not member.called:
            try:
                self._look_for_leader(member)
                if not member.called:
                    member.wake.acquire(timeout=_LOOK_SECONDS)
            except BaseException as caught:  # KeyboardInterrupt: leave the queue in order, whoever's turn it is
                if self._withdraw(member):
                    raise
                interrupt = caught
        if interrupt is not None:
            if not member.finished:
                self._hand_over(member.number)
            raise interrupt
        if member.finished:
            return member.outcome()
        return self._commit_leading(member.number, member.request)

    def _look_for_leader(self, member: _Member) -> None:
        """Have `member` lead if nobody does, or find what has become of it if who has taken it along is gone."""
        number, taker = member.number, member.taken
        if taker is not None:
            if taker in self.within or member.called:  # who leaves has called all before
                return
            if member not in self._queue:  # else it was about to be taken out: the next leader takes it
                if member.taken == taker:  # which that says before
                    member.finished = member.called = True
                return
        if self.leader.setdefault(LEADER, number) != number and not self._take_lost(number):
            return
        # Nobody else takes members out of the queue now, and whoever has done so has called them, or is gone.
        if not self._withdraw(member) and member.taken is not None:
            member.finished = member.called = True
            self._hand_over(number)
        else:
            member.called = True

    def _take_lost(self, number: int) -> bool:
        """Take the lead if the commit that has it is not within any more."""
        found = self.leader.get(LEADER)
        if found is None or found in self.within:
            return False
        with self._looking:
            if self.leader.get(LEADER) != found:  # it has let go of it before it left, or another was here first
                return False
            self.leader[LEADER] = number
            return True

    def _withdraw(self, member: _Member) -> bool:
        """Take a member out of the queue, if nobody else has."""
        try:
            self._queue.remove(member)
        except ValueError:
            return False
        return True

    def _commit_leading(self, number: int, request: Commit | Derive) -> int:
        """Commit `request` and with it all that queue up until the atomic section is entered."""
        presence = self._presence
        try:
            presence.wait_begins()
            try:
                section = self._begin()
            except Exception as caught:
                raise self._translate(caught) from caught
            return self._led(number, section, request)
        finally:
            self._ended()
            presence.wait_ends()
            self._leave(number)

    def _leave(self, number: int) -> None:
        """Give the lead to whoever waits for it, or up."""
        leader = self.leader
        if self._queue:
            self._hand_over(number)
            return
        # As `_hand_over` does it, without the call: mostly nobody is there.
        del leader[LEADER]
        if self._queue and leader.setdefault(LEADER, number) == number:
            self._hand_over(number)

    def _led(self, number: int, section: WriteSection, request: Commit | Derive) -> int:
        """Commit in a section that has been entered, with those that have queued up meanwhile."""
        return self._with_followers(number, section, request) if self._queue else self._alone(section, request)

    def _with_followers(self, number: int, section: WriteSection, request: Commit | Derive) -> int:
        leader = _Member(number, request)
        followers: list[_Member] = []
        try:
            self._drain(number, followers)
            self._together(section, [leader, *followers])
        finally:
            for member in followers:
                member.finished = True
                member.call()
        return leader.outcome()

    def _hand_over(self, number: int) -> None:
        """Let the first of the queue lead, or nobody. It leads before it is taken out, so that it is never neither."""
        queue, leader = self._queue, self.leader
        while True:
            following = self._first()
            if following is not None:
                leader[LEADER] = following.number
                self._withdraw(following)
                following.call()
                return
            del leader[LEADER]
            if not queue or leader.setdefault(LEADER, number) != number:
                return

    def _first(self) -> _Member | None:
        try:
            return self._queue[0]
        except IndexError:  # nobody is there, or whoever was has been interrupted
            return None

    def _drain(self, number: int, into: list[_Member]) -> None:
        """Take all members out of the queue, who know before that, and by whom."""
        while (member := self._first()) is not None:
            member.taken = number
            if self._withdraw(member):
                into.append(member)

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
        """One write transaction for all: each is judged on the state its predecessors left (rule 2). Where this is
        interrupted, what is not known of a member stays so."""
        found: list[tuple[_Member, int]] = []
        try:
            for member in members:
                before = section.timestamp
                try:
                    found.append((member, apply_commit(section, member.request, self._clock)))
                except (Refused, errors.Error) as refusal:
                    if section.timestamp != before:  # it has begun to write
                        raise
                    member.fail(refusal)
            writes = any(timestamp for _member, timestamp in found)
            if writes and section.moved:
                section.store_header()
        except Exception:  # noqa: BLE001 - each member is tried again and gets what befalls it
            # One member cannot be written (a key too long, the disk full): its writes cannot be told from the others'.
            section.abort()
            self._one_by_one(members)
            return
        except BaseException:
            section.abort()
            raise
        try:
            if writes:
                section.commit()
            else:
                section.abort()
        except Exception as caught:  # noqa: BLE001 - each member gets what befell the group
            section.abort()
            written = [member for member, timestamp in found if timestamp]
            for member in written:
                member.fail(self._translate(caught))
            # What the others were refused for, or found to be nothing, may have been a change that has not come about.
            self._one_by_one([member for member in members if member not in written])
            return
        except BaseException:
            section.abort()
            raise
        for member, timestamp in found:
            member.timestamp = timestamp

    def _one_by_one(self, members: list[_Member]) -> None:
        for member in members:
            member.error = None
        for member in members:
            try:
                member.timestamp = self._alone(self._begin(), member.request)
            except (Refused, errors.Error) as refusal:
                member.fail(refusal)
            except Exception as caught:  # noqa: BLE001 - each member gets what befell it
                member.fail(self._translate(caught))
