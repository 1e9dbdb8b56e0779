"""Checks the statements of package adopted for tables that another application owns.

A file has many statements, each with its parameters. What stands around all of them
in a batch is in the other golden files.
"""

import re

from sqlglot import exp

from batch import statements
from names import AROUND, Batch
from rules import hints

OWN = [["id"], ["queue", "item"]]  # the keys of qsidecar_leases


def sections(text):
    """The statements of a file."""
    return [s for s in re.split(r"(?m)^(?=-- parameters: )", text) if s.strip()]


def sought(tree, keys):
    """Whether one of the keys is wholly compared with values in the statement's WHERE."""
    found, where = set(), tree.args.get("where")
    for node in where.find_all(exp.EQ, exp.In) if where else []:
        if isinstance(node.this, exp.Column):
            found.add(node.this.name.lower())
    return any(all(c in found for c in key) for key in keys)


def lock_rules(tree, say):
    for table in tree.find_all(exp.Table):
        how, _ = hints(table)
        if "READPAST" in how and "READCOMMITTEDLOCK" not in how:
            say("READPAST without READCOMMITTEDLOCK: refused where the database has READ_COMMITTED_SNAPSHOT")
        if "UPDLOCK" in how and "ROWLOCK" not in how:
            say("UPDLOCK without ROWLOCK: it may lock a page of others' rows")
        if table.name.lower() == "qsidecar_leases" and "UPDLOCK" in how and "FORCESEEK" not in how and "TOP (" not in tree.sql("tsql"):
            say("leases are locked that a key finds: a scan meets all that others have locked")
        if "READPAST" in how and "UPDLOCK" not in how and not isinstance(table.parent_select, exp.Select):
            say("READPAST where nothing is locked")


def claim_rules(s, say):
    """A claim locks no more rows than it takes; what it reads beside waits for none."""
    if "@adopt_line" not in s.text:
        return
    if not s.text.endswith("OPTION (LOOP JOIN, OPTIMIZE FOR (@a1_1 = 1))"):
        say("a claim with a TOP that the server takes for a hundred rows, or joins that may lock all rows first")
    for table in s.tree.find_all(exp.Table):
        how, index = hints(table)
        name = table.name.lower()
        if name == "qsidecar_leases" and "READUNCOMMITTED" not in how:
            say("a claim waits for what others have locked in qsidecar_leases")
        if name == "msgqueue" and (index != "IX_MsgQueue" or "FORCESEEK" not in how):
            say("a claim does not name the index that serves it")


def reap_rules(s, say):
    """Leases that are over are found in their order, and no others are locked."""
    if "UPDLOCK" in s.text and "l.due_at <=" in s.text and "INDEX ([qsidecar_leases_due]), FORCESEEK" not in s.text:
        say("leases that are over are not sought by their index: all may be locked and sorted")


def change_rules(schema, tree, say):
    """An UPDATE or DELETE finds its rows by their key."""
    table = tree.this.name.lower()
    if table == "j":  # the alias that has the hints
        table = next(t.name.lower() for t in tree.args["from_" if "from_" in tree.args else "from"].find_all(exp.Table) if t.alias == "j")
        if "FORCESEEK" not in tree.sql("tsql") or "INDEX(" not in tree.sql("tsql").replace("INDEX (", "INDEX("):
            say(f"{table} is changed by a scan or by any index, which meets rows that others have locked")
    keys = OWN if table == "qsidecar_leases" else [schema.keys.get(table, [])]
    if table.startswith("qsidecar_") and table != "qsidecar_leases":
        say(f"a change of {table} is the sidecar's own statements'")
    if not sought(tree, keys):
        say(f"{table} is changed without its key")


def type_rules(schema, tree, say):
    """A constant is of its column's type, or the server converts the column."""
    columns = {name: c for table in tree.find_all(exp.Table) for name, c in schema.tables.get(table.name.lower(), {}).items()}
    for eq in tree.find_all(exp.EQ):
        a, b = eq.left, eq.right
        if isinstance(a, exp.Column) and isinstance(b, exp.National) and not isinstance(eq.parent, exp.Update):
            c = columns.get(a.name.lower())
            if c is not None and c.kind.startswith(("char", "varchar")):
                say(f"{a.name} is {c.kind}, and is compared with an N'…'")


def time_rules(tree, say):
    """A text becomes a datetime by way of a datetime2, in any language and on Babelfish."""
    for c in [*tree.find_all(exp.Convert), *tree.find_all(exp.TryCast), *tree.find_all(exp.Cast)]:
        kind, value = (c.this, c.expression) if isinstance(c, exp.Convert) else (c.args["to"], c.this)
        if kind.sql("tsql").lower() in ("datetime", "smalldatetime") and isinstance(value, (exp.Parameter, exp.National)):
            say("a text becomes a datetime as the login's language has it")


