"""A generator of what a node in the hands of an attacker may answer: any JSON, and JSON that is nearly right."""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Callable, Mapping
from typing import Any

MARK = "EVIL"  # stands in every hostile text, so that a test can look for it
TEXTS = (
    f"\nMatch all\n    ProxyCommand sh -c {MARK}",
    f"x\n@cert-authority * {MARK}",
    f"* {MARK}",
    f"{MARK},n4",
    f'{MARK}" command="sh"',
    f"../../{MARK}",
    f"/tmp/{MARK}/../../etc",
    f"/tmp/{MARK}$(id)",
    f"fe80::1%{MARK}\nHost *",
    f"ssh-ed25519 AAAA {MARK}",
    f"{MARK}\x00\x1b[2J\r",
    f"\u202e{MARK}\u2028Host *",
    f"-oProxyCommand={MARK}",
    f"{{{{ lookup('pipe', '{MARK}') }}}}",
    MARK * 5000,
)
NO_TEXTS: tuple[Any, ...] = (None, True, False, 0, -1, 2**70, 1.5, float("nan"), float("inf"), [], {}, [[]], {"": ""})
ODD = (*NO_TEXTS, "", "*", "!*", "?")


def hostile_value(dice: random.Random, depth: int = 0) -> Any:
    """Return any JSON value, mostly a text that would be read as more than one word or line."""
    kind = dice.random()
    if kind < 0.55 or depth > 2:
        return dice.choice(TEXTS)
    if kind < 0.75:
        return dice.choice(ODD)
    count = dice.choice((1, 2, 3, 5 if depth else 500))
    if kind < 0.9:
        return [hostile_value(dice, depth + 1) for _each in range(count)]
    return {str(dice.choice(TEXTS))[:40] + str(number): hostile_value(dice, depth + 1) for number in range(count % 7)}


def near_miss(dice: random.Random, value: Any) -> Any:
    """Return a value that is nearly the honest one: something is added to it, or one thing in it is another."""
    if isinstance(value, str) and dice.random() < 0.8:
        return dice.choice((f"{value}{dice.choice(TEXTS)}", f"{dice.choice(TEXTS)}{value}", f"{value}\n", f" {value}"))
    if isinstance(value, (list, tuple)):
        more = [*value, hostile_value(dice) if dice.random() < 0.7 else near_miss(dice, dice.choice([*value, ""]))]
        dice.shuffle(more)
        return more
    if isinstance(value, Mapping) and value:
        name = dice.choice(list(value))
        return {**value, name: near_miss(dice, value[name])}
    return hostile_value(dice)


def hostile_answer(dice: random.Random, honest: Mapping[str, Any]) -> dict[str, Any]:
    """Return an honest answer of which one to three fields are another thing, or are missing."""
    answer = dict(honest)
    for name in dice.sample(sorted(honest), dice.randint(1, min(3, len(honest)))):
        if dice.random() < 0.2:
            del answer[name]
        else:
            answer[name] = near_miss(dice, answer[name]) if dice.random() < 0.6 else hostile_value(dice)
    return answer


def tried(times: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call a test with the seeds 0, 1 and so on. As tests of their own most would take pytest longer than they do."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def every(**given: object) -> None:
            for seed in range(times):
                try:
                    test(seed=seed, **given)
                except BaseException as error:
                    error.add_note(f"seed {seed}")
                    raise

        others = [each for name, each in inspect.signature(test).parameters.items() if name != "seed"]
        every.__dict__["__signature__"] = inspect.Signature(others)  # what pytest has to give
        return every

    return decorate
