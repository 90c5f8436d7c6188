"""Tier 2: an easy chore of the office or of a developer; one table, log, or settings file at a time.

Invariant: instances are built so that the usual slip (wrong column, lost header, too wide a match) changes the result.
"""

from __future__ import annotations

import json
from random import Random

from whippletree.tasks.paddock.checks import absent, csv_rows, json_value, text
from whippletree.tasks.paddock.kind import SPLITS, Instance, Kind
from whippletree.tasks.paddock.pools import CITIES, ITEMS, PEOPLE, WORDS


def csv_text(rows: list[list[str]]) -> str:
    """CSV of cells that need no quotes."""
    return "".join(",".join(row) + "\n" for row in rows)


def lines_text(lines: list[str]) -> str:
    return "".join(line + "\n" for line in lines)


def csv_sum(rng: Random) -> Instance:
    """Every price is larger than every quantity, and last year's quantities are larger than this year's."""
    count = rng.randint(6, 12)
    columns = rng.sample(["item", "qty", "price"], 3)
    qty, price = columns.index("qty") + 1, columns.index("price") + 1

    def table(low: int, high: int) -> list[dict[str, int | str]]:
        items = rng.sample(ITEMS, count)
        return [{"item": i, "qty": rng.randint(low, high), "price": rng.randint(100, 999)} for i in items]

    now, before = table(2, 20), table(21, 40)
    files = {
        name: csv_text([columns, *([str(row[c]) for c in columns] for row in rows)])
        for name, rows in (("orders.csv", now), ("orders-old.csv", before))
    }

    def add(column: int, file: str) -> tuple[str, ...]:
        return (f"awk -F, 'NR > 1 {{n += ${column}}} END {{print n}}' {file} > total.txt",)

    instruction = rng.choice(
        [
            "Add up the qty column of orders.csv and write the sum to total.txt.",
            "What is the total of column qty in orders.csv? Put the number, and nothing else, in total.txt.",
        ]
    )
    goals = {"total": [text("total.txt", str(sum(int(row["qty"]) for row in now)))]}
    misses = (add(price, "orders.csv"), add(qty, "orders-old.csv"), ("wc -l < orders.csv > total.txt",))
    return Instance(instruction, files, add(qty, "orders.csv"), goals, misses)


def csv_filter(rng: Random) -> Instance:
    """Somebody else was born in the city that is asked for."""
    city, *others = rng.sample(CITIES, len(CITIES))
    people = rng.sample(PEOPLE, rng.randint(6, 10))
    rows = [[name, city if i < 2 else rng.choice(others), rng.choice(CITIES)] for i, name in enumerate(people)]
    rows[-1][2] = city
    rng.shuffle(rows)
    header = ["name", "city", "birthplace"]
    found = [header, *(row for row in rows if row[1] == city)]
    out = f"{city.lower()}.csv"
    instruction = rng.choice(
        [
            f"Write the header of people.csv and all rows whose city is {city} to {out}, in the same order.",
            f"Make {out} from people.csv: keep the header line and only the people who live in the city {city}.",
        ]
    )
    files = {"people.csv": csv_text([header, *rows]), "places.txt": lines_text(sorted(CITIES))}
    gold = (f"awk -F, 'NR == 1 || $2 == \"{city}\"' people.csv > {out}",)
    misses = (
        (f"head -n 1 people.csv > {out}", f"grep {city} people.csv >> {out}"),
        (f"awk -F, '$2 == \"{city}\"' people.csv > {out}",),
        (f"awk -F, 'NR == 1 || $3 == \"{city}\"' people.csv > {out}",),
    )
    return Instance(instruction, files, gold, {"rows": [csv_rows(out, found)]}, misses)


