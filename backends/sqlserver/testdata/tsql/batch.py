"""A batch of T-SQL as a list of statements, and what its tables look like.

sqlglot reads single statements well and control flow badly, so control flow is removed
here; sqlfluff checks it. This file relies on how this package writes:
each statement ends with a semicolon at the end of a line, and the condition of an IF
or WHILE is on the line of the keyword.
"""

import logging
import re

import sqlglot
from sqlglot import exp

logging.getLogger("sqlglot").setLevel(logging.ERROR)


def without_option(text):
    """A statement without an OPTION that sqlglot does not support: any behind a DELETE, and
    OPTIMIZE FOR."""
    if text.startswith("DELETE"):
        text = re.sub(r"\n *OPTION \([A-Z ,]+\)$", "", text)
    return re.sub(r"\n *OPTION \((LOOP JOIN, )?OPTIMIZE FOR \(@\w+ = \d+\)(, KEEPFIXED PLAN)?\)$", "", text)


class Statement:
    """One statement: its text, its tree, and how often it runs."""

    def __init__(self, text, depth, condition=False):
        self.text, self.depth, self.condition = text, depth, condition
        self.tree = sqlglot.parse_one(without_option(text), dialect="tsql")


def statements(batch):
    """The statements of a batch. depth 0: it runs once, whatever happens."""
    found, lines, depth, once = [], [], 0, False
    for line in batch.splitlines():
        word = line.strip()
        if not lines:  # between statements
            if not word or word.startswith("--") or word in ("BREAK;", "CONTINUE;", "GO"):
                if word in ("BREAK;", "CONTINUE;"):
                    once = False
                continue
            if m := re.match(r"(IF|WHILE) (.+)$", word):
                condition = m.group(2)
                found.append(Statement(f"SELECT CASE WHEN {condition} THEN 1 END", depth + 1, True))
                once = True  # for the next statement or block
                continue
            if word == "ELSE":
                once = True
                continue
            if word == "BEGIN":
                depth, once = depth + 1, False
                continue
            if word in ("END;", "END"):
                depth -= 1
                continue
        lines.append(line)
        if word.endswith(";"):
            text = "\n".join(lines).strip()[:-1]
            if not re.match(r"(BEGIN|COMMIT) TRANSACTION$", text):
                found.append(Statement(text, depth + once))
            lines, once = [], False
    if lines or depth:
        raise ValueError(f"it does not end where it should: {lines}, {depth} blocks are open")
    return found


def kind_of(node):
    """A type as the server gets it, in lower case."""
    return node.sql("tsql").lower().replace("integer", "int").replace(" ", "")


class Column:
    def __init__(self, node):
        self.name, self.kind = node.name.lower(), kind_of(node.args["kind"])
        self.collation, self.required, self.default = None, False, False
        for c in node.args.get("constraints") or []:
            match c.kind:
                case exp.CollateColumnConstraint():
                    self.collation = c.kind.this.name
                case exp.NotNullColumnConstraint():
                    self.required = not c.kind.args.get("allow_null")
                case exp.PrimaryKeyColumnConstraint():
                    self.required = True
                case exp.DefaultColumnConstraint() | exp.GeneratedAsIdentityColumnConstraint():
                    self.default = True


def columns_of(schema):
    return {c.name: c for c in map(Column, (d for d in schema.expressions if isinstance(d, exp.ColumnDef)))}


class Index:
    def __init__(self, text):
        m = re.search(r"CREATE (?:UNIQUE )?INDEX (\w+) ON \S+\.(\w+) \(([^)]*)\)(?: INCLUDE \(([^)]*)\))?\s*(?:WHERE (.*?))?;", text, re.S)
        self.name, self.table = m.group(1), m.group(2)
        self.order = [c.strip() for c in m.group(3).split(",")]
        self.columns = {c.split()[0] for c in self.order} | {c.strip() for c in (m.group(4) or "").split(",")}
        self.where = [p.strip() for p in m.group(5).split(" AND ")] if m.group(5) else []


class Schema:
    """The tables and indexes that a schema file makes."""

    def __init__(self, text):
        self.tables, self.indexes, self.keys = {}, {}, {}
        for create in re.findall(r"CREATE TABLE .*?\n  \);", text, re.S):
            # sqlglot does not support a sequence in a DEFAULT, or a constraint after one.
            create = re.sub(r"DEFAULT \(.*?\)(?=[ ,]| --|\n)(?: CONSTRAINT \w+ PRIMARY KEY)?", "DEFAULT 0", create)
            tree = sqlglot.parse_one(create.rstrip(";"), dialect="tsql")
            name = tree.this.this.name.lower()
            self.tables[name] = columns_of(tree.this)
            if key := re.search(r"PRIMARY KEY \(([^)]*)\)", create):
                self.keys[name] = [c.strip(" []").lower() for c in key.group(1).split(",")]
        for index in re.findall(r"CREATE (?:UNIQUE )?INDEX \w+ ON .*?;", text, re.S):
            i = Index(index)
            self.indexes[i.name] = i
