"""Options and arguments that name a dataset and select its clips."""

from __future__ import annotations

import functools
from typing import Any

import click

from framedex.options.decorators import Command, Decorator, together
from framedex.options.places import PLACE_THAT_IS_THERE
from framedex.options.rules import OptionRule
from framedex.storage.locations import ALLOW_REMOTE, Access

SAMPLE_RULES = (OptionRule(options=["seed"], when=lambda values: values["sample"] is not None, needs="--sample"),)


def dataset_argument() -> Decorator:
    """Return the argument DATASET, an existing folder or a uri."""
    return click.argument("dataset", type=PLACE_THAT_IS_THERE)


def access_options(*, beside: str = "") -> Decorator:
    """Return the options `--root` and `--allow-remote` for commands that read the sources.

    The command gets them as `access`, a locations.Access.

    Args:
        beside: The options that make the command read the sources. Empty: it always reads them.
    """

    def decorate(command: Command) -> Command:
        @click.option(
            "--root",
            type=click.Path(file_okay=False),
            help=_beside(beside, "Where the sources lie now, if they moved."),
        )
        @allow_remote_option(beside=beside)
        @functools.wraps(command)
        def with_access(*, root: str | None, allow_remote: bool, **others: Any) -> None:
            command(access=Access(root=root, allow_remote=allow_remote), **others)

        return with_access

    return decorate


def allow_remote_option(*, beside: str = "") -> Decorator:
    """Return the option `--allow-remote`. `beside`: as for `access_options`."""
    text = (
        "Read sources that lie in another bucket or on another host than the index or dataset, wherever its uris lead. "
        f"{ALLOW_REMOTE}=1 does the same."
    )
    return click.option("--allow-remote", is_flag=True, help=_beside(beside, text))


def seed_option(of: str, *, beside: str = "") -> Decorator:
    """Return the option `--seed`.

    Args:
        of: What is random.
        beside: The options that make anything random. Empty: there is no such option.
    """
    return click.option("--seed", type=int, default=0, show_default=True, help=_beside(beside, f"Seed of {of}."))


def sample_options(help_text: str) -> Decorator:
    """Return the options `--sample` and `--seed`. SAMPLE_RULES goes with them.

    Args:
        help_text: What is done with the clips of the sample.
    """
    return together(
        click.option("--sample", type=click.IntRange(1), help=help_text),
        seed_option("the choice", beside="--sample"),
    )


def _beside(options: str, text: str) -> str:
    return f"With {options}: {text[0].lower()}{text[1:]}" if options else text