def csv_sort(rng: Random) -> Instance:
    """Quantities of one, two and three digits: sorting them as text is wrong."""
    amounts = [rng.randint(2, 9), *rng.sample(range(10, 100), rng.randint(3, 6)), rng.randint(100, 199)]
    items = rng.sample(ITEMS, len(amounts))
    rng.shuffle(amounts)
    rows = [[item, str(n)] for item, n in zip(items, amounts, strict=True)]
    header = ["item", "qty"]
    ordered = [header, *sorted(rows, key=lambda row: -int(row[1]))]
    instruction = rng.choice(
        [
            "Sort the rows of stock.csv by qty, largest first, into sorted.csv. The header line stays first.",
            "Write sorted.csv: the header of stock.csv, then its rows from the largest qty to the smallest.",
        ]
    )

    def commands(key: str) -> tuple[str, ...]:
        return ("head -n 1 stock.csv > sorted.csv", f"tail -n +2 stock.csv | sort -t, -k2,{key} >> sorted.csv")

    files = {"stock.csv": csv_text([header, *rows]), "orders.csv": csv_text([header, *rows[:3]])}
    misses = (commands("2r"), commands("2n"), commands("2nr")[1:])
    return Instance(instruction, files, commands("2nr"), {"order": [csv_rows("sorted.csv", ordered)]}, misses)


def json_edit(rng: Random) -> Instance:
    """Two sections have a port."""
    sections = rng.sample(["server", "client", "worker", "cache"], rng.randint(2, 3))
    ports = rng.sample(range(3000, 9000), len(sections) + 1)
    config: dict[str, dict[str, object]] = {
        name: {"host": rng.choice(WORDS), "port": port, "debug": rng.random() < 0.5, "proxy": None}
        for name, port in zip(sections, ports[1:], strict=True)
    }
    chosen, port = rng.choice(sections), ports[0]
    wanted = {name: {**body, "port": port} if name == chosen else body for name, body in config.items()}
    instruction = rng.choice(
        [
            f"In config.json set the port of {chosen} to {port}. Leave everything else as it is.",
            f"Change {chosen}.port in config.json to the number {port} and change nothing else.",
        ]
    )
    files = {"config.json": json.dumps(config, indent=2) + "\n", "notes.md": f"The {chosen} must move.\n"}

    def edit(value: str, section: str = chosen) -> tuple[str, ...]:
        return (f'sed -i \'/"{section}"/,/}}/s/"port": [0-9]*/"port": {value}/\' config.json',)

    misses = (
        (f'sed -i \'s/"port": [0-9]*/"port": {port}/\' config.json',),
        edit(f'"{port}"'),
        edit(str(port), next(name for name in sections if name != chosen)),
        edit(f"{port},"),
    )
    return Instance(instruction, files, edit(str(port)), {"config": [json_value("config.json", wanted)]}, misses)


def ini_edit(rng: Random) -> Instance:
    """The same keys are in every section."""
    sections = rng.sample(["web", "mail", "queue", "backup"], 3)
    values = {s: {"retries": rng.randint(1, 4), "timeout": rng.randint(10, 60)} for s in sections}
    chosen, new = rng.choice(sections), rng.randint(5, 9)

    def ini(retries: int | None) -> str:
        lines: list[str] = []
        for section in sections:
            own = values[section] | ({"retries": retries} if section == chosen and retries else {})
            lines += [f"[{section}]", *(f"{key} = {value}" for key, value in own.items()), ""]
        return lines_text(lines)

    instruction = rng.choice(
        [
            f"In settings.ini set retries to {new} in the section [{chosen}]. Keep the layout and all other lines.",
            f"Change the retries of section [{chosen}] in settings.ini to {new}, in place; nothing else may change.",
        ]
    )
    files = {"settings.ini": ini(None), "settings.old": ini(None)}

    def edit(section: str, key: str = "retries") -> tuple[str, ...]:
        return (f"sed -i '/^\\[{section}\\]/,/^$/s/^{key} = .*/{key} = {new}/' settings.ini",)

    misses = (
        (f"sed -i 's/^retries = .*/retries = {new}/' settings.ini",),
        edit(next(s for s in sections if s != chosen)),
        edit(chosen, "timeout"),
        (f"echo 'retries = {new}' >> settings.ini",),
    )
    return Instance(instruction, files, edit(chosen), {"setting": [text("settings.ini", ini(new))]}, misses)


