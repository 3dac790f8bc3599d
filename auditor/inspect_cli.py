"""The command `framedex inspect`."""

import os
import sys
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import click

from framedex import options
from framedex.core.printing import echo, progress_bar
from framedex.core.words import counted, size_text
from framedex.errors import FramedexError, printable
from framedex.files.outputs import check_free, write_aside
from framedex.loader.contact_sheets.sheet import Inspector, ShownClip, html_sheet
from framedex.loader.contact_sheets.sheet_pictures import check_animation, png_sheet, webp_sheet
from framedex.storage.places import Access, Place

SHEETS = {".html": html_sheet, ".png": png_sheet, ".webp": webp_sheet}
# Environment variables of a screen. Without a screen, only a browser of the terminal could open a page.
SCREENS = ("DISPLAY", "WAYLAND_DISPLAY")
SHEET_SIDE = 160  # default of --size for sheets

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
    help="Show the clip of this name, or the views that share it; may be repeated.",
)
@options.sample_options("Show this many clips, chosen at random.")
@click.option(
    "--out",
    type=options.FILE_TO_WRITE,
    help=(
        "File of the sheet: a .html page that needs no other file and no network, a .png picture, or a .webp animation "
        "in which the clips play."
    ),
)
@options.access_options()
@click.option(
    "--size",
    type=click.IntRange(16, 1024),
    metavar="PIXELS",
    help=f"Longer side of each picture.  [default: {SHEET_SIDE}; with --serve, as it is stored]",
)
@click.option(
    "--columns",
    type=click.IntRange(1, 100),
    help="Frames per line; in a .webp, clips.  [default: as many as fit; 8 in a .png]",
)
@options.overwrite_option("a file that is")
@click.option(
    "--serve",
    is_flag=True,
    help=(
        "Open a page in the web browser instead: clips that play, filters by column and by audit finding, SQL. Also "
        "shows the media of an index. The page is on this machine only; Ctrl-C ends it."
    ),
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="With --serve: the port, which a tunnel needs to know.  [default: any free port]",
)
@click.option(
    "--open/--no-open",
    "opens",
    default=True,
    show_default=True,
    help="With --serve: open the page in the web browser of this machine, if it has a screen.",
)
def inspect(
    what: Place,
    clip_ids: tuple[str, ...],
    sample: int | None,
    seed: int,
    out: Path | None,
    access: Access,
    size: int | None,
    columns: int | None,
    overwrite: bool,
    serve: bool,
    port: int,
    opens: bool,
) -> None:
    """Draw the contents of clips: every frame with its number and time, padding, labels, and the cost of reading it.

    The same dataset and options give the same sheet; --sample N shows the clips that `framedex verify --sample N`
    checks, each view with the other views that belong to it. A clip that cannot be decoded is shown with the reason.

    Exit codes: 0 done, 1 failed, 2 usage, 3 done but some clip could not be decoded.
    """
    if serve:
        _serve(what, port=port, opens=opens, access=access, longest_side=size)
        return
    if out is None:
        raise click.UsageError("give --out for a sheet, or --serve for a page in the web browser")
    if bool(clip_ids) == (sample is not None):
        raise click.UsageError("give either --clip or --sample")
    # Everything that can be wrong with the output is checked before anything is decoded.
    draw = SHEETS.get(out.suffix.lower())
    if draw is None:
        raise FramedexError(
            "the ending of --out says what to draw, and this is none", found=out.name, allowed=", ".join(SHEETS)
        )
    check_free(out, overwrite)
    inspector = Inspector(what, longest_side=size or SHEET_SIDE, access=access)
    numbers = inspector.find(clip_ids) if sample is None else inspector.sample(sample, seed)
    heading = inspector.heading(len(numbers))
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


def _serve(what: Place, *, port: int, opens: bool, access: Access, longest_side: int | None) -> None:
    """Serve the page until the process is interrupted."""
    from framedex.auditor.browser.server import serve  # a sheet does not need DuckDB

    def ready(url: str) -> None:
        echo(f"serving {printable(str(what))} at {url}")
        has_screen = any(os.environ.get(name) for name in SCREENS)
        if not has_screen:
            number = urlsplit(url).port
            echo(f"to see it on another machine, run there: ssh -L {number}:127.0.0.1:{number} THIS_MACHINE")
        echo("Ctrl-C ends it")
        if opens and has_screen and not webbrowser.open(url):
            echo("no web browser was found: open the address yourself", err=True)

    serve(what, port=port, access=access, longest_side=longest_side, ready=ready)
    echo("\nended", err=True)
