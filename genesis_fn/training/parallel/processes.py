"""What the processes of a run agree on: their settings, and the step at which they stop."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from genesis_fn.core.sharding.world import world
from genesis_fn.distributed.facts import by_value
from genesis_fn.distributed.synchronization import exchanged


def is_first() -> bool:
    """Whether this process writes the run's files and shows how it goes."""
    return world().rank == 0


def check_alike(values: dict[str, Any]) -> None:
    """Raise ValueError, in all processes, where some have other settings: it names the first one
    that differs, and the ranks."""
    if world().size == 1:
        return
    text = json.dumps(values, default=str)
    everyone = [json.loads(each) for each in exchanged(text.encode(), "the settings")]
    for name in everyone[0]:
        found = {rank: _shown(each.get(name)) for rank, each in enumerate(everyone)}
        if len(set(found.values())) > 1:
            raise ValueError(
                f"the processes have different settings: {name} is {by_value(found)}; start all of "
                "them with the same options, file of settings and data"
            )


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)


# ---- the end that a signal asks for ----


@dataclasses.dataclass
class SharedStop:
    """A signal that comes to one process ends all behind the same step.

    Who gets it says so before handing its device one more step, and names the one after that as
    the last. No other process hands over a step beyond: each step needs all of them, so that by
    then it has been told.
    """

    number: int | None = None  # the signal's
    last: int = 0
    asked_at: int = -1

    def poll(self, asked: int | None, launched: int) -> None:
        """Tell the others of a signal, and learn of theirs.

        Args:
            asked: the number of a signal that came to this process.
            launched: the number of the last step that its device was handed.
        """
        if self.number is not None:
            return
        here = world()
        if here.size == 1:
            if asked is not None:
                self.number, self.last = asked, launched
            return
        if asked is not None:
            text = here.store.compare_set("stop", "", f"{asked} {launched + 2}").decode()
        elif self.asked_at != launched and here.store.check(["stop"]):
            text = here.store.get("stop").decode()
        else:
            self.asked_at = launched
            return
        number, last = map(int, text.split())
        self.number, self.last = number, last

    def ends_behind(self, step: int) -> bool:
        """Whether no step follows this one."""
        return self.number is not None and step >= self.last
