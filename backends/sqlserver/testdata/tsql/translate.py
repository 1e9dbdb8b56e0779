#!/usr/bin/env python3
"""Turns statements of T-SQL into steps that a PostgreSQL server carries out, for tests.

It reads one JSON text a line, a statement or a script of CREATE TABLEs, and answers with
a line: its steps. A step's "what" is "declare" (names, kind, query), "list" (query),
"assign" (names, query), "select" (query), "do" (query), "begin", "commit" or "patience"
(number, in milliseconds). Variables stand in queries as <<name>>. Control flow is read by
batch_reader_test.go. The answers are kept in translations.jsonl.

It is no more than the T-SQL of this package needs, and its locks are PostgreSQL's:
UPDLOCK is FOR UPDATE, with READPAST it is SKIP LOCKED, with NOWAIT it is NOWAIT. Ranges are not locked at all, as
in Babelfish.
"""

import json
import re
import sys

import sqlglot
from sqlglot import exp

from batch import kind_of, without_option

PARTS = {"declare": ["names", "kind", "query"], "list": ["query"], "assign": ["names", "query"], "select": ["query"], "do": ["query"],
         "begin": [], "commit": [], "patience": ["number"]}

KEYS = {"qsidecar_jobs": ["id"], "qsidecar_failures": ["job", "fence"], "qsidecar_keys": ["queue", "name"], "qsidecar_sidecars": ["sidecar"],
        "qsidecar_requeues": ["queue"], "qsidecar_commits": ["handle", "pipeline"], "qsidecar_queues": ["queue"], "qsidecar_history": ["hour", "queue"],
        "qsidecar_cancelled": ["owner", "token_sidecar", "token_number"], "qsidecar_gates": ["queue"], "qsidecar_capped": ["queue", "job"],
        "qsidecar_stripes": ["queue", "stripe"], "qsidecar_admissions": ["queue", "group_name", "note"]}

ZONE = 120  # the server's clock shows UTC and so many minutes


def kind(name):
    """A type of PostgreSQL."""
    name = name.lower().replace(" ", "")
    size = re.search(r"\((\d+)\)", name)
    if name.startswith("datetimeoffset"):
        return f"timestamptz({min(int(size.group(1)), 6) if size else 6})"
    if name.startswith("datetime2"):
        return f"timestamp({min(int(size.group(1)), 6) if size else 6})"
    if name.startswith(("varbinary", "binary", "image")):
        return "bytea"
    if name.startswith(("nvarchar", "varchar")):
        return f"varchar({size.group(1)})" if size else "text"
    if name.startswith(("nchar", "char")):
        return f"char({size.group(1)})"
    return {"tinyint": "smallint", "int": "int", "integer": "int", "bit": "smallint", "datetime": "timestamp(3)", "smalldatetime": "timestamp(0)",
            "uniqueidentifier": "uuid", "float": "double precision", "money": "numeric(19,4)", "xml": "text", "ntext": "text"}.get(name, name)


def listed(key):
    return ", ".join(f'"{(e.this if isinstance(e, exp.Ordered) else e).name}"' for e in key.expressions)


def columns(schema):
    """The columns of a table: their definitions for PostgreSQL."""
    found, keys = [], []
    for d in schema.expressions:
        if isinstance(d, exp.PrimaryKey):
            keys.append("PRIMARY KEY (" + listed(d) + ")")
        if isinstance(d, exp.Constraint):
            for k in d.expressions:
                key = isinstance(k, exp.PrimaryKey)
                keys.append(f'CONSTRAINT "{d.name}" ' + (f"PRIMARY KEY ({listed(k)})" if key else k.sql("postgres")))
        if not isinstance(d, exp.ColumnDef):
            continue
        text = f'"{d.name}" {kind(kind_of(d.args["kind"]))}'
        if "char" in text or text.endswith("text"):
            text += ' COLLATE "C"'
        for c in d.args.get("constraints") or []:
            name = f"CONSTRAINT {c.this.name} " if c.this else ""
            match c.kind:
                case exp.NotNullColumnConstraint() if not c.kind.args.get("allow_null"):
                    text += " NOT NULL"
                case exp.PrimaryKeyColumnConstraint():
                    text += f" {name}PRIMARY KEY"
                case exp.DefaultColumnConstraint():
                    text += f" DEFAULT {c.kind.this.sql('postgres')}"
                case exp.GeneratedAsIdentityColumnConstraint():
                    text += " GENERATED ALWAYS AS IDENTITY"
        found.append(text)
    return ", ".join(found + keys)


