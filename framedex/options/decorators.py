"""What options and arguments are: decorators of the function behind a command."""

from __future__ import annotations

from collections.abc import Callable

Command = Callable[..., None]
Decorator = Callable[[Command], Command]


def together(*decorators: Decorator) -> Decorator:
    """Return decorators as one; the help of the command names their options in this order."""

    def decorate(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate
