"""What was read and what would be written, for the terminal. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from agentreplay.units import as_number

if TYPE_CHECKING:
    from agentreplay.trace.check import Checked
    from agentreplay.trace.export import Seen

_FILES_SHOWN = 40


def check_report(found: Checked) -> RenderableType:
    """Formats first, then every file with something to say, then the sum."""
    forms = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    forms.add_column("format")
    for column in ("files", "sessions", "calls"):
        forms.add_column(column, justify="right")
    for name in sorted({file.format or "" for file in found.files} - {""}):
        files = [file for file in found.files if file.format == name]
        sums = (len(files), sum(f.sessions for f in files), sum(f.calls for f in files))
        forms.add_row(name, *map(as_number, sums))
    parts: list[RenderableType] = [forms]
    telling = [file for file in found.files if file.notes or file.skipped]
    for file in telling[:_FILES_SHOWN]:
        counts = f"{file.sessions} sessions, {file.calls} calls" if file.format else "not read"
        parts += [Text(""), Text(f"{file.path}: {counts}", style="bold")]
        for note in file.notes:
            lines = ", ".join(map(str, note.lines))
            more = ", …" if 0 < len(note.lines) < note.times else ""
            where = f" (line {lines}{more})" if lines else ""
            parts.append(Text(f"  {note.times:,} × {note.what}{where}"))
        parts += [
            Text(f"  {source.removeprefix(file.path)} {cause}".replace("   ", "  "), style="red")
            for source, cause in file.skipped.items()
        ]
    if len(telling) > _FILES_SHOWN:
        parts += [Text(""), Text(f"… and {len(telling) - _FILES_SHOWN} more files (--json)")]
        total: Counter[str] = Counter()
        for file in telling[_FILES_SHOWN:]:
            total.update({note.what: note.times for note in file.notes})
            total["that could not be read"] += len(file.skipped)
        parts += [Text(f"  {times:,} × {what}") for what, times in total.most_common() if times]
    for why, times in found.left_out.items():
        parts.append(Text(f"{times:,} sessions {why}", style="dim"))
    calls = f"{as_number(found.sessions)} sessions, {as_number(found.calls)} calls"
    parts += [Text(""), Text(f"{calls} of {len(found.files)} files can be replayed", style="bold")]
    return Group(*parts)


def export_report(form: str, seen: Seen) -> RenderableType:
    """What would leave the machine."""
    texts = sorted(seen.texts, key=lambda text: -seen.texts[text])
    shown = ", ".join(map(repr, texts))
    return Group(
        Text(
            f"{as_number(seen.sessions)} sessions in {seen.size_bytes:,} bytes ({form})",
            style="bold",
        ),
        Text(f"Fields: {', '.join(seen.fields)}"),
        Text(f"Numbers, and {len(texts)} different texts: {shown}"),
        Text("Of logs that is all: no prompt, answer, path, date or hash goes along."),
        Text("Names of sessions and agents in native and Weka files go along as they are."),
        Text(""),
        Text("The first line begins", style="dim"),
        Text(seen.first[:400].decode(errors="ignore")),
    )