def snippet(text):
    return sqlglot.parse_one(text, dialect="postgres")


def variable(name):
    return exp.Var(this=f"<<{name}>>")


def rewrite(node):
    """The parts of an expression, from T-SQL to PostgreSQL."""
    match node:
        case exp.Parameter() if node.name.startswith("<<"):  # @@ROWCOUNT
            return variable(node.name[2:-2].upper())
        case exp.Parameter():
            return variable(node.name)
        case exp.Anonymous() if node.name.upper() == "SYSUTCDATETIME":
            return snippet("(clock_timestamp() AT TIME ZONE 'UTC')")
        case exp.NextValueFor():
            return snippet(f"""nextval('{node.this.sql("postgres")}')""")
        case exp.DateAdd() | exp.TsOrDsAdd():
            unit = node.args["unit"].name.lower()
            number = exp.Paren(this=node.expression.copy())
            if unit == "nanosecond":
                unit, number = "microsecond", exp.Paren(this=exp.Div(this=number, expression=exp.Literal.number(1000), typed=True))
            return exp.Paren(this=exp.Add(this=instant(node.this), expression=exp.Mul(this=number, expression=snippet(f"INTERVAL '1 {unit}'"))))
        case exp.DateDiff():  # of whole units since a whole one: floor
            each = {"minute": "/ 60", "millisecond": "* 1000", "microsecond": "* 1000000"}[node.args["unit"].name.lower()]
            return filled_in(f"CAST(floor(extract(epoch FROM (hole_a - hole_b)) {each}) AS bigint)", hole_a=instant(node.this), hole_b=instant(node.expression))
        case exp.Extract() if node.name.upper() == "TZOFFSET" or "SYSDATETIMEOFFSET" in node.sql("tsql").upper():
            return exp.Literal.number(ZONE)
        case exp.Extract() if node.name.lower() == "nanosecond":
            return filled_in("(CAST(extract(microsecond FROM hole_a) AS bigint) % 1000000 * 1000)", hole_a=instant(node.expression))
        case exp.Anonymous() if node.name.upper() in ("SWITCHOFFSET", "TODATETIMEOFFSET"):
            value, minutes = (e.copy() for e in node.expressions)
            if node.name.upper() == "SWITCHOFFSET":  # to +00:00, and then without it
                return filled_in("(hole_a AT TIME ZONE 'UTC')", hole_a=value)
            if isinstance(minutes, exp.Literal):
                minutes = exp.Literal.number(0)
            return filled_in("((hole_a - hole_b * INTERVAL '1 minute') AT TIME ZONE 'UTC')", hole_a=instant(value), hole_b=minutes)
        case exp.Collate() if node.expression.name.endswith("_BIN2"):
            return exp.Collate(this=node.this.copy(), expression=exp.to_identifier("C", quoted=True))
        case exp.Collate() if "Latin1" in node.expression.name and "UTF8" not in node.expression.name and isinstance(node.parent, exp.Convert):
            # a code page: what it lacks becomes question marks
            return filled_in("regexp_replace(hole_a, '[^' || chr(1) || '-' || chr(255) || ']', '?', 'g')", hole_a=node.this)
        case exp.Collate() if node.expression.name != "C":
            return node.this.copy()
        case exp.Add() if any(isinstance(n, exp.DPipe) or isinstance(n, exp.Literal) and n.is_string for n in (node.left, node.right)):
            return exp.DPipe(this=node.left.copy(), expression=node.right.copy(), safe=True)
        case exp.Convert() if kind(kind_of(node.this)) == "bytea":
            return exp.Anonymous(this="convert_to", expressions=[node.expression, exp.Literal.string("UTF8")])
        case exp.Convert():
            return exp.Cast(this=node.expression, to=exp.DataType.build(kind(kind_of(node.this)), dialect="postgres"))
        case exp.Substring():
            return exp.Anonymous(this="substring", expressions=[node.this.copy(), *(
                exp.cast(node.args[a].copy(), "int") for a in ("start", "length"))])
        case exp.Anonymous() if node.name.upper() == "DATALENGTH":
            return exp.Anonymous(this="octet_length", expressions=[e.copy() for e in node.expressions])
        case exp.Anonymous() if node.name.upper() == "COUNT_BIG":
            return exp.Count(this=exp.Star())
        case exp.National():
            return exp.Literal.string(node.name)
    return node


