"""The table of kinds: what the suite consists of. A new kind is one generator and one line in its tier.

Invariant: names are unique.
"""

from __future__ import annotations

from whippletree.tasks.paddock.kind import Kind
from whippletree.tasks.paddock.tier1 import TIER1
from whippletree.tasks.paddock.tier2 import TIER2
from whippletree.tasks.paddock.tier3_plans import build_order, merge_config, rename_plan
from whippletree.tasks.paddock.tier3_tables import join_tables, reconcile, repair_table, sessions

TIER3: tuple[Kind, ...] = (
    *(
        Kind(make.__name__, 3, make)
        for make in (join_tables, sessions, merge_config, build_order, reconcile, repair_table)
    ),
    Kind("rename_plan", 3, rename_plan, ("test",)),
)

KINDS: dict[str, Kind] = {kind.name: kind for kind in (*TIER1, *TIER2, *TIER3)}