def dedupe(rng: Random) -> Instance:
    """Repeats lie apart, and the first occurrences are not in sorted order."""
    names = rng.sample(PEOPLE, rng.randint(5, 8))
    if names == sorted(names):
        names.reverse()
    lines = [*names, *rng.sample(names[:-1], 3)]
    instruction = rng.choice(
        [
            "guests.txt has repeated lines. Write each line once to unique.txt, in the order of first appearance.",
            "Remove the duplicate lines of guests.txt, keep the first of each where it is, and save it as unique.txt.",
        ]
    )
    files = {"guests.txt": lines_text(lines), "rooms.txt": lines_text(names[:3])}
    misses = (
        ("sort -u guests.txt > unique.txt",),
        ("uniq guests.txt > unique.txt",),
        ("awk '!seen[$0]++' guests.txt > unique.txt", "cp unique.txt guests.txt"),
    )
    gold = ("awk '!seen[$0]++' guests.txt > unique.txt",)
    return Instance(instruction, files, gold, {"unique": [text("unique.txt", lines_text(names))]}, misses)


def log_levels(rng: Random) -> Instance:
    """Messages mention other levels."""
    levels = ["DEBUG", "ERROR", "INFO", "WARN"]
    drawn = [*levels, *rng.choices(levels, k=rng.randint(8, 16))]
    rng.shuffle(drawn)
    drawn.append("INFO")
    said = [f"{rng.choice(WORDS)} {rng.choice(WORDS)}" for _ in drawn[:-1]] + ["the last ERROR was sent"]
    log = [
        f"2024-05-01 10:{i:02d}:{rng.randint(0, 59):02d} {level} {what}"
        for i, (level, what) in enumerate(zip(drawn, said, strict=True))
    ]
    counts = [f"{level} {drawn.count(level)}" for level in levels]
    instruction = rng.choice(
        [
            "Count the entries of app.log by level (the third field). Write lines like `INFO 3` to counts.txt, "
            "sorted by the name of the level.",
            "How many entries of each level are in app.log? The level is the third field. Write one line `LEVEL N` "
            "per level to counts.txt, in alphabetical order.",
        ]
    )

    def count(file: str) -> tuple[str, ...]:
        return (f"awk '{{n[$3]++}} END {{for (k in n) print k, n[k]}}' {file} | sort > counts.txt",)

    grep = 'for l in DEBUG ERROR INFO WARN; do echo "$l $(grep -c "$l" app.log)"; done > counts.txt'
    files = {"app.log": lines_text(log), "app.log.1": lines_text(log[:-1])}
    misses = ((grep,), count("app.log.1"), (*count("app.log"), "sort -r -o counts.txt counts.txt"))
    return Instance(instruction, files, count("app.log"), {"counts": [text("counts.txt", lines_text(counts))]}, misses)


def rename_pattern(rng: Random) -> Instance:
    """Only one folder and only one pattern are meant."""
    numbers = [f"{n:04d}" for n in rng.sample(range(1, 10000), rng.randint(3, 6))]
    new = rng.choice(["trip", "party", "garden", "house"])
    photos = {f"photos/IMG_{n}.jpeg": f"picture {n} {rng.choice(WORDS)}\n" for n in numbers}
    bystanders = {"photos/index.txt": "IMG files\n", f"raw/IMG_{numbers[0]}.jpeg": "raw\n"}
    instruction = rng.choice(
        [
            f"In the folder photos rename every IMG_NNNN.jpeg to {new}-NNNN.jpg (the digits stay).",
            f"Rename the files photos/IMG_*.jpeg: IMG_ becomes {new}- and .jpeg becomes .jpg. Touch nothing else.",
        ]
    )
    checks = [absent(path) for path in photos]
    checks += [text(f"photos/{new}-{n}.jpg", photos[f"photos/IMG_{n}.jpeg"]) for n in numbers]

    def loop(folder: str, act: str, suffix: str) -> tuple[str, ...]:
        target = f'"{folder}/{new}-${{n%.jpeg}}{suffix}"'
        return (f'for f in {folder}/IMG_*.jpeg; do n=${{f#{folder}/IMG_}}; {act} "$f" {target}; done',)

    misses = (loop("photos", "cp", ".jpg"), loop("photos", "mv", ".jpeg"), loop("raw", "mv", ".jpg"))
    return Instance(instruction, {**photos, **bystanders}, loop("photos", "mv", ".jpg"), {"renamed": checks}, misses)


