"""Views: several cameras of one scene, whose clips are made of the same times."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

from framedex.sharder.configuration.parameters import (
    CELL,
    MANY,
    Cell,
    ColumnName,
    ColumnNames,
    Distance,
    Pairs,
    Rate,
    Record,
    RefusedError,
    listed,
    parameter,
    shown,
)
from framedex.sharder.schema import Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class View(Record):
    """What holds for one view alone.

    When the clock shows t seconds, the view shows what lies `offset_seconds` + `rate` * t after its beginning. With the
    policy `around`, `seconds` are the times from the anchor that are wanted of this view.
    """

    offset_seconds: Distance = parameter("the view's own time when the clock begins, in seconds", Fraction(0))
    rate: Rate = parameter("seconds that pass in the view while the clock counts one", Fraction(1))
    seconds: Annotated[tuple[Distance, ...], MANY, listed("[-0.1, 0]")] | None = parameter(
        "with the policy around: the times from the anchor that are wanted of this view", None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Views(Record):
    """Which rows of a listing are views of one scene, and how their times belong together.

    Rows with the same value in the column `group` (or in several columns) belong together; the column `view` names
    the view of each. The policy is applied to the view `clock`, or to a clock of its own that counts `clock_fps`
    frames a second from the views' beginnings on. Every other view gives, for each frame of that, the frame that
    `choose` means for the same time. It must lie within `tolerance_seconds` of that time, or, if the policy does
    not say that, closer than a frame of the view lasts on average. `missing` says what becomes of a clip for which
    a view has no such frame.
    """

    group: ColumnNames = parameter("the listing's column whose equal values mean one scene, or several columns")
    view: ColumnName = parameter("the listing's column that names the view")
    names: Annotated[tuple[Cell, ...], MANY, listed("[left, right]")] | None = parameter(
        "the views that are wanted; without it, all values of the column", None
    )
    clock: Cell | None = parameter("the view to which the policy is applied; or clock_fps", None)
    clock_fps: Rate | None = parameter("frames a second of a clock to which the policy is applied; or clock", None)
    missing: Missing = parameter(
        "if a view has no frame for a clip: the run ends, the clip is left out, or the frames are masked", "skip"
    )
    offset_column: ColumnName | None = parameter("the listing's column with the offset_seconds of each row", None)
    rate_column: ColumnName | None = parameter("the listing's column with the rate of each row", None)
    each: (
        Annotated[tuple[tuple[Cell, View], ...], Pairs("{left: {offset_seconds: 0.02}}", "a view is named twice")]
        | None
    ) = parameter("what holds for one view alone, by its name", None)

    def __post_init__(self) -> None:
        self.check_one_of("clock", "clock_fps", "the time of views is that of the view clock, or counted by clock_fps")
        if self.names is not None and len(set(self.names)) < len(self.names):
            raise RefusedError(CELL, where="names", found=", ".join(self.names))
        for name, view in self.each or ():
            where = f"each: {name}"
            if self.names is not None and name not in self.names:
                allowed = ", ".join(self.names)
                raise RefusedError("no view has this name", where="each", found=shown(name), allowed=allowed)
            if name == self.clock and (view.offset_seconds or view.rate != 1):
                raise RefusedError("the clock counts its own time", where=where, found="offset_seconds or rate")
            if view.offset_seconds and self.offset_column is not None:
                raise RefusedError("offsets are given by column or by view", where=where, found="both")
            if view.rate != 1 and self.rate_column is not None:
                raise RefusedError("rates are given by column or by view", where=where, found="both")
        if self.names is not None and self.clock is not None and self.clock not in self.names:
            raise RefusedError("clock is no view", found=shown(self.clock), allowed=", ".join(self.names))

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        others = (self.view, self.offset_column, self.rate_column)
        return [*self.group, *(name for name in others if name is not None)]

    def of(self, name: str) -> View:
        """Return the parameters of one view."""
        return dict(self.each or ()).get(name, View())

    def plain(self) -> dict[str, Any]:
        """Return the record as YAML writes it, defaults included."""
        own = Record.plain(self)
        return own | {"each": None if self.each is None else {name: view.plain() for name, view in self.each}}
