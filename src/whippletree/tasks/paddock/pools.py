"""The word pools that the suite draws from; a tokenizer recipe may import them.

Invariant of the tier-1 pools: they are disjoint, and no entry contains another, so that `grep` and `sed` on a bare word
can only meet that word, and lines with different first words sort alike in every locale.
"""


def _words(listed: str) -> tuple[str, ...]:
    return tuple(listed.split())


WORDS: tuple[str, ...] = _words(
    "red blue green gold pink grey fox bear wolf lion bird fish frog duck dog hen "
    "leaf rock sand wind rain snow moon star sun sea lake hill road gate door wall "
    "roof lamp desk book clay rope key bag hat coat shoe ring bell drum horn song "
    "salt milk bread cake rice bean corn plum pear fig jam nut egg pie soup cup"
)
"""Contents of tier-1 files: 64 words."""

STEMS: tuple[str, ...] = _words(
    "oak elm ash fir yew ivy fern moss reed rose lily iris mint sage kale beet "
    "pine palm teak vine lime cedar aspen maple"
)
"""Names of tier-1 files, without the suffix `.txt`: 24 stems."""

FOLDERS: tuple[str, ...] = _words("box crate shelf barn shed tray chest basket")
"""Names of tier-1 folders: 8."""

ITEMS: tuple[str, ...] = _words(
    "anchor bolt cable drill engine funnel gasket hammer jack kettle ladder magnet needle pulley rivet socket"
)
"""Goods in tables of tiers 2 and 3."""

PEOPLE: tuple[str, ...] = _words("ada ben cleo dan eva finn gus hana ivan june kit lena mia noor otto pia")

CITIES: tuple[str, ...] = _words("Bern Cork Graz Kiel Lima Oslo Riga Turin")
