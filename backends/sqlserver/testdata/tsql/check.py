#!/usr/bin/env python3
"""Checks T-SQL that no server has run: usage: check.py GOLDEN_FOLDER [TABLES FILE]

With TABLES, the definitions of tables that another application owns, FILE has statements
for those (see adopted.py), and only FILE is checked.

Each file is read by two grammars, sqlfluff's and sqlglot's. Each name in it is looked
up, types that meet are compared, and the rules of this package are applied. The check
fails if it does not find the faults of statements that are broken on purpose.

sqlfluff needs minutes. The folder parsed keeps a hash of each text that sqlfluff found no
fault in, so only new texts are parsed. With QSIDECAR_TSQL_UPDATE set the check writes the
hashes; without, a text of this package that has no hash is a fault. With QSIDECAR_SOAK
set all texts are parsed.
"""

import hashlib
import os
import pathlib
import re
import sys

import adopted
import broken
from batch import Schema, statements
from names import Batch
from rules import batch_rules

HERE = pathlib.Path(__file__).parent
SQLFLUFF = re.search(r"sqlfluff==(\S+)", (HERE / "requirements.txt").read_text()).group(1)


class Parsed:
    """The texts that sqlfluff found no fault in: one file of hashes for each check."""

    def __init__(self, name):
        self.file = HERE / "parsed" / f"{name}.txt"
        self.known = set(self.file.read_text().split()) if self.file.exists() and not os.environ.get("QSIDECAR_SOAK") else set()
        self.used, self.new, self.linter = set(), 0, None

    def grammar(self, text):
        """What sqlfluff cannot parse."""
        key = hashlib.sha256((SQLFLUFF + "\n" + text).encode()).hexdigest()
        if key not in self.known:
            wrong = self.parse(text)
            if wrong:
                return wrong
            self.new += 1
        self.used.add(key)
        return []

    def parse(self, text):
        if self.linter is None:  # the import alone takes a second
            from sqlfluff.core import FluffConfig, Linter

            self.linter = Linter(config=FluffConfig(overrides={"dialect": "tsql", "templater": "raw"}))
        parsed = self.linter.parse_string(text)
        wrong = [str(v) for v in parsed.violations]
        root = parsed.root_variant()
        return wrong + ([f"sqlfluff cannot parse: {u.raw[:200]}" for u in root.tree.recursive_crawl("unparsable")] if root else ["sqlfluff cannot parse it"])

    def close(self):
        """Ends the check. Returns what is wrong with the file that lists the parsed statements, or writes the file."""
        if os.environ.get("QSIDECAR_TSQL_UPDATE"):
            self.file.parent.mkdir(exist_ok=True)
            self.file.write_text("".join(k + "\n" for k in sorted(self.used)))
        elif self.new and not os.environ.get("QSIDECAR_SOAK"):
            return [f"{self.new} texts have no hash in {self.file.name}: run go test ./backends/sqlserver -update"]
        return []


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


def check_adopted(goldens, tables, file):
    schema = Schema((goldens / "schema.sql").read_text() + tables)
    text = file.read_text()
    sections = adopted.sections(text)
    # sqlfluff takes its time for long lists of columns, and they are alike.
    parts = {re.sub(r"(CONVERT\(nvarchar\(max\), l\.\w+, 126\) AS qsidecar_\d+, )+", r"\1", s) for s in sections}
    parsed = Parsed(file.stem)
    wrong = [w for part in [tables, *sorted(parts)] for w in parsed.grammar(part)] + adopted.faults(schema, text) + parsed.close()
    if file.name == "messages.sql":
        wrong += [f"this check does not notice {what}" for what in adopted.unnoticed(schema, text)]
    for what in wrong:
        print(what)
    if wrong:
        sys.exit(f"{len(wrong)} faults")
    print(f"{len(sections)} statements, read by sqlfluff {SQLFLUFF} and sqlglot: nothing is wrong with them")


def main():
    goldens = pathlib.Path(sys.argv[1])
    if len(sys.argv) > 2:
        check_adopted(goldens, pathlib.Path(sys.argv[2]).read_text(), pathlib.Path(sys.argv[3]))
        return
    parsed = Parsed("own")
    files = sorted(goldens.glob("*.sql"))
    schema = Schema((goldens / "schema.sql").read_text())
    failed = 0
    for file in files:
        text = file.read_text()
        for what in parsed.grammar(text) + check(file.stem, text, schema):
            failed += 1
            print(f"{file.name}: {what}")
    for what in parsed.close():
        failed += 1
        print(what)
    for what in broken.unnoticed(goldens, schema, check):
        failed += 1
        print(f"this check does not notice {what}")
    if len(files) < 50:
        sys.exit(f"only {len(files)} statements were found")
    if failed:
        sys.exit(f"{failed} faults")
    print(f"{len(files)} files of T-SQL, read by sqlfluff {SQLFLUFF} and sqlglot: nothing is wrong with them")


if __name__ == "__main__":
    main()