def instant(node):
    """A time, which can be a literal."""
    return exp.cast(node.copy(), "timestamp") if isinstance(node, exp.Literal) else node.copy()


def filled_in(text, **holes):
    """PostgreSQL's SQL, with names replaced by trees."""
    return snippet(text).transform(lambda n: holes[n.name].copy() if isinstance(n, exp.Column) and n.name in holes else n)


def rewritten(tree):
    """A tree whose parts are rewritten, the innermost first."""
    tree = exp.Paren(this=tree.copy())
    for node in reversed(list(tree.walk())):
        new = rewrite(node)
        if new is not node:
            node.replace(new)
    return tree.this


def source(table):
    """A table of a FROM: its name, its alias, or the document that it is."""
    if isinstance(table.this, exp.OpenJSON) and not table.this.expressions:  # a list of texts
        name = table.this.this.name
        tree = snippet(f'SELECT 1 FROM json_array_elements_text(CAST("the_list" AS json)) AS {table.alias}(value)')
        return tree.transform(lambda n: variable(name) if isinstance(n, exp.Column) and n.name == "the_list" else n).args["from_"].this
    if isinstance(table.this, exp.OpenJSON):
        cols = ", ".join(f'"{c.name}" {kind(kind_of(c.args["kind"]))}' for c in table.this.expressions)
        text = f'SELECT 1 FROM json_to_recordset(CAST("the_list" AS json)) AS {table.alias}({cols})'
        name = table.this.this.name
        tree = snippet(text).transform(lambda n: variable(name) if isinstance(n, exp.Column) and n.name == "the_list" else n)
        return tree.args["from_"].this
    if isinstance(table.this, exp.Parameter):
        new = exp.to_table("v_" + table.this.name)
    else:
        new = exp.Table(this=exp.to_identifier(table.name, quoted=True), db=table.args.get("db"))
    if table.alias:
        new.set("alias", exp.TableAlias(this=exp.to_identifier(table.alias)))
    if table.args.get("joins"):
        new.set("joins", table.args["joins"])
    return new


def hinted(table):
    return {h.name.upper() for hint in table.args.get("hints") or [] for h in hint.expressions if not isinstance(h, exp.Anonymous)}


def waits(how):
    """How a lock of sqlglot waits: SKIP LOCKED, NOWAIT, or as usual (empty)."""
    return False if "READPAST" in how else True if "NOWAIT" in how else None


def named(table):
    """A table as a lock names it."""
    return exp.Table(this=exp.to_identifier(table.alias)) if table.alias else exp.Table(this=exp.to_identifier(table.name, quoted=True))


def locks(select):
    """FOR UPDATE, of the tables that have a hint for it."""
    found = []
    for table in select.find_all(exp.Table):
        how = hinted(table)
        outer = isinstance(table.parent, exp.Join) and table.parent.side == "LEFT"
        if table.parent_select is select and "UPDLOCK" in how and not outer:
            found.append(exp.Lock(update=True, expressions=[named(table)], wait=waits(how)))
    return found


def flatten(select):
    """CROSS APPLY as CROSS JOIN LATERAL, and no OPTION."""
    select.set("options", None)
    for join in select.args.get("joins") or []:
        flat(join)
    return select


def flat(join):
    if isinstance(join.this, exp.Lateral):
        inner = join.this.this
        join.set("this", exp.Lateral(this=inner, alias=exp.TableAlias(this=exp.to_identifier(join.this.alias))))
        join.set("kind", "CROSS")


def query(tree):
    """A SELECT for PostgreSQL."""
    tree = tree.copy()
    for select in list(tree.find_all(exp.Select)):
        found = locks(select)
        flatten(select)
        if found:
            select.set("locks", found)
    if isinstance(tree, exp.Union):
        tree.set("options", None)
    tree = tree.transform(lambda n: source(n) if isinstance(n, exp.Table) else n)
    return rewritten(tree)


def text_of(tree):
    sql = tree.sql("postgres") if isinstance(tree, exp.Expression) else tree
    return sql.replace('"<<', "<<").replace('>>"', ">>")


