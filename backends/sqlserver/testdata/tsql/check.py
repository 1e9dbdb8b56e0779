#!/usr/bin/env python3
"""Checks T-SQL that no server has run: usage: check.py GOLDEN_FOLDER ADOPTED_FOLDER CACHE_FOLDER

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


def main():
    goldens, others, cache = map(pathlib.Path, sys.argv[1:4])
    cache.mkdir(parents=True, exist_ok=True)
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
    others = sorted(others.glob("*.sql"))
    theirs = next(f for f in others if f.name == "tables.sql").read_text()
    schema = Schema((goldens / "schema.sql").read_text() + theirs)
    said = 0
    for file in others:
        text = file.read_text()
        wrong = grammar(text, cache)
        if file.name != "tables.sql":
            said += len(adopted.sections(text))
            wrong += adopted.faults(schema, text)
        if file.name == "messages.sql":
            wrong += [f"this check does not notice {what}" for what in adopted.unnoticed(schema, text)]
        for what in wrong:
            failed += 1
            print(f"{file.name}: {what}")
    if said < 50:
        sys.exit(f"only {said} statements for adopted tables were found")
    if len(files) < 50:
        sys.exit(f"only {len(files)} statements were found")
    if failed:
        sys.exit(f"{failed} faults")
    print(f"{said} statements for tables that somebody else owns, and {len(files)} files of T-SQL, read by sqlfluff {sqlfluff.__version__} and sqlglot: nothing is wrong with them")


if __name__ == "__main__":
    main()
