#!/usr/bin/env python3
"""Checks T-SQL that no server has run: usage: check.py GOLDEN_FOLDER CACHE_FOLDER [TABLES FILE]

With TABLES, the definitions of tables that somebody else owns, FILE has statements for
those (see adopted.py), and it alone is checked.

Each file is read by two grammars, sqlfluff's and sqlglot's. Each name in it is looked
up, types that meet are compared, and the rules of this package are applied. What is
wrong with broken statements must be found, or the check itself fails. sqlfluff is slow:
what it had no fault to find with is remembered in the cache folder, by its contents.
"""

import hashlib
import pathlib
import re
import sys

import sqlfluff
from sqlfluff.core import FluffConfig, Linter

import adopted
import broken
from batch import Schema, statements
from names import Batch
from rules import batch_rules

LINTER = Linter(config=FluffConfig(overrides={"dialect": "tsql", "templater": "raw"}))


def grammar(text, cache):
    """What sqlfluff cannot parse."""
    key = hashlib.sha256((sqlfluff.__version__ + "\n" + text).encode()).hexdigest()
    if (cache / key).exists():
        return []
    parsed = LINTER.parse_string(text)
    wrong = [str(v) for v in parsed.violations]
    root = parsed.root_variant()
    wrong += [f"sqlfluff cannot parse: {u.raw[:200]}" for u in root.tree.recursive_crawl("unparsable")] if root else ["sqlfluff cannot parse it"]
    if not wrong:
        (cache / key).touch()
    return wrong


def check(name, text, schema):
    """What is wrong with one batch that has parameters, which its first lines name."""
    head = re.match(r"-- parameters: (.*)\n-- result sets: (\d+)\n", text)
    if head is None:
        return []
    parameters = dict(re.findall(r"@(\w+) ([a-z0-9]+(?:\([a-z0-9]+\))?)", head.group(1)))
    batch = Batch(schema, text, parameters)
    wrong = batch.wrong + batch_rules(name, schema, statements(text), parameters)
    if batch.sets != int(head.group(2)):
        wrong.append(f"it gives {batch.sets} result sets, and {head.group(2)} are expected")
    return wrong


def check_adopted(goldens, tables, file, cache):
    schema = Schema((goldens / "schema.sql").read_text() + tables)
    text = file.read_text()
    sections = adopted.sections(text)
    # sqlfluff takes its time for long lists of columns, and they are alike.
    parts = {re.sub(r"(CONVERT\(nvarchar\(max\), l\.\w+, 126\) AS qsidecar_\d+, )+", r"\1", s) for s in sections}
    wrong = [w for part in [tables, *sorted(parts)] for w in grammar(part, cache)] + adopted.faults(schema, text)
    if file.name == "messages.sql":
        wrong += [f"this check does not notice {what}" for what in adopted.unnoticed(schema, text)]
    for what in wrong:
        print(what)
    if wrong:
        sys.exit(f"{len(wrong)} faults")
    print(f"{len(sections)} statements, read by sqlfluff {sqlfluff.__version__} and sqlglot: nothing is wrong with them")


def main():
    goldens, cache = map(pathlib.Path, sys.argv[1:3])
    cache.mkdir(parents=True, exist_ok=True)
    if len(sys.argv) > 3:
        check_adopted(goldens, pathlib.Path(sys.argv[3]).read_text(), pathlib.Path(sys.argv[4]), cache)
        return
    files = sorted(goldens.glob("*.sql"))
    schema = Schema((goldens / "schema.sql").read_text())
    failed = 0
    for file in files:
        text = file.read_text()
        for what in grammar(text, cache) + check(file.stem, text, schema):
            failed += 1
            print(f"{file.name}: {what}")
    for what in broken.unnoticed(goldens, schema, check):
        failed += 1
        print(f"this check does not notice {what}")
    if len(files) < 50:
        sys.exit(f"only {len(files)} statements were found")
    if failed:
        sys.exit(f"{failed} faults")
    print(f"{len(files)} files of T-SQL, read by sqlfluff {sqlfluff.__version__} and sqlglot: nothing is wrong with them")


if __name__ == "__main__":
    main()
