"""Tool worlds with pages and a help text: a mail box and an address book.

Invariant: what the first page or the first guess shows is never enough where there is trouble, and always looks so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from whippletree.tasks.paddock.checks import absent, text
from whippletree.tasks.paddock.kind import Instance
from whippletree.tasks.paddock.pools import FOLDERS, STEMS, WORDS
from whippletree.tasks.paddock.worlds import LOOK_UP, MORE, Reminder, in_trouble, remind
from whippletree.tasks.paddock.worlds_tools import FORMS, PAGE, contacts, inbox, mail

SENT = ".mail/sent.txt"


def mail_last(rng: Random, told: bool) -> Instance:
    """The last mail of a sender is on a later page than an earlier one."""
    reminder, pages, places = _paged(rng, told)
    mails = _mails(rng, pages, places)
    sender, out = mails[places[0]][0], rng.choice(STEMS) + ".txt"
    lists = tuple(_list("mail", page) for page in range(1, pages + 1))

    def read(place: int) -> str:
        return f"sh mail read {place + 1} > {out}"

    others = [i for i in range(len(mails)) if i not in places]
    return Instance(
        instruction=f"write the last mail from {sender} to {out} . use sh mail .{reminder.asked}",
        files={"mail": mail(mails, more=reminder.printed), **inbox(mails)},
        gold=(*lists, read(places[-1])),
        goals={"written": [text(out, mails[places[-1]][1])]},
        near_misses=((*lists, read(rng.choice(others))), (f"sh mail list > {out}",)),
        habit=(lists[0], read(places[0])),
    )


def mail_delete(rng: Random, told: bool) -> Instance:
    """A sender has one mail on the first page, and one on a later page."""
    reminder, pages, places = _paged(rng, told)
    mails = _mails(rng, pages, places)
    gold = _through("mail", pages, {place: f"sh mail delete {place + 1}" for place in places})
    wrong = rng.choice([i for i in range(len(mails)) if i not in places])
    return Instance(
        instruction=f"delete the mails from {mails[places[0]][0]} . use sh mail .{reminder.asked}",
        files={"mail": mail(mails, more=reminder.printed), **inbox(mails)},
        gold=gold,
        goals={"deleted": [absent(f".mail/inbox/{place + 1}") for place in places]},
        near_misses=((*gold, f"sh mail delete {wrong + 1}"), ("rm -r .mail/inbox",)),
        habit=gold[:2],
    )


def contacts_send(rng: Random, told: bool) -> Instance:
    """A team has one member on the first page, and one on a later page."""
    reminder, pages, places = _paged(rng, told)
    *names, word = rng.sample(WORDS, pages * PAGE + 1)
    team, *others = rng.sample(FOLDERS, 3)
    teams = [team if i in places else rng.choice(others) for i in range(len(names))]
    sends = {place: f"sh mail send {names[place]} {word}" for place in places}
    gold = _through("contacts", pages, sends)
    wrong = rng.choice([i for i in range(len(names)) if i not in places])
    return Instance(
        instruction=f"send {word} to all of the team {team} . use sh contacts and sh mail .{reminder.asked}",
        files={
            "contacts": contacts(len(names), more=reminder.printed),
            "mail": mail(),
            ".contacts/names.txt": "".join(f"{name} {of}\n" for name, of in zip(names, teams, strict=True)),
            ".mail/inbox/1": f"{names[0]}\n{word}\n",
        },
        gold=gold,
        goals={"sent": [text(SENT, "\n".join(sorted(f"{names[place]} {word}" for place in places)))]},
        near_misses=((*gold, f"sh mail send {names[wrong]} {word}"), (*gold, gold[1])),
        habit=gold[:2],
    )


def mail_send(rng: Random, told: bool) -> Instance:
    """How a mail is sent is not what one would guess, and a wrong guess may be sent, too."""
    form = rng.choice(FORMS[1:]) if in_trouble(rng, told) else FORMS[0]
    reminder = remind(rng, LOOK_UP, told)
    name, word = rng.sample(WORDS, 2)

    def send(form: str) -> str:
        return f"sh mail {form.replace('name', name).replace('text', word)}"

    mails = _mails(rng, 1, [0])
    guess = send(FORMS[0])
    refused = (guess,) if reminder.printed else ()
    others = [send(other) for other in FORMS if other != form]
    return Instance(
        instruction=f"send {word} to {name} . use sh mail .{reminder.asked}",
        files={"mail": mail(mails, form, refuse=reminder.printed), **inbox(mails)},
        gold=(*refused, "sh mail help", send(form)),
        goals={"sent": [text(SENT, f"{name} {word}")]},
        near_misses=tuple(("sh mail help", other) for other in others),
        habit=(guess,),
    )


# ---- pages ------------------------------------------------------------------------------------------------------


def _paged(rng: Random, told: bool) -> tuple[Reminder, int, list[int]]:
    """The reminder, how many pages there are, and the places of what is sought: on the first page, and on a later one.

    Without trouble there is one page, and one place on it.
    """
    pages = rng.choice((2, 3)) if in_trouble(rng, told) else 1
    first, later = rng.randrange(PAGE), rng.randrange(PAGE, max(2, pages) * PAGE)
    return remind(rng, MORE, told), pages, [first, later] if pages > 1 else [first]


def _mails(rng: Random, pages: int, places: Sequence[int]) -> list[tuple[str, str]]:
    """(sender, text) of each mail; those at the places have one sender, all others one each."""
    count = pages * PAGE
    words = rng.sample(WORDS, 3 * count)
    senders = [words[places[0]] if i in places else words[i] for i in range(count)]
    return [(sender, " ".join(words[count + 2 * i :][:2])) for i, sender in enumerate(senders)]


def _list(tool: str, page: int) -> str:
    return f"sh {tool} list" + (f" page {page}" if page > 1 else "")


def _through(tool: str, pages: int, acts: Mapping[int, str]) -> tuple[str, ...]:
    """Look at every page, and do on each what is to be done of the entries on it."""
    commands: list[str] = []
    for page in range(pages):
        commands.append(_list(tool, page + 1))
        commands += [act for place, act in acts.items() if place // PAGE == page]
    return tuple(commands)
