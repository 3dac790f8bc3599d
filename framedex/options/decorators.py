"""Types of options and arguments: decorators of the function behind a command."""

from __future__ import annotations

from collections.abc import Callable

Command = Callable[..., None]
Decorator = Callable[[Command], Command]


def together(*decorators: Decorator) -> Decorator:
    """Return several decorators as one. The help of the command lists their options in this order."""

    def decorate(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate
