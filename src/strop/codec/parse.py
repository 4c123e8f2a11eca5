"""Parsers for what models write. Invariant: any text is answered, none raises."""

import re

# A sign counts only where no word or number stands before it; 3.5 and version-like 1.2.3 are not integers.
_INTEGER = re.compile(r"(?<![0-9.,])(?:(?<!\w)[-\u2212])?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?![0-9]|[.,][0-9])")
_DIGITS = 1000  # beyond this, no answer; Python refuses to read more than 4,300 digits


def last_integer(text: str) -> int | None:
    """The last integer in a text, None if there is none.

    Example:
        `last_integer("3 apples, so -1,250.") == -1250`
    """
    for found in reversed(list(_INTEGER.finditer(text))):
        digits = found.group().replace(",", "").replace("\u2212", "-")
        if len(digits) <= _DIGITS:
            return int(digits)
    return None


def split_thinking(text: str) -> tuple[str, str]:
    """Thinking and answer of a reply, both stripped.

    A missing `<think>` (the template's header may have written it) and a missing `</think>` (cut, all the rest is
    thinking) are tolerated; text before the block belongs to the answer.

    Example:
        `split_thinking("<think>add</think>4") == ("add", "4")`
    """
    inside, closed, after = text.partition("</think>")
    before, opened, thinking = inside.partition("<think>")
    if opened:
        return thinking.strip(), (before + after).strip()
    return (inside.strip(), after.strip()) if closed else ("", text.strip())
