"""Options that have an effect only with other options: each command has a table of rules, which one function checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
from click.core import ParameterSource

Values = Mapping[str, Any]  # values of all parameters of a command by name, including defaults
NOT_GIVEN = (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionRule:
    """A rule that says when some options of a command have an effect.

    Attributes:
        options: The parameter names of these options.
        all_but: Instead of `options`: the rule is about all options except these.
        when: Returns, for the values of all parameters, whether the options have an effect.
        needs: The options that must be given as well, for the message.
        beside: Instead of `needs`: the options that remove the effect, for the message.
        why: The reason, if it is not obvious.
    """

    options: Sequence[str] = ()
    all_but: Sequence[str] = ()
    when: Callable[[Values], bool]
    needs: str = ""
    beside: str = ""
    why: str = ""

    def __post_init__(self) -> None:
        if bool(self.options) == bool(self.all_but) or bool(self.needs) == bool(self.beside):
            raise ValueError("a rule has options or all_but, and needs or beside")

    def names(self, parameter: click.Parameter) -> bool:
        """Return whether the rule is about a parameter."""
        if self.options:
            return parameter.name in self.options
        return isinstance(parameter, click.Option) and parameter.name not in self.all_but

    def broken_by(self, spelled: Sequence[str]) -> str:
        """Return a message about options that were given without effect."""
        which = " and ".join(filter(None, [", ".join(spelled[:-1]), spelled[-1]]))
        why = f": {self.why}" if self.why else ""
        if self.needs:
            return f"{which} {'need' if spelled[1:] else 'needs'} {self.needs}{why}"
        return f"{which} {'have' if spelled[1:] else 'has'} no effect beside {self.beside}{why}"


class RuledCommand(click.Command):
    """A command that refuses options without effect: it exits with code 2 and does nothing."""

    def __init__(self, *arguments: Any, rules: Sequence[OptionRule] = (), **others: Any) -> None:
        super().__init__(*arguments, **others)
        known = {parameter.name for parameter in self.params}
        for rule in rules:
            if unknown := {*rule.options, *rule.all_but} - known:
                raise ValueError(f"a rule of {self.name} is about unknown parameters: {sorted(unknown)}")
        self.rules = rules

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        check_options(ctx, self.rules)
        return super().invoke(ctx)


def check_options(context: click.Context, rules: Sequence[OptionRule]) -> None:
    """Raise UsageError with the name of every option that was given and has no effect."""
    given = [
        parameter
        for parameter in context.command.params
        if parameter.name is not None and context.get_parameter_source(parameter.name) not in (None, *NOT_GIVEN)
    ]
    said: list[str] = []
    told: set[str | None] = set()
    for rule in rules:
        vain = [parameter for parameter in given if rule.names(parameter) and parameter.name not in told]
        if vain and not rule.when(context.params):
            said.append(rule.broken_by([_spelled(parameter, context.params) for parameter in vain]))
            told.update(parameter.name for parameter in vain)
    if said:
        raise click.UsageError("; ".join(said), context)


def _spelled(parameter: click.Parameter, values: Values) -> str:
    """Return an option as the user gave it. For a pair of flags, this is one of the two."""
    is_off = values.get(parameter.name or "") is False and bool(parameter.secondary_opts)
    return (parameter.secondary_opts if is_off else parameter.opts)[0]
