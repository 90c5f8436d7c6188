"""The table of kinds: what the suite consists of. A new kind is one generator and one line in its tier.

Invariant: names are unique.
"""

from __future__ import annotations

from functools import partial

from whippletree.tasks.paddock.kind import Kind
from whippletree.tasks.paddock.tier1 import TIER1
from whippletree.tasks.paddock.tier2 import TIER2
from whippletree.tasks.paddock.tier3_plans import build_order, merge_config, rename_plan
from whippletree.tasks.paddock.tier3_tables import join_tables, reconcile, repair_table, sessions
from whippletree.tasks.paddock.worlds_mail import contacts_send, mail_delete, mail_last, mail_send
from whippletree.tasks.paddock.worlds_services import ship_two, sql_get, sql_set, store_set

TIER3: tuple[Kind, ...] = (
    *(
        Kind(make.__name__, 3, make)
        for make in (join_tables, sessions, merge_config, build_order, reconcile, repair_table)
    ),
    Kind("rename_plan", 3, rename_plan, ("test",)),
)

_WORLDS = (mail_last, mail_delete, mail_send, contacts_send, sql_get, sql_set, ship_two, store_set)

TIER4: tuple[Kind, ...] = tuple(Kind(f"{make.__name__}_told", 4, partial(make, told=True)) for make in _WORLDS)

TIER5: tuple[Kind, ...] = tuple(Kind(make.__name__, 5, partial(make, told=False)) for make in _WORLDS)

KINDS: dict[str, Kind] = {kind.name: kind for kind in (*TIER1, *TIER2, *TIER3, *TIER4, *TIER5)}
