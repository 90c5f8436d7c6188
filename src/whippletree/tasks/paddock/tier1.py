"""Tier 1: one to three short steps on tiny text files, in a vocabulary of a few hundred words.

Invariant: the kinds held out of training use only commands that training shows, in new combinations.
"""

from __future__ import annotations

from functools import partial
from random import Random

from whippletree.tasks.paddock.checks import Goals, absent, text
from whippletree.tasks.paddock.deal import Deal
from whippletree.tasks.paddock.kind import SPLITS, Instance, Kind
from whippletree.tasks.paddock.tier1_ops import (
    MakeOp,
    Op,
    append_line,
    copy,
    count_lines,
    delete,
    delete_two,
    find_word,
    first_line,
    grep_lines,
    join,
    join_three,
    last_line,
    rename,
    replace_word,
    sort_lines,
    write_text,
)

COMPOSABLE = (
    copy,
    rename,
    delete,
    first_line,
    last_line,
    count_lines,
    sort_lines,
    write_text,
    append_line,
    replace_word,
)
LISTABLE = (copy, rename, delete, append_line)


def sentences(phrase: str) -> str:
    return " . ".join(part[0].upper() + part[1:] for part in phrase.split(" . ")) + " ."


def instance(deal: Deal, op: Op, goals: Goals | None = None) -> Instance:
    """The job of one Op, in two or three files where the Op leaves room."""
    if len(deal.files) < 2 or (len(deal.files) == 2 and deal.rng.random() < 0.5):
        deal.file()
    phrase = deal.rng.choice(op.phrases)
    return Instance(sentences(phrase), deal.files, op.gold, goals or {"goal": op.checks}, op.misses)


def single(make: MakeOp, rng: Random) -> Instance:
    deal = Deal(rng)
    return instance(deal, make(deal))


# ---- several operations -----------------------------------------------------------------------------------------


def steps(count: int, rng: Random) -> Instance:
    """`count` operations on disjoint files; a goal each."""
    deal = Deal(rng)
    ops = [make(deal) for make in rng.sample(COMPOSABLE, count)]
    phrase = " . then ".join(rng.choice(op.phrases) for op in ops)
    gold = tuple(command for op in ops for command in op.gold)
    dropped = tuple(gold[:i] + gold[i + 1 :] for i in range(count))
    damaged = (*gold, f"rm {deal.other}")
    goals = {f"step_{i}": op.checks for i, op in enumerate(ops, 1)}
    return instance(deal, Op((phrase,), gold, (), (*dropped, damaged)), goals)


def move_to_folder(deal: Deal) -> Op:
    a, box = deal.file(), deal.folder()
    return Op(
        (f"make the folder {box} . then move {a} to {box}", f"move {a} to the new folder {box}"),
        (f"mkdir {box}", f"mv {a} {box}"),
        (text(f"{box}/{a}", deal.files[a]), absent(a)),
        ((f"mv {a} {box}",), (f"mkdir {box}", f"cp {a} {box}"), (f"mkdir {box}", f"mv {deal.other} {box}")),
    )


def copy_then_append(deal: Deal) -> Op:
    a, b, word = deal.file(), deal.name(), deal.word()
    return Op(
        (f"copy {a} to {b} . then add the line {word} to {b}",),
        (f"cp {a} {b}", f"echo {word} >> {b}"),
        (text(b, deal.files[a] + word),),
        ((f"cp {a} {b}", f"echo {word} >> {a}"), (f"cp {a} {b}",), (f"cp {a} {b}", f"echo {word} > {b}")),
    )


def join_then_count(deal: Deal) -> Op:
    a, b, c, d = deal.file(), deal.file(), deal.name(), deal.name()
    count = (deal.files[a] + deal.files[b]).count("\n")
    return Op(
        (f"join {a} and {b} to {c} . then write the number of lines of {c} to {d}",),
        (f"cat {a} {b} > {c}", f"wc -l < {c} > {d}"),
        (text(c, deal.files[a] + deal.files[b]), text(d, str(count))),
        ((f"cat {a} {b} > {c}", f"wc -l < {a} > {d}"), (f"cat {a} {b} > {c}",), (f"cat {a} {b} > {d}",)),
    )


# ---- first look, then act ---------------------------------------------------------------------------------------


def pointer(deal: Deal, act: str) -> tuple[str, str, tuple[str, ...]]:
    """A file, one that names it, and phrases for doing `act` to "that file"."""
    a = deal.file()
    p = deal.file([a])
    return a, p, (f"the file {p} names a file . {act}", f"read {p} . it names a file . {act}")


def follow(deal: Deal) -> Op:
    b = deal.name()
    a, p, phrases = pointer(deal, f"copy that file to {b}")
    return Op(
        phrases,
        (f"cat {p}", f"cp {a} {b}"),
        (text(b, deal.files[a]),),
        ((f"cat {p}", f"cp {p} {b}"), (f"cat {p}", f"cp {deal.other} {b}"), (f"cat {p}", f"mv {a} {b}")),
    )


def follow_rename(deal: Deal) -> Op:
    b = deal.name()
    a, p, phrases = pointer(deal, f"rename that file to {b}")
    return Op(
        phrases,
        (f"cat {p}", f"mv {a} {b}"),
        (text(b, deal.files[a]), absent(a)),
        ((f"cat {p}", f"mv {p} {b}"), (f"cat {p}", f"cp {a} {b}"), (f"cat {p}", f"mv {deal.other} {b}")),
    )


