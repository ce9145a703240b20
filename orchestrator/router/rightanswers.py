"""The right answers to the question that pairs are asked, remembered beyond the life of the router."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from orchestrator.router.endpoints import Registry
from orchestrator.topology.plan import InstancePlan

log = logging.getLogger(__name__)

NAME = "answers.json"
"""The file, beside the admin's socket."""


def of_plan(instances: Iterable[InstancePlan]) -> dict[str, str]:
    """What each model is served by, as a digest: answers are those of these engines and no others."""
    parts: dict[str, list[str]] = {}
    for one in instances:
        parts.setdefault(one.model, []).append(f"{one.name} {one.url} {one.digest}")
    return {
        model: hashlib.sha256("\n".join(sorted(some)).encode()).hexdigest()[:16]
        for model, some in parts.items()
    }


class AnswerFile:
    """`{model: {"plan": digest, "right": [answer, ...]}}`. Without a path nothing is remembered.

    `instances` tells what the models are served by now. A router that has just started could not tell a
    wrong answer from a right one otherwise.
    """

    def __init__(
        self, path: Path | None, instances: Callable[[], Iterable[InstancePlan]] = lambda: ()
    ) -> None:
        self._path = path
        self._instances = instances
        self._written: dict[str, dict[str, object]] = {}

    @classmethod
    def beside(cls, socket: Path | None, registry: Registry) -> AnswerFile:
        """The file of the router whose admin's socket this is."""
        path = None if socket is None else socket.with_name(NAME)
        return cls(path, lambda: (state.plan for state in registry.states()))

    def load(self) -> dict[str, list[str]]:
        """What was remembered of models that are served as they were; nothing where it cannot be read."""
        if self._path is None:
            return {}
        try:
            plans = of_plan(self._instances())
            told = json.loads(self._path.read_bytes())
            return {
                model: [str(answer) for answer in one["right"]]
                for model, one in told.items()
                if one["plan"] == plans.get(model)
            }
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError, TypeError, KeyError) as error:
            log.warning("answers are forgotten", extra={"file": str(self._path), "why": str(error)})
            return {}

    def save(self, right: Mapping[str, Sequence[str]]) -> None:
        """Remember right answers by model; where that fails they hold until the router is started anew."""
        if self._path is None:
            return
        plans = of_plan(self._instances())
        told: dict[str, dict[str, object]] = {
            model: {"plan": plans.get(model, ""), "right": list(some)} for model, some in right.items()
        }
        if told == self._written:
            return
        new = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            new.write_text(json.dumps(told))
            os.replace(new, self._path)
        except OSError as error:
            log.warning("answers cannot be remembered", extra={"file": str(self._path), "why": str(error)})
        self._written = told
