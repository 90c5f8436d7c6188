"""The single operations of tier 1: each is one command on files that it deals itself.

Invariant: operations of one deal touch disjoint files, so they compose in any order. Phrases are lowercase words and
file names set off by spaces; ` . ` parts sentences, and no sentence starts with a file name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from whippletree.tasks.paddock.checks import Check, absent, text
from whippletree.tasks.paddock.deal import Deal


@dataclass(frozen=True, slots=True)
class Op:
    phrases: tuple[str, ...]
    gold: tuple[str, ...]
    checks: tuple[Check, ...]
    """Of the one goal."""
    misses: tuple[tuple[str, ...], ...]


MakeOp = Callable[[Deal], Op]


def copy(deal: Deal) -> Op:
    a, b = deal.file(), deal.name()
    return Op(
        (f"copy {a} to {b}", f"make a copy of {a} with the name {b}", f"write the lines of {a} to {b}"),
        (f"cp {a} {b}",),
        (text(b, deal.files[a]),),
        ((f"cp {deal.other} {b}",), (f"mv {a} {b}",), (f"cp {a} {deal.other}",)),
    )


def rename(deal: Deal) -> Op:
    a, b = deal.file(), deal.name()
    return Op(
        (f"rename {a} to {b}", f"change the name of {a} to {b}"),
        (f"mv {a} {b}",),
        (text(b, deal.files[a]), absent(a)),
        ((f"cp {a} {b}",), (f"mv {deal.other} {b}",), (f"mv {a} {deal.other}",)),
    )


def delete(deal: Deal) -> Op:
    a = deal.file()
    return Op(
        (f"delete {a}", f"delete the file {a}", f"remove {a}"),
        (f"rm {a}",),
        (absent(a),),
        ((f"rm {deal.other}",), (f"rm {a} {deal.other}",)),
    )


def delete_two(deal: Deal) -> Op:
    a, b = deal.file(), deal.file()
    return Op(
        (f"delete {a} and {b}", f"remove the files {a} and {b}"),
        (f"rm {a} {b}",),
        (absent(a), absent(b)),
        ((f"rm {a}",), (f"rm {b} {deal.other}",), (f"rm {a} {b} {deal.other}",)),
    )


def first_line(deal: Deal) -> Op:
    a, b = deal.file(), deal.name()
    return Op(
        (f"write the first line of {a} to {b}", f"copy the first line of {a} to {b}"),
        (f"head -n 1 {a} > {b}",),
        (text(b, deal.files[a].split("\n")[0]),),
        ((f"tail -n 1 {a} > {b}",), (f"head -n 1 {deal.other} > {b}",), (f"head -n 2 {a} > {b}",)),
    )


def last_line(deal: Deal) -> Op:
    a, b = deal.file(), deal.name()
    return Op(
        (f"write the last line of {a} to {b}", f"copy the last line of {a} to {b}"),
        (f"tail -n 1 {a} > {b}",),
        (text(b, deal.files[a].split("\n")[-2]),),
        ((f"head -n 1 {a} > {b}",), (f"tail -n 1 {deal.other} > {b}",), (f"tail -n 1 {a} > {deal.other}",)),
    )


def count_lines(deal: Deal) -> Op:
    elsewhere = deal.files[deal.other].count("\n")
    count = deal.rng.choice([n for n in (2, 3, 4) if n != elsewhere])
    a, b = deal.file(deal.lines(count)), deal.name()
    return Op(
        (f"write the number of lines of {a} to {b}", f"count the lines of {a} and write the number to {b}"),
        (f"wc -l < {a} > {b}",),
        (text(b, str(count)),),
        ((f"wc -l < {deal.other} > {b}",), (f"echo {count + 1} > {b}",), (f"wc -l < {a}",)),
    )


def join(deal: Deal) -> Op:
    a, b, c = deal.file(deal.lines(2)), deal.file(deal.lines(2)), deal.name()
    return Op(
        (f"join {a} and {b} to {c}", f"write {a} and then {b} to {c}"),
        (f"cat {a} {b} > {c}",),
        (text(c, deal.files[a] + deal.files[b]),),
        ((f"cat {b} {a} > {c}",), (f"cat {a} {deal.other} > {c}",), (f"cat {b} >> {a}",)),
    )


def join_three(deal: Deal) -> Op:
    a, b, c = (deal.file(deal.lines(2)) for _ in range(3))
    d = deal.name()
    return Op(
        (f"join {a} and {b} and {c} to {d}", f"write {a} and then {b} and then {c} to {d}"),
        (f"cat {a} {b} {c} > {d}",),
        (text(d, deal.files[a] + deal.files[b] + deal.files[c]),),
        ((f"cat {a} {b} > {d}",), (f"cat {a} {c} {b} > {d}",), (f"cat {a} {b} {c} > {deal.other}",)),
    )


def sort_lines(deal: Deal) -> Op:
    lines = deal.lines(deal.rng.randint(3, 4))
    if lines == sorted(lines):
        lines.reverse()
    a, b = deal.file(lines), deal.name()
    return Op(
        (f"sort the lines of {a} to {b}", f"write the sorted lines of {a} to {b}"),
        (f"sort {a} > {b}",),
        (text(b, "\n".join(sorted(lines))),),
        ((f"cp {a} {b}",), (f"sort -r {a} > {b}",), (f"sort {deal.other} > {b}",), (f"sort -o {a} {a}",)),
    )


def find_word(deal: Deal) -> Op:
    word = deal.word()
    a, b = deal.file(deal.with_word(word, deal.lines())), deal.name()
    return Op(
        (
            f"write the name of the file with the word {word} to {b}",
            f"find the word {word} and write its file name to {b}",
        ),
        (f"grep -l {word} *.txt > {b}",),
        (text(b, a),),
        ((f"echo {deal.other} > {b}",), (f"grep -h {word} *.txt > {b}",), (f"cp {a} {b}",)),
    )


def grep_lines(deal: Deal) -> Op:
    word = deal.word()
    a = deal.file(deal.with_word(word, deal.lines(deal.rng.randint(3, 4)), deal.rng.randint(1, 2)))
    c = deal.file(deal.with_word(word, deal.lines(2)))
    b = deal.name()
    found = [line for line in deal.files[a].split("\n") if word in line]
    return Op(
        (f"write the lines of {a} with the word {word} to {b}", f"copy the lines of {a} with the word {word} to {b}"),
        (f"grep {word} {a} > {b}",),
        (text(b, "\n".join(found)),),
        ((f"grep -v {word} {a} > {b}",), (f"grep {word} {c} > {b}",), (f"grep -h {word} *.txt > {b}",)),
    )


def write_text(deal: Deal) -> Op:
    words = [deal.word() for _ in range(deal.rng.randint(1, 3))]
    said, b = " ".join(words), deal.name()
    return Op(
        (f"write {said} to {b}", f"make the file {b} with the text {said}"),
        (f"echo {said} > {b}",),
        (text(b, said),),
        ((f"echo {said} > {deal.other}",), (f"echo {deal.word()} > {b}",), (f"echo {said} {words[0]} > {b}",)),
    )


def append_line(deal: Deal) -> Op:
    word, a = deal.word(), deal.file()
    return Op(
        (f"add the line {word} to {a}", f"add {word} to {a} as the last line"),
        (f"echo {word} >> {a}",),
        (text(a, deal.files[a] + word),),
        ((f"echo {word} > {a}",), (f"echo {word} >> {deal.other}",), (f"sed -i 's/$/ {word}/' {a}",)),
    )


def replace_word(deal: Deal) -> Op:
    old, new = deal.word(), deal.word()
    a = deal.file(deal.with_word(old, deal.lines(), deal.rng.randint(1, 2)))
    return Op(
        (f"replace {old} with {new} in {a}", f"change the word {old} to {new} in {a}"),
        (f"sed -i 's/{old}/{new}/' {a}",),
        (text(a, deal.files[a].replace(old, new)),),
        (
            (f"sed 's/{old}/{new}/' {a}",),
            (f"sed -i 's/.*{old}.*/{new}/' {a}",),
            (f"sed -i 's/{old}/{new}/' {deal.other}",),
        ),
    )
