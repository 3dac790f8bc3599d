"""The command `framedex inspect`."""

import os
import sys
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import get_args
from urllib.parse import urlsplit

import click

from framedex import options
from framedex.core.printing import echo, progress_bar
from framedex.core.words import counted, size_text
from framedex.errors import FramedexError, printable
from framedex.files.outputs import check_free, write_aside
from framedex.loader.contact_sheets.sheet import Inspector, ShownClip, Thumbnails, heading_of, html_sheet
from framedex.loader.contact_sheets.sheet_pictures import check_animation, png_sheet, webp_sheet
from framedex.loader.pixels.framing import Rotation
from framedex.storage.places import Access, Place

SHEETS = {".html": html_sheet, ".png": png_sheet, ".webp": webp_sheet}
# Environment variables that are set if the machine has a screen. Without a screen, only a text browser could be opened.
SCREENS = ("DISPLAY", "WAYLAND_DISPLAY")
SHEET_SIDE = 160  # default of --size for sheets, in pixels

RULES = (
    options.OptionRule(
        options=["clip_ids", "sample", "seed", "out", "columns", "overwrite"],
        when=lambda values: not values["serve"],
        beside="--serve",
    ),
    options.OptionRule(options=["port", "opens"], when=lambda values: values["serve"], needs="--serve"),
    *options.SAMPLE_RULES,
)

EXAMPLE = """\b
Example:
  framedex inspect DATASET --sample 12 --out sheet.html
  framedex inspect DATASET --clip 00f445950c3d72af-000000 --out clip.png
  framedex inspect DATASET --sample 9 --out clips.webp
  framedex inspect DATASET --serve
"""


@click.command("inspect", epilog=EXAMPLE, cls=options.RuledCommand, rules=RULES)
@click.argument("what", metavar="DATASET|INDEX", type=options.PLACE_THAT_IS_THERE)
@click.option(
    "--clip",
    "clip_ids",
    multiple=True,
    metavar="ID",
    help="Show the clip with this name, or all views of a multi-view clip. May be repeated.",
)
@options.sample_options("Show this many clips, chosen at random.")
@click.option(
    "--out",
    type=options.FILE_TO_WRITE,
    help=(
        "Write the sheet to this file. The ending selects the format: .html is a self-contained page, .png a picture, "
        "and .webp an animation in which all clips play."
    ),
)
@options.access_options()
@click.option(
    "--size",
    type=click.IntRange(16, 1024),
    metavar="PIXELS",
    help=f"Maximum length of a picture's longer side.  [default: {SHEET_SIDE}; with --serve, no limit]",
)
@click.option(
    "--rotation",
    type=click.Choice(get_args(Rotation)),
    default="apply",
    show_default=True,
    help="Turn pictures upright, as players show them, or leave them as they are stored.",
)
@click.option(
    "--columns",
    type=click.IntRange(1, 100),
    help="Maximum number of frames per line, or of clips in a .webp.  [default: as many as fit; 8 in a .png]",
)
@options.overwrite_option("a file that is")
@click.option(
    "--serve",
    is_flag=True,
    help=(
        "Instead of drawing a sheet, serve a page for the web browser. It plays the clips of a dataset, or shows the "
        "media of an index, and filters them by columns, audit findings and SQL. Only browsers on this machine can "
        "open the page. Ctrl-C ends the command."
    ),
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="With --serve: listen on this port. A fixed port is useful for an SSH tunnel.  [default: any free port]",
)
@click.option(
    "--open/--no-open",
    "opens",
    default=True,
    show_default=True,
    help="With --serve: open the page in the web browser of this machine, if the machine has a screen.",
)
def inspect(
    what: Place,
    clip_ids: tuple[str, ...],
    sample: int | None,
    seed: int,
    out: Path | None,
    access: Access,
    size: int | None,
    rotation: Rotation,
    columns: int | None,
    overwrite: bool,
    serve: bool,
    port: int,
    opens: bool,
) -> None:
    """Draw a contact sheet of clips, with the number and time of each frame, padding, labels and the decoding cost.

    The same dataset and options always give the same sheet. --sample N shows the clips that `framedex verify --sample
    N` checks, and all views of multi-view clips. If a clip cannot be decoded, the reason is shown.

    Exit codes: 0 done, 1 failed, 2 usage error, 3 done, but a clip could not be decoded.
    """
    if serve:
        _serve(what, Thumbnails(longest_side=size, rotation=rotation), port=port, opens=opens, access=access)
        return
    if out is None:
        raise click.UsageError("give --out for a sheet, or --serve for a page in the web browser")
    if bool(clip_ids) == (sample is not None):
        raise click.UsageError("give either --clip or --sample")
    # The options for the output are checked before anything is decoded.
    draw = SHEETS.get(out.suffix.lower())
    if draw is None:
        raise FramedexError("the ending of --out is not a known format", found=out.name, allowed=", ".join(SHEETS))
    check_free(out, overwrite)
    inspector = Inspector(what, Thumbnails(longest_side=size or SHEET_SIDE, rotation=rotation), access=access)
    numbers = inspector.find(clip_ids) if sample is None else inspector.sample(sample, seed)
    heading = heading_of(inspector.dataset, len(numbers))
    if draw is webp_sheet:
        check_animation(heading, map(inspector.outline, numbers), columns)
    frames, failed = 0, 0

    def clips() -> Iterator[ShownClip]:
        nonlocal frames, failed
        with progress_bar("clip") as show:
            for done, number in enumerate(numbers, 1):
                clip = inspector.show(number)
                frames += len(clip.frames)
                if clip.error is not None:
                    failed += 1
                    echo(f"failed: {printable(clip.uri)}: clip {printable(clip.clip_id)}: {clip.error}")
                yield clip
                show(done, len(numbers))

    sheet = draw(heading, clips(), columns)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_aside(out, sheet)
    echo(
        f"{counted(len(numbers), 'clip')} of {frames:,} frames, {failed} failed → "
        f"{printable(str(out))} ({size_text(len(sheet))})"
    )
    if failed:
        sys.exit(3)


def _serve(what: Place, thumbnails: Thumbnails, *, port: int, opens: bool, access: Access) -> None:
    """Serve the page until the process is interrupted."""
    from framedex.auditor.browser.server import serve  # a sheet does not need DuckDB

    def ready(url: str) -> None:
        echo(f"serving {printable(str(what))} at {url}")
        has_screen = any(os.environ.get(name) for name in SCREENS)
        if not has_screen:
            number = urlsplit(url).port
            echo(f"to open it on another machine, first run there: ssh -L {number}:127.0.0.1:{number} THIS_MACHINE")
        echo("Ctrl-C ends it")
        if opens and has_screen and not webbrowser.open(url):
            echo("no web browser was found; open the address manually", err=True)

    serve(what, thumbnails, port=port, access=access, ready=ready)
    echo("\nended", err=True)
