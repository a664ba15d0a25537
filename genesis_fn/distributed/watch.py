"""A thread that looks after the other processes of a world, and ends this one when one is gone.

Each process says once a second that it lives, and how far it is. It looks after the processes of
its machine, which it sees, and after the next one in the order of the ranks, if that is on another
machine, which has to say something new within `_SILENCE` looks. Who finds one gone tells all
others through the store. No process looks after one that said that it ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Any, TypeVar

from genesis_fn.core.diagnostics.source_info import at_frame, is_internal
from genesis_fn.core.sharding.world import WorldWatch
from genesis_fn.distributed.clusters import Place
from genesis_fn.distributed.facts import Facts, started
from genesis_fn.distributed.meeting import connect

_PERIOD = 1.0  # seconds between two looks
# Looks without news after which a process of another machine, or who keeps the store, is gone. They
# are counted, not timed: a world that was stopped as a whole goes on.
_SILENCE = 20
_GRACE = 3.0  # seconds in which a process ends by an error of its own, where it waits for that one
_LAST_WORDS = 15.0  # seconds in which such an error may reach the end of the program
_STUCK = 10.0  # seconds in which Ctrl-C must reach Python, before the process is ended without it
_REQUEST = 5.0  # seconds that the store has for an answer
_FAILURES = 3  # answers in a row that may fail

T = TypeVar("T")


class WatchThread(WorldWatch):
    """The watch of the process `place.rank`; `ranks` are the facts of all processes.

    It is two threads: one talks with the store, which may leave it without an answer, the other one
    ends the process where it must.
    """

    def __init__(self, place: Place, ranks: Sequence[Facts]) -> None:
        self.place, self.ranks = place, ranks
        self.own = ranks[place.rank]
        self.step: int | None = None
        self.collectives = 0
        self.store = connect(place, _REQUEST)
        self.lock = threading.Lock()  # the store answers one thread at a time
        self.neighbours = [f for f in ranks if f.machine == self.own.machine and f is not self.own]
        following = ranks[(place.rank + 1) % place.size]
        self.remote = following if following.machine != self.own.machine else None
        self.heard: Any = None  # what that one said last
        self.silence = 0  # for how many looks it has been the same
        self.unanswered = 0  # for how many looks the store has been silent
        self.keepers_step: int | None = None  # rank 0's, which takes the store along
        self.reason = ""  # why this process is about to end by itself
        self.status = 1  # by which it ends then
        self.found = ""  # who is gone
        self.ending = threading.Event()
        self.ended = False
        self.interrupted = self.noticed = 0.0  # when Ctrl-C came last, and when Python saw it
        self.wake, self.wakes = socket.socketpair()
        self.threads = [
            threading.Thread(target=run, name="genesis_fn watch", daemon=True)
            for run in (self._talk, self._guard)
        ]

    def start(self) -> None:
        """Begin to look after the others; the main thread calls it."""
        self._publish(0)
        self._before = sys.excepthook
        sys.excepthook = self._uncaught
        for end in (self.wake, self.wakes):
            end.setblocking(False)
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            other = signal.set_wakeup_fd(self.wakes.fileno(), warn_on_full_buffer=False)
            if other == -1:
                signal.signal(signal.SIGINT, self._seen)
            else:
                signal.set_wakeup_fd(other)
        for thread in self.threads:
            thread.start()

    def stop(self) -> str:
        """Say that this process ends, and look after the others no more; who was gone when the
        others, for whom rank 0 keeps the store, had ended."""
        if self.ending.is_set():
            return ""
        # What this process has begun on its GPU is over before it says that it ends, or whoever
        # waits for it there is ended for it. After an error it may never be over.
        while not self.reason and self.computes():
            time.sleep(0.01)
        self.ending.set()
        lost = ""
        try:
            self._ask(lambda store: store.set(f"ended/{self.place.rank}", ""))
            if self.place.rank == 0 and not self.place.hosted:
                lost = self._keep_store()
        except RuntimeError:  # whoever kept it has ended
            pass
        self.ended = True
        if signal.getsignal(signal.SIGINT) == self._seen:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.set_wakeup_fd(-1)
        if sys.excepthook == self._uncaught:
            sys.excepthook = self._before
        self.wakes.send(b"\0")
        for thread in self.threads:
            thread.join(_REQUEST)
        return lost

    def _keep_store(self) -> str:
        """Stay until no process needs the store any more."""
        others = [f"ended/{f.rank}" for f in self.ranks if f is not self.own]
        lost = ""
        # One that is gone does not say any more that it ends.
        while not (self.reason or lost) and self._ask(lambda store: not store.check(others)):
            time.sleep(_PERIOD / 5)
            lost = self.found or self._someone_gone()
        if self.reason or lost:
            time.sleep(2 * _PERIOD)  # for the others to read who is gone
        return lost

    # ---- what collectives ask ----

    def lost(self, seconds: float) -> str:
        """Who is gone, waiting so long for the news; "" where nobody is known to be."""
        end = time.monotonic() + seconds
        while not self.found and time.monotonic() < end:
            time.sleep(0.05)
        return self.found

    def behind(self) -> str:
        """Which processes have begun fewer collectives than this one, as far as they said."""
        time.sleep(1.5 * _PERIOD)  # what they said before may be older than this one's count
        try:
            late = {f.rank: self._said(f.rank)["collectives"] for f in self.ranks}
        except RuntimeError:
            return ""
        least = min(late, key=lambda r: late[r])
        if late[least] >= self.collectives:
            return ""
        begun = f"{late[least]} collectives and this one {self.collectives}"
        return f"rank {least}, which has begun {begun},"

    def failing(self, reason: str) -> None:
        """Note that this process is about to end by itself, by an error that says enough."""
        self.reason = self.reason or reason

    def computes(self) -> bool:
        """Whether collectives that this process has begun on a GPU are under way."""
        exchanges = _exchanges()
        return exchanges is not None and exchanges.under_way()

    # ---- the thread that talks ----

    def _talk(self) -> None:
        beat, failures = 0, 0
        while not self.ending.wait(_PERIOD) and not self.found:
            beat += 1
            try:
                self._publish(beat)
                self.found = self._someone_gone()
                if not self.place.hosted:
                    self.keepers_step = self._said(0)["step"]
                failures = 0
            except RuntimeError as error:
                failures += 1
                self.found = self._neighbour_gone()
                if failures >= _FAILURES and not self.found:
                    self.found = f"{self._keeper()} is gone, or the network to it: {error}"[:200]

    def _keeper(self) -> str:
        return "the launcher" if self.place.hosted else "rank 0"

    def _ask(self, question: Callable[[Any], T]) -> T:
        """What the store answers. Raises RuntimeError where it fails, or is asked already."""
        if not self.lock.acquire(timeout=_REQUEST):
            raise RuntimeError("the store does not answer")
        try:
            answer = question(self.store)
            self.unanswered = 0
            return answer
        finally:
            self.lock.release()

    def _publish(self, beat: int) -> None:
        own = {"beat": beat, "step": self.step, "collectives": self.collectives}
        self._ask(lambda store: store.set(f"beats/{self.place.rank}", json.dumps(own)))

    def _said(self, rank: int) -> dict[str, Any]:
        """What a process said last of how far it is."""
        return json.loads(self._ask(lambda store: store.get(f"beats/{rank}")))

    def _someone_gone(self) -> str:
        """Who is gone, as another process found or this one does; "" where nobody is."""
        if self._ask(lambda store: store.check(["gone"])):
            return self._ask(lambda store: store.get("gone")).decode()
        found = self._neighbour_gone() or self._silent() or self._stalled()
        return self._tell(found) if found else ""

    def _stalled(self) -> str:
        """Why this process gives up on what its GPU waits for, "" where it does not."""
        exchanges = _exchanges()
        failed = exchanges.failed() if exchanges is not None else None
        if failed is None:
            return ""
        behind = self.behind()
        # NCCL may have noticed the end of a process first.
        if gone := self._neighbour_gone():
            return gone
        at_step = f" at step {self.step}" if self.step is not None else ""
        late = f"{behind} is late: " if behind else ""
        return f"rank {self.place.rank} gave up{at_step}: {late}{failed}"

    def _neighbour_gone(self) -> str:
        for f in self.neighbours:
            if started(f.pid) != f.started and not self._has_ended(f.rank):
                return f"rank {f.rank} (process {f.pid} on {f.host}) is gone{self._last(f.rank)}"
        return ""

    def _silent(self) -> str:
        f = self.remote
        if f is None:
            return ""
        beat = self._said(f.rank)["beat"]
        self.silence = self.silence + 1 if beat == self.heard else 0
        self.heard = beat
        if self.silence < _SILENCE or self._has_ended(f.rank):
            return ""
        seconds = f"{_SILENCE * _PERIOD:g} s"
        return (
            f"rank {f.rank} (process {f.pid} on {f.host}) has said nothing for {seconds}"
            f"{self._last(f.rank)}"
        )

    def _has_ended(self, rank: int) -> bool:
        try:
            return self._ask(lambda store: store.check([f"ended/{rank}"]))
        except RuntimeError:
            return False

    def _last(self, rank: int) -> str:
        """The step that a process said it is at."""
        try:
            step = self._said(rank)["step"]
        except RuntimeError:
            step = self.keepers_step if rank == 0 else None
        return f"; its last step was {step}" if step is not None else ""

    def _tell(self, found: str) -> str:
        """Tell all processes who is gone; what the first one told."""
        return self._ask(lambda store: store.compare_set("gone", "", found)).decode()

    # ---- the thread that ends the process ----

    def _guard(self) -> None:
        while not self.ended:
            self._pause(_PERIOD)
            self.unanswered += 1
            if self.unanswered > _SILENCE and not self.found:
                seconds = f"{_SILENCE * _PERIOD:g} s"
                self.found = f"{self._keeper()} has said nothing for {seconds}"
            if self.found and not self.ending.is_set():
                self._end()
                return
            if self.unanswered > _SILENCE:  # at the end of the program, which waits for it
                self._exit(self.found, 1)
            self._end_if_stuck()

    def _pause(self, seconds: float) -> None:
        """Wait; Ctrl-C, or the end, wakes it."""
        if not select.select([self.wake], [], [], seconds)[0]:
            return
        try:
            numbers = self.wake.recv(64)
        except OSError:
            return
        if signal.SIGINT in numbers:
            self.interrupted = time.monotonic()

    def _end(self) -> None:
        """End this process, if it does not do so by itself: a wait for a process that is gone fails
        with an error that names the user's line."""
        for _ in range(round(_GRACE / 0.1)):
            if self.ending.wait(0.1):
                return
            if self.reason:
                if self.ending.wait(_LAST_WORDS):
                    return  # it has said why, and may keep the store a while
                break
        self._exit(f"{self.found}{self._whereabouts()}", 1)

    def _end_if_stuck(self) -> None:
        """After Ctrl-C, end a process whose main thread is in a call that does not return."""
        unseen = (
            self.interrupted - self.noticed > 2 * _PERIOD
        )  # Python may see it before this thread
        mine = signal.getsignal(signal.SIGINT) == self._seen
        if unseen and mine and time.monotonic() - self.interrupted > _STUCK:
            with contextlib.suppress(RuntimeError):
                self._tell(f"rank {self.place.rank} was interrupted")
                time.sleep(2 * _PERIOD)  # for the others to read it
            self._exit(f"interrupted{self._whereabouts()}", 128 + signal.SIGINT)

    def _exit(self, message: str, status: int) -> None:
        if not self.ended:
            self.leave(message, status)

    def leave(self, message: str, status: int) -> None:
        """End this process at once, with a message, or "" where it has said enough."""
        who = f"rank {self.place.rank} of {self.place.size}"
        try:
            sys.stdout.flush()
            if message:
                sys.stderr.write(f"genesis_fn.distributed: {who} ends: {message}\n")
            sys.stderr.flush()
        finally:
            os._exit(status)

    def _whereabouts(self) -> str:
        """The user's line that the main thread is at."""
        main = threading.main_thread().ident
        frame = sys._current_frames().get(main or 0)  # pyright: ignore[reportPrivateUsage]
        while frame is not None and frame.f_back is not None and is_internal(frame.f_code):
            frame = frame.f_back
        return f"\n  at {at_frame(frame).describe()}" if frame is not None else ""

    def _seen(self, number: int, frame: FrameType | None) -> None:
        """Python's handler of Ctrl-C, that notes that it ran."""
        self.noticed = time.monotonic()
        signal.default_int_handler(number, frame)

    def _uncaught(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """`sys.excepthook`: an error that ends this process ends the others."""
        try:
            self.ended_by(error)
        finally:
            self._before(kind, error, trace)

    def ended_by(self, error: BaseException) -> None:
        """Tell all processes that this one ends by an error."""
        if isinstance(error, KeyboardInterrupt):
            said, self.status = "was interrupted", 128 + signal.SIGINT
        else:
            lines = str(error).splitlines()
            said = f"ended by {type(error).__name__}{': ' + lines[0] if lines else ''}"
        self.failing(said)
        step = f" at step {self.step}" if self.step is not None else ""
        with contextlib.suppress(RuntimeError):
            self._tell(f"rank {self.place.rank} {said}{step}")


def _exchanges() -> Any:
    """What knows of collectives on GPUs; None where no GPU has run anything."""
    return sys.modules.get("genesis_fn.backends.cuda.run.exchanges")