def insert(tree):
    target = tree.this
    names = ""
    if isinstance(target, exp.Schema):
        names = " (" + ", ".join(f'"{c.name}"' for c in target.expressions) + ")"
        target = target.this
    if r := tree.args.get("returning"):
        out = ", ".join(text_of(rewritten(e.copy().transform(lambda n: exp.column(n.name, quoted=True) if isinstance(n, exp.Column) else n))) for e in r.expressions)
        tree = tree.copy()
        tree.set("returning", None)
        return f"WITH stored AS ({insert(tree)} RETURNING {out}) INSERT INTO v_{r.args['into'].name} SELECT * FROM stored"
    if tree.args.get("default"):
        return f"INSERT INTO {text_of(source(target))} DEFAULT VALUES"
    if isinstance(tree.expression, exp.Values):
        rows = ", ".join("(" + ", ".join(text_of(rewritten(e)) for e in v.expressions) + ")" for v in tree.expression.expressions)
        return f"INSERT INTO {text_of(source(target))}{names} VALUES {rows}"
    return f"INSERT INTO {text_of(source(target))}{names} {text_of(query(tree.expression))}"


def changed(tree, first, alias):
    """What an UPDATE or DELETE of an alias changes: its table, the columns that find a
    row of it again, and the FROM and WHERE with which to read the rows."""
    table = next(t for t in first.find_all(exp.Table) if (t.alias or t.name) == alias)
    base = table.name.lower() if isinstance(table.this, exp.Identifier) else None
    select = exp.Select()
    first = first.copy()
    joins = first.args.pop("joins", None) or []
    select.set("from_", exp.From(this=first))
    select.set("joins", joins)
    select.set("where", tree.args.get("where"))
    return table, KEYS.get(base, ["ctid"]), select


def bare(table):
    table = table.copy()
    table.set("joins", None)
    return text_of(source(table))


def output(tree, alias, statement):
    r = tree.args.get("returning")
    if r is None:
        return statement
    out = ", ".join(text_of(rewritten(e.copy().transform(lambda n: exp.column(n.name, alias, quoted=True) if isinstance(n, exp.Column) else n)))
                    for e in r.expressions)
    return f"WITH changed AS ({statement} RETURNING {out}) INSERT INTO v_{r.args['into'].name} SELECT * FROM changed"


def condition(tree):
    where = tree.args["where"].transform(lambda n: source(n) if isinstance(n, exp.Table) else n)
    return text_of(rewritten(where))


def update(tree):
    if tree.args.get("from_") is None:
        sets = ", ".join(f'"{e.this.name}" = {text_of(rewritten(e.expression))}' for e in tree.expressions)
        return f"UPDATE {text_of(source(tree.this))} SET {sets} {condition(tree)}"
    alias = tree.this.name
    table, keys, select = changed(tree, tree.args["from_"].this, alias)
    for k in keys:
        select.append("expressions", exp.alias_(exp.column(k, alias), "key_" + k))
    for n, e in enumerate(tree.expressions):
        if not isinstance(e.expression, exp.Null):
            select.append("expressions", exp.alias_(e.expression.copy(), f"new_{n}"))
    inner = query(select)
    if keys != ["ctid"]:
        inner.set("locks", [exp.Lock(update=True, expressions=[exp.to_table(alias)], wait=waits(hinted(table)))])
    sets = ", ".join(f'"{e.this.name}" = ' + ("NULL" if isinstance(e.expression, exp.Null) else f"q.new_{n}") for n, e in enumerate(tree.expressions))
    found = " AND ".join(f"{alias}.{k} = q.key_{k}" for k in keys)
    return output(tree, alias, f"UPDATE {bare(table)} SET {sets} FROM ({text_of(inner)}) AS q WHERE {found}")


def delete(tree):
    if not tree.args.get("tables"):
        return f"DELETE FROM {text_of(source(tree.this))} {condition(tree)}"
    alias = tree.args["tables"][0].name
    table, keys, select = changed(tree, tree.this, alias)
    for k in keys:
        select.append("expressions", exp.alias_(exp.column(k, alias), "key_" + k))
    inner = query(select)
    inner.set("locks", [exp.Lock(update=True, expressions=[exp.to_table(alias)])])
    found = " AND ".join(f"{alias}.{k} = q.key_{k}" for k in keys)
    return output(tree, alias, f"DELETE FROM {bare(table)} USING ({text_of(inner)}) AS q WHERE {found}")