def faults(schema, text):
    """All that is wrong with a file."""
    wrong = []
    for section in sections(text):
        head = re.match(r"-- parameters: (.*)\n-- result sets: (\d+)\n", section)
        parameters = dict(re.findall(r"@(\w+) ([a-z0-9]+(?:\([a-z0-9]+\))?)", head.group(1)))
        batch = Batch(schema, section, AROUND | parameters, families=True)
        wrong += batch.wrong
        if batch.sets != int(head.group(2)):
            wrong.append(f"it gives {batch.sets} result sets, and {head.group(2)} are expected\n    {section[:300]}")
        for s in statements(section):
            say = lambda what, s=s: wrong.append(f"{what}\n    {s.text[:300]}")  # noqa: E731
            lock_rules(s.tree, say)
            type_rules(schema, s.tree, say)
            time_rules(s.tree, say)
            claim_rules(s, say)
            reap_rules(s, say)
            if isinstance(s.tree, (exp.Update, exp.Delete)):
                change_rules(schema, s.tree, say)
            if isinstance(s.tree, (exp.Update, exp.Delete, exp.Insert)) and "SET @wrote = @wrote + 1;" not in section:
                say("writes, and does not say so: its commit would have no number")
    return wrong


# the original text, its replacement, and a part of the complaint
BROKEN = [
    ("UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK", "UPDLOCK, READPAST, ROWLOCK", "READCOMMITTEDLOCK"),
    ("UPDLOCK, ROWLOCK", "UPDLOCK", "without ROWLOCK"),
    ("\nOPTION (LOOP JOIN, OPTIMIZE FOR (@a1_1 = 1))", "", "hundred rows"),
    ("INDEX ([IX_MsgQueue]), FORCESEEK, UPDLOCK", "UPDLOCK", "does not name the index"),
    ("INDEX ([qsidecar_leases_due]), FORCESEEK, ", "", "not sought by their index"),
    ("l WITH (READUNCOMMITTED)", "l", "waits for what others have locked"),
    ("l WITH (FORCESEEK, UPDLOCK", "l WITH (UPDLOCK", "a scan meets"),
    ("[State] = 'N'", "[Stat] = 'N'", "there is no [Stat]"),
    ("[State] = 'N'", "[State] = N'N'", "compared with an N'…'"),
    ("WHERE id = @a1_1", "WHERE fence = @a1_1", "without its key"),
    ("WHERE [MsgId] = TRY_CONVERT(int, @a1_1) AND CASE", "WHERE CASE", "without its key"),
    ("AS j WITH (INDEX ([PK_MsgQueue]), FORCESEEK, ROWLOCK)", "AS j WITH (ROWLOCK)", "changed by a scan"),
    ("AS j WITH (INDEX ([PK_MsgQueue]), FORCESEEK, ROWLOCK)", "AS j WITH (FORCESEEK, ROWLOCK)", "by any index"),
    ("OUTPUT CONVERT(nvarchar(4000), inserted.[MsgId]) INTO @a1_key", "OUTPUT inserted.[MsgId]", "OUTPUT without INTO"),
    ("inserted.[MsgId]", "inserted.[Id]", "no column id"),
    ("SET @wrote = @wrote + 1;\n", "", "no number"),
    ("SELECT @@ROWCOUNT AS matched;\n", "", "result sets"),
    ("CONVERT(nvarchar(max), 1, 126) AS qsidecar_1", "CONVERT(nvarchar(max), 1, 126)", "without a name"),
    ("TRY_CONVERT(datetime, TRY_CONVERT(datetime2(7), @a1_2))", "TRY_CONVERT(datetime, @a1_2)", "language"),
    ("[ReaderCode] = CONVERT(varchar(8000), RTRIM(@a1_1) COLLATE SQL_Latin1_General_CP1_CI_AS)", "[ReaderCode] = @a1_1", "compares readercode char(8)"),
]


def unnoticed(schema, text):
    """What of all that the check does not complain about."""
    for old, new, word in BROKEN:
        found = "".join(s for s in sections(text) if old in s)
        if not found:
            yield f"{old!r} is no longer there to be broken"
            continue
        wrong = faults(schema, found.replace(old, new))
        if not any(word in w for w in wrong):
            yield f"{new!r} in place of {old!r}: {wrong}"