def collect_todos(rng: Random) -> Instance:
    """Code and notes speak of TODO without being one."""
    words = rng.sample(WORDS, len(WORDS))
    names = sorted(rng.sample(["api", "cli", "db", "index", "main", "parse", "web"], 3))
    files = {"notes.md": "# TODO: buy milk\n"}
    todos: list[str] = []
    for name in names:
        lines = [f"{words.pop()} = 1", f'title = "TODO {words.pop()}"']
        for _ in range(rng.randint(1, 2)):
            task = f"{words.pop()} {words.pop()}"
            lines += [f"    # TODO: {task}", f"{words.pop()} = 2"]
            todos.append(f"src/{name}.py: {task}")
        files[f"src/{name}.py"] = lines_text(lines)
    instruction = rng.choice(
        [
            "Collect the comments `# TODO: ...` of src/*.py in todo.txt, one line `src/FILE.py: TEXT` each, with the "
            "files in alphabetical order.",
            "List all `# TODO: ...` comments of the Python files in src in todo.txt. Write a line `src/FILE.py: TEXT` "
            "for each, sorted by file and then in the order of the file.",
        ]
    )

    def grep(options: str, pattern: str, where: str) -> tuple[str, ...]:
        return (f"grep {options} '{pattern}' {where} | sed 's/:.*{pattern}/: /' > todo.txt",)

    misses = (
        grep("-H", "TODO:* ", "src/*.py"),
        grep("-h", "# TODO: ", "src/*.py"),
        grep("-H", "# TODO: ", "notes.md src/*.py"),
    )
    gold = grep("-H", "# TODO: ", "src/*.py")
    return Instance(instruction, files, gold, {"todos": [text("todo.txt", lines_text(todos))]}, misses)


def top_words(rng: Random) -> Instance:
    """Three words tie for the second place, and the first place needs its capitals counted."""
    chosen = rng.sample(WORDS, 7)
    counts: dict[str, int] = dict(zip(chosen, (6, 4, 4, 4, 3, 2, 1), strict=True))
    told = [word for word, n in counts.items() for _ in range(n)]
    rng.shuffle(told)
    told.insert(0, chosen[0].capitalize())
    told = [word + rng.choice(["", "", ",", "."]) for word in told]
    story = "\n".join(" ".join(told[i : i + 6]) for i in range(0, len(told), 6)) + ".\n"
    counts[chosen[0]] += 1
    best = sorted(counts, key=lambda word: (-counts[word], word))[:3]
    instruction = rng.choice(
        [
            "Write the three most frequent words of story.txt to top.txt, most frequent first, as lines `word count`. "
            "Case and punctuation do not matter; write lowercase; on a tie the alphabetically smaller word goes first.",
            "Count the words of story.txt without regard to case and punctuation. Write the top three to top.txt as "
            "lines `word count` in lowercase, largest count first, equal counts in alphabetical order.",
        ]
    )

    def rank(fold: str, keys: str, first: int) -> tuple[str, ...]:
        words = f"{fold} < story.txt | tr -cs 'A-Za-z' '\\n' | grep . | sort | uniq -c"
        return (f"{words} | sort {keys} | head -n {first} | awk '{{print $2, $1}}' > top.txt",)

    lower = "tr 'A-Z' 'a-z'"
    misses = (rank("cat", "-k1,1nr -k2,2", 3), rank(lower, "-k1,1nr -k2,2r", 3), rank(lower, "-k1,1nr -k2,2", 4))
    gold = rank(lower, "-k1,1nr -k2,2", 3)
    wanted = lines_text([f"{word} {counts[word]}" for word in best])
    return Instance(instruction, {"story.txt": story}, gold, {"top": [text("top.txt", wanted)]}, misses)


TIER2: tuple[Kind, ...] = (
    *(
        Kind(make.__name__, 2, make, SPLITS)
        for make in (csv_sum, csv_filter, json_edit, ini_edit, rename_pattern, collect_todos, top_words)
    ),
    Kind("csv_sort", 2, csv_sort, ("validation",)),
    Kind("dedupe", 2, dedupe, ("test",)),
    Kind("log_levels", 2, log_levels, ("test",)),
)
