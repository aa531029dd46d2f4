"""The table as text: for the command line and for docs/compatibility.md."""

from __future__ import annotations

import re

from fedml_dapper.config.compatibility.row import Row
from fedml_dapper.config.compatibility.table import TABLE

_KEY = re.compile(r"\b(?:[a-z]+_)+args(?:\.\w+)*")
_PAGE = re.compile(r"\(docs/(\w+\.md)\)")
_INTRODUCTION = """\
# What goes with what

An experiment that breaks one of these rows is refused before anything runs, and the refusal names every row that it
breaks. Rows about settings alone are checked when the file is read. Rows about a method, a network or data are checked
as soon as these are there. The same text in a shell, and the rows of one setting:

```bash
fedml-dapper settings --compatibility
fedml-dapper settings --compatibility | grep buffer_size
```

A row about a section holds for all that stands in it. So whoever sets `dapper_args.privacy.secure_aggregation` has to
keep the rows of `dapper_args.privacy` as well, those about methods and networks included.

Checked as well, but not listed here, is what depends on the data at hand, such as how many samples a client has, and
what a method asks of its own `dapper_args.params`.
"""


def page() -> str:
    """The whole table in Markdown, a heading for each topic."""
    topics = (f"## {topic}\n\n{_table(rows)}" for topic, rows in TABLE.items())
    return "\n".join((_INTRODUCTION, *topics))


def _table(rows: tuple[Row, ...]) -> str:
    lines = ["| This | | That | Why | What to do |", "|---|---|---|---|---|"]
    for row in rows:
        relation = "**needs**" if row.relation == "needs" else "**excludes**"
        cells = (row.this.label, relation, row.that.label, row.why, row.remedy)
        lines.append(f"| {' | '.join(map(_marked_up, cells))} |")
    return "\n".join(lines) + "\n"


def _marked_up(cell: str) -> str:
    """``cell`` with keys as code and pages as links."""
    return _PAGE.sub(r"([\1](\1))", _KEY.sub(r"`\g<0>`", cell))