def follow_count(deal: Deal) -> Op:
    b = deal.name()
    a, p, phrases = pointer(deal, f"write the number of lines of that file to {b}")
    count = deal.files[a].count("\n")
    return Op(
        phrases,
        (f"cat {p}", f"wc -l < {a} > {b}"),
        (text(b, str(count)),),
        ((f"cat {p}", f"wc -l < {p} > {b}"), (f"cat {p}", f"cp {a} {b}"), (f"cat {p}", f"wc -l < {a} > {deal.other}")),
    )


def follow_twice(deal: Deal) -> Op:
    a, b = deal.file(), deal.name()
    q = deal.file([a])
    p = deal.file([q])
    return Op(
        (f"read {p} . it names a file . read that file . it names a file . copy that file to {b}",),
        (f"cat {p}", f"cat {q}", f"cp {a} {b}"),
        (text(b, deal.files[a]),),
        ((f"cat {p}", f"cp {q} {b}"), (f"cp {p} {b}",), (f"cp {deal.other} {b}",)),
    )


def delete_named(deal: Deal) -> Op:
    a, c = deal.file(), deal.other
    p = deal.file([c, a])
    return Op(
        (f"the last line of {p} names a file . delete that file", f"read {p} . delete the file on its last line"),
        (f"tail -n 1 {p}", f"rm {a}"),
        (absent(a),),
        ((f"head -n 1 {p}", f"rm {c}"), (f"tail -n 1 {p}", f"rm {p}"), (f"rm {a} {c}",)),
    )


def with_word_file(deal: Deal) -> tuple[str, str]:
    word = deal.word()
    return word, deal.file(deal.with_word(word, deal.lines()))


def find_delete(deal: Deal) -> Op:
    word, a = with_word_file(deal)
    return Op(
        (f"delete the file with the word {word}", f"find the file with the word {word} . delete that file"),
        (f"grep -l {word} *.txt", f"rm {a}"),
        (absent(a),),
        ((f"grep -l {word} *.txt", f"rm {deal.other}"), ("rm *.txt",), (f"sed -i 's/{word}//' {a}",)),
    )


def find_copy(deal: Deal) -> Op:
    (word, a), b = with_word_file(deal), deal.name()
    return Op(
        (f"copy the file with the word {word} to {b}", f"find the file with the word {word} . copy that file to {b}"),
        (f"grep -l {word} *.txt", f"cp {a} {b}"),
        (text(b, deal.files[a]),),
        ((f"grep -l {word} *.txt > {b}",), (f"cp {deal.other} {b}",), (f"mv {a} {b}",)),
    )


def find_rename(deal: Deal) -> Op:
    (word, a), b = with_word_file(deal), deal.name()
    return Op(
        (
            f"rename the file with the word {word} to {b}",
            f"find the file with the word {word} . rename that file to {b}",
        ),
        (f"grep -l {word} *.txt", f"mv {a} {b}"),
        (text(b, deal.files[a]), absent(a)),
        ((f"cp {a} {b}",), (f"mv {deal.other} {b}",), (f"grep -l {word} *.txt > {b}", f"rm {a}")),
    )


def read_then_write(deal: Deal) -> Op:
    a, b = deal.file([*deal.lines(deal.rng.randint(1, 2)), f"{deal.word()} {deal.word()}"]), deal.name()
    *_, before, last = deal.files[a].split()
    return Op(
        (f"write the last word of {a} to {b}", f"read {a} . write its last word to {b}"),
        (f"cat {a}", f"echo {last} > {b}"),
        (text(b, last),),
        ((f"cat {a}", f"echo {before} > {b}"), (f"tail -n 1 {a} > {b}",), (f"cat {a}", f"echo {last} > {a}")),
    )


def do_listed(deal: Deal) -> Op:
    """The order itself lies in a file."""
    op = deal.rng.choice(LISTABLE)(deal)
    p = deal.file([deal.rng.choice(op.phrases)])
    misses = ((f"cat {p}",), *((f"cat {p}", *miss) for miss in op.misses))
    return Op((f"do what {p} says", f"read {p} and do what it says"), (f"cat {p}", *op.gold), op.checks, misses)


# ---- the table --------------------------------------------------------------------------------------------------


def _kinds(splits: tuple[str, ...], *makers: MakeOp) -> tuple[Kind, ...]:
    return tuple(Kind(make.__name__, 1, partial(single, make), splits) for make in makers)


TIER1: tuple[Kind, ...] = (
    *_kinds(SPLITS, copy, rename, delete, first_line, last_line, count_lines, join, sort_lines),
    *_kinds(SPLITS, find_word, grep_lines, write_text, append_line, replace_word),
    *_kinds(SPLITS, move_to_folder, follow, delete_named, find_delete, read_then_write, do_listed),
    Kind("two_steps", 1, partial(steps, 2)),
    Kind("three_steps", 1, partial(steps, 3)),
    *_kinds(("validation",), delete_two, follow_rename, find_copy, join_then_count),
    *_kinds(("test",), join_three, follow_count, find_rename, copy_then_append, follow_twice),
)