def statement(text):
    if m := re.match(r"(BEGIN|COMMIT) TRANSACTION$", text):
        return [[m.group(1).lower()]]
    if m := re.match(r"SET LOCK_TIMEOUT (\d+)$", text):
        return [["patience", int(m.group(1))]]
    if text.startswith("SET ") and not text.startswith("SET @"):
        return []
    tree = sqlglot.parse_one(without_option(text), dialect="tsql")
    match tree:
        case exp.Declare():
            item = tree.expressions[0]
            name, k = item.this[0].name, item.args["kind"]
            if isinstance(k, exp.Schema):
                return [["list", f"CREATE TEMP TABLE IF NOT EXISTS v_{name} ({columns(k)}); DELETE FROM pg_temp.v_{name}"]]
            value = item.args.get("default")
            return [["declare", [name], kind(kind_of(k)), text_of(query(exp.select(value))) if value else ""]]
        case exp.Set():
            m = re.match(r"SET @(\w+) = (.*)$", text, re.S)
            return [["assign", [m.group(1)], text_of(query(sqlglot.parse_one("SELECT " + m.group(2), dialect="tsql")))]]
        case exp.Select() if any(isinstance(e, exp.EQ) for e in tree.expressions):
            names = [e.this.name for e in tree.expressions]
            tree.set("expressions", [e.expression for e in tree.expressions])
            return [["assign", names, text_of(query(tree))]]
        case exp.Select() | exp.Union():
            return [["select", text_of(query(tree))]]
        case exp.Insert():
            return [["do", insert(tree)]]
        case exp.Update():
            return [["do", update(tree)]]
        case exp.Delete():
            return [["do", delete(tree)]]
    raise ValueError(f"a {type(tree).__name__}: {text}")


def tables(text):
    """The CREATE TABLEs of a script that creates the tables."""
    steps = []
    for create in re.findall(r"CREATE TABLE .*?\n  \)", text, re.S):
        create = re.sub(r"DEFAULT \(SYSUTCDATETIME\(\)\)", "DEFAULT 'now'", create)
        create = re.sub(r"DEFAULT \((SYSDATETIME|GETDATE)\(\)\)", "DEFAULT 'here'", create)
        create = create.replace("DEFAULT (NEWID())", "DEFAULT 'uuid'")
        name = re.search(r"CREATE TABLE ((?:\[[^\]]+\]|\w+)(?:\.(?:\[[^\]]+\]|\w+))?) \(", create).group(1)
        line = name.rsplit(".", 1)[0].replace("[", '"').replace("]", '"') + ".qsidecar_sequence"
        create = re.sub(r"DEFAULT \(NEXT VALUE FOR .*?\)(?: (CONSTRAINT \w+ PRIMARY KEY))?", r"DEFAULT 'line' \1", create)
        create = re.sub(r"DEFAULT \((.*?)\)", r"DEFAULT \1", create).replace("DEFAULT 0x", "DEFAULT ''")
        tree = sqlglot.parse_one(create, dialect="tsql")
        made = columns(tree.this).replace("DEFAULT 'now'", "DEFAULT (clock_timestamp() AT TIME ZONE 'UTC')").replace("DEFAULT 'uuid'", "DEFAULT gen_random_uuid()")
        made = made.replace("DEFAULT 'here'", f"DEFAULT (clock_timestamp() AT TIME ZONE 'UTC' + INTERVAL '{ZONE} minutes')").replace("DEFAULT 'line'", f"DEFAULT nextval('{line}')")
        steps.append(["do", f"CREATE TABLE {name.replace('[', chr(34)).replace(']', chr(34))} ({made})"])
    return steps


def translate(text):
    """The steps of one statement, as the Go tests read them."""
    return [dict(zip(("what", *PARTS[s[0]]), s)) for s in (tables(text) if "CREATE TABLE" in text else statement(text))]


if __name__ == "__main__":
    import logging

    logging.getLogger("sqlglot").setLevel(logging.ERROR)
    for line in sys.stdin:
        try:
            answer = {"steps": translate(json.loads(line))}
        except Exception as e:  # noqa: BLE001
            answer = {"error": repr(e)}
        print(json.dumps(answer), flush=True)
