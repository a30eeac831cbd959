"""Claims by their tags, for `--tag`."""

from __future__ import annotations

from collections.abc import Sequence

from harness.contract.load import LoadedContract
from harness.contract.strict_yaml import nearest
from harness.errors import UsageError


def selected(contracts: Sequence[LoadedContract], tags: Sequence[str], claims: Sequence[str] = ()) -> tuple[str, ...]:
    """The ids of the claims that have one of the tags, among `claims` where there are any; without tags, `claims`.

    Raises UsageError for a tag that no claim has, and where no claim is left.
    """
    if not tags:
        return tuple(claims)
    tagged = [(one.id, loaded.contract.tags_of(one)) for loaded in contracts for one in loaded.contract.claims]
    known = dict.fromkeys(tag for _, own in tagged for tag in own)
    for tag in tags:
        if tag not in known:
            remedy = nearest(tag, known) or "no claim has any: write `tags` into a claim or a contract"
            raise UsageError("no claim here has this tag", got=f"`{tag}`", remedy=remedy)
    found = dict.fromkeys(
        name for name, own in tagged if not set(tags).isdisjoint(own) and (not claims or name in claims)
    )
    if not found:
        got = f"--tag {', '.join(tags)} and --claim {', '.join(claims)}"
        raise UsageError("no claim is selected", got=got, remedy="leave out one of them")
    return tuple(found)
