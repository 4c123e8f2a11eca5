"""The document of the lecture: hand-written text around blocks that the commands print.

A block stands between `<!-- strop lecture NAME -->` and `<!-- end -->`. Invariant: nothing outside of blocks is touched,
and writing twice is writing once.
"""

import re
import textwrap
from collections.abc import Callable, Sequence

from strop.core.errors import UsageError
from strop.lecture.contents import Entry
from strop.lecture.symbols import symbol_table

WIDTH = 120
START, END = re.compile(r"<!-- strop lecture (\S+) -->\n"), "<!-- end -->"


def block(name: str, entry: Entry, lines: Sequence[str]) -> str:
    """Heading, explanation and what the command prints.

    Args:
        name: of the command.
        entry: its title and text.
        lines: its numbers as text; those of the symbols are set as a table instead.
    """
    told = textwrap.fill(entry.text, WIDTH)
    shown = symbol_table() if name == "symbols" else ["```", f"$ strop lecture {name}", *lines, "```"]
    return "\n".join([f"### {entry.title}", "", told, "", *shown, ""])


def rewritten(text: str, block_of: Callable[[str], str]) -> str:
    """The document with every block made anew.

    Args:
        text: the document.
        block_of: gives the block of a name.

    Raises:
        UsageError: a block that does not end before the next begins.
    """
    out: list[str] = []
    rest = text
    while found := START.search(rest):
        inside, end, after = rest[found.end() :].partition(END)
        if not end or START.search(inside):
            raise UsageError(f"the block {found[0].strip()} has no {END}; add one behind it")
        out += [rest[: found.end()], block_of(found[1]), END]
        rest = after
    return "".join(out) + rest
