"""Command line options and arguments that several commands share, with their types, help texts and rules.

A rule says that some options have an effect only together with, or only without, other options. Each command has a
list of rules. `check_options` refuses options that break a rule.
"""

import contextlib
import functools
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from framedex.core.limits import bytes_of
from framedex.errors import FramedexError
from framedex.execution.engine import Slice
from framedex.execution.engines import EngineName, engine_of
from framedex.files.outputs import check_writable
from framedex.storage.places import ALLOW_REMOTE, Access, Place, local_of, place

Command = Callable[..., None]
Decorator = Callable[[Command], Command]


def together(*decorators: Decorator) -> Decorator:
    """Combine decorators into one. The command's help lists the options in the order of the decorators."""

    def decorate(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


class PlaceType(click.ParamType[Place]):
    """The type of an argument or option that is a local folder or a uri in object storage.

    Args:
        there: Whether the folder must exist. Only local folders are checked, since checking a uri costs a request.
        written: Whether the command writes to the folder.
    """

    name = "folder or uri"

    def __init__(self, *, there: bool = False, written: bool = False) -> None:
        self._there, self._written = there, written

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Place:
        """Return the local path, or the `Stored` for a uri."""
        try:
            found = place(value)
            if self._written:
                check_writable(found)
        except FramedexError as error:
            self.fail(error.text(), param, ctx)
        if local_of(found) is None:
            return found
        if self._there and not found.exists():
            self.fail(f"Directory {str(value)!r} does not exist.", param, ctx)
        if found.exists() and not found.is_dir():
            self.fail(f"Directory {str(value)!r} is a file.", param, ctx)
        return found


class FileType(click.ParamType[Path]):
    """The type of an option that is a local file or the uri of a small object.

    An object is copied into a temporary local file. The copy is deleted when the command ends.
    """

    name = "file or uri"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path of a local file, or of the temporary copy of an object."""
        try:
            found = place(value)
            path = local_of(found)
            if path is not None:
                return path
            folder = tempfile.TemporaryDirectory(prefix="framedex-")
            (ctx or click.get_current_context()).call_on_close(folder.cleanup)
            copy = Path(folder.name) / found.name
            copy.write_bytes(found.read_bytes())
        except FileNotFoundError:
            self.fail(f"{value}: the object does not exist", param, ctx)
        except FramedexError as error:
            self.fail(error.text(), param, ctx)
        return copy


PLACE_TO_WRITE, PLACE_THAT_IS_THERE, FILE = PlaceType(written=True), PlaceType(there=True), FileType()
FILE_TO_WRITE: click.Path = click.Path(path_type=Path, dir_okay=False)


def out_folder_option(help_text: str, *, required: bool = True) -> Decorator:
    """Return the option `--out` for commands that write a local folder or a folder in object storage."""
    return click.option("--out", type=PLACE_TO_WRITE, required=required, help=help_text)


def overwrite_option(what: str) -> Decorator:
    """Return the option `--overwrite`.

    Args:
        what: The output to replace and a verb, such as "a dataset that is". The help continues with "already there".
    """
    return click.option("--overwrite", is_flag=True, help=f"Replace {what} already there.")


def remove_option(help_text: str) -> Decorator:
    """Return the option `--remove`, which names media and may be given several times."""
    return click.option("--remove", multiple=True, metavar="URI|@LIST", help=help_text)


def prune_at_most_option(help_text: str) -> Decorator:
    """Return the option `--prune-at-most`, the greatest share of media that a run removes without being asked again."""
    return click.option(
        "--prune-at-most",
        type=click.FloatRange(0, 1),
        default=0.1,
        show_default=True,
        metavar="SHARE",
        help=help_text,
    )


def json_option(help_text: str = "Print one JSON object.") -> Decorator:
    """Return the option `--json`. The parameter of the command is named `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=help_text)


def read_by(parse: Callable[[str], Any], hint: str = "") -> Callable[..., Any]:
    """Return a click callback that parses the value of an option. An option that was not given stays None.

    Args:
        parse: The function that parses the value. It raises ValueError for a wrong value.
        hint: The end of the message about a wrong value.
    """

    def callback(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
        try:
            return None if value is None else parse(value)
        except ValueError as error:
            raise click.BadParameter(f"{error}{hint}") from error

    return callback


Values = Mapping[str, Any]  # parameter name → value for all parameters of a command, including defaults


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionRule:
    """A condition under which some options of a command have an effect.

    Attributes:
        options: The parameter names of the options that the rule is about.
        all_but: The parameter names of the options that the rule is not about. The rule is then about all other
            options. Given instead of `options`.
        when: A function of the values of all parameters. It returns whether the options have an effect.
        needs: The other options that must be given, for the message.
        beside: The other options that must not be given, for the message. Given instead of `needs`.
        why: The reason for the rule, for the message. Empty if the reason is obvious.
    """

    options: Sequence[str] = ()
    all_but: Sequence[str] = ()
    when: Callable[[Values], bool]
    needs: str = ""
    beside: str = ""
    why: str = ""

    def __post_init__(self) -> None:
        if bool(self.options) == bool(self.all_but) or bool(self.needs) == bool(self.beside):
            raise ValueError("a rule must have exactly one of options and all_but, and exactly one of needs and beside")

    def names(self, parameter: click.Parameter) -> bool:
        """Return whether the rule is about a parameter."""
        if self.options:
            return parameter.name in self.options
        return isinstance(parameter, click.Option) and parameter.name not in self.all_but

    def broken_by(self, spelled: Sequence[str]) -> str:
        """Return the message about options that were given and have no effect.

        Args:
            spelled: The options as the user wrote them.
        """
        which = " and ".join(filter(None, [", ".join(spelled[:-1]), spelled[-1]]))
        why = f": {self.why}" if self.why else ""
        if self.needs:
            return f"{which} {'need' if spelled[1:] else 'needs'} {self.needs}{why}"
        return f"{which} {'have' if spelled[1:] else 'has'} no effect with {self.beside}{why}"


class RuledCommand(click.Command):
    """A command that refuses options that have no effect. It then exits with code 2 before it does anything."""

    def __init__(self, *arguments: Any, rules: Sequence[OptionRule] = (), **others: Any) -> None:
        super().__init__(*arguments, **others)
        known = {parameter.name for parameter in self.params}
        for rule in rules:
            if unknown := {*rule.options, *rule.all_but} - known:
                raise ValueError(f"a rule of {self.name} is about unknown parameters: {sorted(unknown)}")
        self.rules = rules

    def invoke(self, ctx: click.Context) -> Any:
        """Check the options and run the command."""
        check_options(ctx, self.rules)
        return super().invoke(ctx)


def check_options(context: click.Context, rules: Sequence[OptionRule]) -> None:
    """Raise UsageError if options were given that have no effect. The message lists all of them."""
    defaults = (None, ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)
    given = [one for one in context.command.params if context.get_parameter_source(one.name or "") not in defaults]
    messages: list[str] = []
    for rule in rules:
        vain = [parameter for parameter in given if rule.names(parameter)]
        if vain and not rule.when(context.params):
            messages.append(rule.broken_by([_spelled(parameter, context.params) for parameter in vain]))
            given = [parameter for parameter in given if parameter not in vain]  # each option is in one message only
    if messages:
        raise click.UsageError("; ".join(messages), context)


def _spelled(parameter: click.Parameter, values: Values) -> str:
    """Return an option as the user wrote it, such as `--audio` or `--no-audio` for a pair of flags."""
    is_off = values.get(parameter.name or "") is False and bool(parameter.secondary_opts)
    return (parameter.secondary_opts if is_off else parameter.opts)[0]


SAMPLE_RULES = (OptionRule(options=["seed"], when=lambda values: values["sample"] is not None, needs="--sample"),)


def dataset_argument() -> Decorator:
    """Return the argument DATASET. Its value must be an existing local folder or a uri."""
    return click.argument("dataset", type=PLACE_THAT_IS_THERE)


def access_options(*, beside: str = "") -> Decorator:
    """Return the options `--root` and `--allow-remote` for commands that read the sources.

    The command gets the values of both options as one parameter `access`, a storage.places.Access.

    Args:
        beside: The options with which the command reads the sources, for the help. Empty if the command always reads
            the sources.
    """

    def decorate(command: Command) -> Command:
        @click.option(
            "--root",
            type=click.Path(file_okay=False),
            help=_beside(beside, "New location of the sources, if the sources were moved."),
        )
        @allow_remote_option(beside=beside)
        @functools.wraps(command)
        def with_access(*, root: str | None, allow_remote: bool, **others: Any) -> None:
            command(access=Access(root=root, allow_remote=allow_remote), **others)

        return with_access

    return decorate


def allow_remote_option(*, beside: str = "") -> Decorator:
    """Return the option `--allow-remote`. For `beside`, see `access_options`."""
    text = (
        "Also read sources that are in another bucket or on another host than the index or dataset. "
        f"The environment variable {ALLOW_REMOTE}=1 has the same effect."
    )
    return click.option("--allow-remote", is_flag=True, help=_beside(beside, text))


def seed_option(of: str, *, beside: str = "") -> Decorator:
    """Return the option `--seed`.

    Args:
        of: The random choice that the seed determines, for the help.
        beside: The options with which the command chooses at random, for the help. Empty if it always does so.
    """
    return click.option("--seed", type=int, default=0, show_default=True, help=_beside(beside, f"Seed of {of}."))


def sample_options(help_text: str) -> Decorator:
    """Return the options `--sample` and `--seed`. The command must have SAMPLE_RULES among its rules.

    Args:
        help_text: The help of `--sample`.
    """
    return together(
        click.option("--sample", type=click.IntRange(1), help=help_text),
        seed_option("the choice", beside="--sample"),
    )


def _beside(options: str, text: str) -> str:
    return f"With {options}: {text[0].lower()}{text[1:]}" if options else text


ENGINE_RULES = (
    OptionRule(options=["ray_address"], when=lambda values: values["engine_name"] == "ray", needs="--engine ray"),
    OptionRule(
        options=["engine_name"],
        when=lambda values: values["engine_name"] == "local" or values["workers"] > 0,
        needs="--workers 1 or more",
    ),
)


def engine_options(command: Command) -> Command:
    """Add the options that choose an engine. The command gets an engine.Engine as its parameter `engine`.

    The command must have ENGINE_RULES among its rules.
    """

    @click.option(
        "--engine",
        "engine_name",
        type=click.Choice(["local", "ray"]),
        default="local",
        show_default=True,
        help="Run the work in processes of this machine, or in tasks of a Ray cluster: up to --workers at a time.",
    )
    @click.option(
        "--ray-address",
        help="Address of the Ray cluster.  [default: the variable RAY_ADDRESS, or a new cluster on this machine]",
    )
    @functools.wraps(command)
    def with_engine(*, engine_name: EngineName, ray_address: str | None, **others: Any) -> None:
        engine = engine_of(engine_name, ray_address)
        if engine_name == "local":
            command(engine=engine, **others)
            return
        with contextlib.redirect_stdout(_OfThisThread()):  # one of Ray's threads reports lost workers on stdout
            command(engine=engine, **others)

    return with_engine


class _OfThisThread:
    """A text file that writes to stdout in the thread that created it, and to stderr in all other threads."""

    def __init__(self) -> None:
        self._stdout, self._thread = sys.stdout, threading.get_ident()

    def write(self, text: str) -> int:
        """Write text to stdout or stderr, depending on the current thread."""
        return (self._stdout if threading.get_ident() == self._thread else sys.stderr).write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stdout, name)


def limits_rule(*options: str) -> OptionRule:
    """Return the rule that limits on time and memory have no effect without worker processes.

    Args:
        options: The parameter names of the limits.
    """
    why = "only worker processes can be limited"
    return OptionRule(options=options, when=lambda values: values["workers"] > 0, beside="--workers 0", why=why)


def workers_option(help_text: str) -> Decorator:
    """Return the option `--workers`.

    Args:
        help_text: The first sentences of the help, which say what the processes do.
    """
    return click.option(
        "--workers",
        type=click.IntRange(0),
        default=os.cpu_count() or 1,
        show_default="all cores",
        help=help_text + " With 0, no processes are started, and the command's own process does the work.",
    )


def time_limit_option(
    name: str = "--timeout", *, seconds: float, help_text: str = "Time limit for one medium."
) -> Decorator:
    """Return an option for a time limit in seconds.

    Args:
        name: The name of the option.
        seconds: The default of the time limit.
        help_text: The help, which says what work the limit applies to.
    """
    return click.option(
        name,
        type=click.FloatRange(0, min_open=True),
        default=seconds,
        show_default=True,
        metavar="SECONDS",
        help=help_text,
    )


def max_failures_option(what: str) -> Decorator:
    """Return the option `--max-failures`.

    Args:
        what: The word for the failures in the help, in the plural, such as "unusable media".
    """
    return click.option(
        "--max-failures",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        help=f"Exit with 3 if there are more than this many {what}.",
    )


class ByteCount(click.ParamType[int]):
    """The type of an option that is a number of bytes, with or without a decimal or binary unit."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of bytes for a text such as `512MB`, `1.5GiB` or `100000`."""
        found = bytes_of(str(value))
        if found is None:
            self.fail(f"{value!r} is not a size; write for example 512MB, 1.5GiB or 100000", param, ctx)
        return found


class FrameSize(click.ParamType[tuple[int, int]]):
    """The type of an option that is the height and width of a frame. Both numbers have one to five digits."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Return (height, width) for a text such as `224x320`."""
        match = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", str(value).strip().lower())
        if match is None:
            self.fail(f"{value!r} is not a height and width; write for example 224x320", param, ctx)
        return int(match[1]), int(match[2])


BYTE_COUNT, FRAME_SIZE = ByteCount(), FrameSize()


FINISH_RULE = OptionRule(
    options=["task"],
    when=lambda values: not values["finish"],
    beside="--finish",
    why="run --finish after all slices are done",
)


def slice_options(finished: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the options `--task` and `--finish`.

    Args:
        finished: The output that `--finish` completes, for the help, such as "index".
    """
    return together(
        click.option(
            "--task",
            callback=read_by(Slice.parse, "; write 0/8 for the first of eight slices"),
            metavar="I/N",
            help="Do only slice I of the N slices of the run, 0/N to N-1/N. Otherwise, give the same command on "
            "every machine. When all slices are done, run the command with --finish instead of --task.",
        ),
        click.option("--finish", is_flag=True, help=f"Check that all slices are done, and complete the {finished}."),
    )
