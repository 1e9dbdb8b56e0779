"""The rules of this package for its SQL: see the comment of type piece."""

import re

from sqlglot import exp

SMALL = {"qsidecar_sidecars", "qsidecar_history", "qsidecar_queues", "qsidecar_requeues", "qsidecar_commits", "qsidecar_meta", "qsidecar_cancelled",
         "qsidecar_gates", "qsidecar_capped", "qsidecar_stripes", "qsidecar_admissions"}
KEYS = {"qsidecar_jobs": ["id"], "qsidecar_failures": ["job"], "qsidecar_keys": ["queue", "name"], "qsidecar_sidecars": ["sidecar"],
        "qsidecar_requeues": ["queue"], "qsidecar_commits": ["handle", "pipeline"], "qsidecar_queues": ["queue"], "qsidecar_history": ["hour", "queue"],
        "qsidecar_cancelled": ["owner", "token_sidecar", "token_number"], "qsidecar_gates": ["queue"], "qsidecar_capped": ["queue", "job"],
        "qsidecar_stripes": ["queue", "stripe"], "qsidecar_admissions": ["queue", "group_name", "note"]}
CLAIMING = {"UPDLOCK", "READPAST", "ROWLOCK", "READCOMMITTEDLOCK"}
HEAD = ["SET NOCOUNT ON", "SET XACT_ABORT ON", "SET LOCK_TIMEOUT 5000", "SET DEADLOCK_PRIORITY LOW",
        "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"]

# Scans of an index that aren't seeks, and why they are permitted.
WALKS = {
    ("qsidecar_scheduled", None): "its first row is all that is wanted",
    ("qsidecar_due", None): "its first row is all that is wanted",
    ("qsidecar_expiring", None): "its first row is all that is wanted",
    ("qsidecar_owned", "queue"): "no more rows are claimed than there are workers",
    ("qsidecar_ready", "count"): "an estimate, at most every ten seconds",
    ("qsidecar_blocked", "count"): "an estimate, at most every ten seconds",
    ("qsidecar_delayed", "count"): "an estimate, at most every ten seconds",
    ("qsidecar_finished", "count"): "an estimate, at most every ten seconds",
    ("qsidecar_owned", "count"): "no more rows are claimed than there are workers",
}


def hints(table):
    """The hints of a table, and the index that one of them names."""
    names, index = set(), None
    for hint in table.args.get("hints") or []:
        for h in hint.expressions:
            if isinstance(h, exp.Anonymous) and h.name.upper() == "INDEX":
                index = h.expressions[0].name
            else:
                names.add(h.name.upper())
    return names, index


def conditions(tree):
    """Each condition of a statement's WHERE and ON, without aliases."""
    found = []
    for node in tree.find_all(exp.Where, exp.Join):
        on = node.this if isinstance(node, exp.Where) else node.args.get("on")
        if on is not None:
            found += [re.sub(r"\b[a-z]\.", "", c.sql("tsql")) for c in on.flatten()] if isinstance(on, exp.And) else [re.sub(r"\b[a-z]\.", "", on.sql("tsql"))]
    return found


def scope_of(table):
    """The query that a table is read by."""
    node = table.parent
    while not isinstance(node, (exp.Select, exp.Update, exp.Delete, exp.Insert)):
        node = node.parent
    return node


def sought(table, columns):
    """Whether each of the columns of a table is compared with something by =."""
    alias, found = table.alias_or_name, set()
    for eq in scope_of(table).find_all(exp.EQ):
        for side in (eq.left, eq.right):
            if isinstance(side, exp.Column) and side.table in (alias, "") and not isinstance(eq.parent, exp.Update):
                found.add(side.name.lower())
    return all(c in found for c in columns)


def table_rules(name, schema, table, say):
    base = table.name.lower()
    if base not in KEYS:
        return
    how, index = hints(table)
    scope = scope_of(table)
    if "READPAST" in how and "READCOMMITTEDLOCK" not in how:
        say("READPAST without READCOMMITTEDLOCK: refused where the database has READ_COMMITTED_SNAPSHOT")
    if "HOLDLOCK" in how and "UPDLOCK" not in how:
        say("HOLDLOCK without UPDLOCK: two that read the same gap wait for each other")
    if base == "qsidecar_keys" and index == "qsidecar_keys_job" and "NOWAIT" not in how:
        say("it waits for the key of a job that it has locked: one that stores the key waits for the job")
    if isinstance(scope, exp.Insert) and scope.find(exp.Table) is table:
        return  # what is inserted into
    if index is None:
        # a first column will do for what is small, and for lists of one key
        if not sought(table, KEYS[base]) and base not in SMALL:
            say(f"{base} is read without its primary key and without an index that is named")
        if "FORCESEEK" not in how and base not in SMALL and table.alias and name != "place":
            say(f"{base} is joined without FORCESEEK")
        return
    i = schema.indexes.get(index)
    if i is None or i.table != base:
        say(f"{base} has no index {index}")
        return
    there = conditions(scope)
    for part in i.where:
        if part not in [normal(c) for c in there]:
            say(f"the index {index} has only rows WHERE {part}, and the statement does not say so: error 8622")
    if "FORCESEEK" in how:
        first = i.order[0].split()[0]
        if not any(re.match(rf"{first} (=|<|<=|>|>=) |\\S+ = {first}$", c) for c in there):
            say(f"the index {index} has nothing to seek by: nothing is said of {first}: error 8622")
        return
    kind = "count" if name.startswith("count") else "queue" if any("queue" in c for c in there) or index == "qsidecar_owned" else None
    if (index, kind) not in WALKS:
        say(f"the index {index} is walked through, not sought in")


def normal(condition):
    return re.sub(r"^NOT (\w+) IS NULL$", r"\1 IS NOT NULL", condition)


def order_rules(schema, select, say):
    """With a TOP, the order is the index's: what sorts would lock everything first."""
    table = next((t for t in select.args["from_"].find_all(exp.Table) if hints(t)[1]), None) if select.args.get("from_") else None
    order = select.args.get("order")
    if table is None or order is None or select.args.get("limit") is None or "UPDLOCK" not in hints(table)[0]:
        return
    i = schema.indexes[hints(table)[1]]
    equal = {m.group(1) for c in conditions(select) for m in [re.match(r"(\w+) = ", c)] if m}
    want = [c for c in i.order if c.split()[0] not in equal]
    got = [o.this.name + (" DESC" if o.args.get("desc") else "") for o in order.expressions]
    flipped = [c[:-5] if c.endswith(" DESC") else c + " DESC" for c in want]
    # A clustered index's key is at the end of each other index.
    if got not in (want[:len(got)], flipped[:len(got)], (want + ["id"])[:len(got)]):
        say(f"the order {got} is not that of {i.name}, {want}: all of it would be locked and sorted")


def row_rules(schema, select, say):
    """What passes over locked rows locks the rows, not just their entries in an index that has
    all columns of the statement."""
    tables = [t for t in select.find_all(exp.Table) if t.parent_select is select]
    for t in tables:
        how, index = hints(t)
        if index is None or not {"UPDLOCK", "READPAST"} <= how:
            continue
        own = schema.indexes[index].columns | set(schema.keys.get(t.name.lower(), ["id"])) | {p.split()[0] for p in schema.indexes[index].where}
        others = {c.name.lower() for c in select.find_all(exp.Column) if c.table == t.alias} - own
        joined = any(o is not t and o.name == t.name and {"UPDLOCK", "READPAST"} <= hints(o)[0] and hints(o)[1] is None for o in tables)
        if not others and not joined:
            say(f"{index} has all columns that are read: the rows are not locked, and those that others have locked are not passed over")


def statement_rules(name, schema, s, say):
    tree = s.tree
    if re.search(r"\bMERGE\b|CREATE\s+OR\s+ALTER", s.text) or s.text.startswith("WITH "):
        say("MERGE, CREATE OR ALTER and WITH are for no server that this has to run on")
    for table in tree.find_all(exp.Table):
        if isinstance(table.this, exp.Identifier) and table.parent_select is not table:
            if isinstance(tree, exp.Update) and table is tree.this or isinstance(tree, exp.Delete) and table in (tree.args.get("tables") or []):
                continue
            table_rules(name, schema, table, say)
    for select in tree.find_all(exp.Select):
        order_rules(schema, select, say)
        row_rules(schema, select, say)
    into = tree.find(exp.Table) if isinstance(tree, exp.Insert) else None
    if not s.condition and "KEEPFIXED PLAN" not in s.text and any(t.name.lower() == "qsidecar_jobs" and t is not into for t in tree.find_all(exp.Table)):
        say("it is compiled again when the statistics of the jobs are old, which they are after every few hundred changes")
    joined = [t for t in tree.find_all(exp.Table) if t.name.lower() in KEYS]
    if isinstance(tree, (exp.Update, exp.Delete)) and joined and (tree.args.get("from_") or tree.args.get("tables")):
        if "OPTION (LOOP JOIN" not in s.text:
            say("an UPDATE or DELETE that leaves the way to its rows to the server")
    if isinstance(tree, (exp.Update, exp.Delete)) and tree.args.get("returning"):
        if any(j.args.get("on") or isinstance(j.this, exp.Lateral) for j in tree.find_all(exp.Join) if j.parent_select is None):
            say("an OUTPUT of a change that JOINs: Babelfish then finds no column of the list")
        if not all(isinstance(e, exp.Column) for e in tree.args["returning"].expressions):
            say("an OUTPUT that computes: Babelfish takes columns alone")
    failures = next((t for t in tree.find_all(exp.Table) if t.name == "qsidecar_failures" and t.parent_select is None), None)
    if isinstance(tree, exp.Delete) and failures is not None:
        if not sought(failures, ["job", "fence"]) or tree.find(exp.Limit, exp.Fetch) is None:
            say("failures are deleted without a bound: a job may have any number of them")
    if isinstance(tree, exp.Update) and isinstance(tree.this.this, exp.Identifier) and tree.args.get("from_") is None:
        base = tree.this.name.lower()
        if not sought(tree.this, KEYS[base]):
            say("an UPDATE without a FROM that is not by primary key")


def claim_rules(found, say):
    """What makes a claim exclusive, on a server that supports the hints and on one that does not."""
    picks = [s for s in found if isinstance(s.tree, exp.Insert) and "@claim_picked" in s.text and "qsidecar_jobs" in s.text]
    takes = [s for s in found if isinstance(s.tree, exp.Update) and "qsidecar_jobs" in s.text]
    if not picks or len(takes) != 1:
        say("a claim without rows that it picks, or without the one UPDATE that takes them")
    for s in picks:
        table = next(t for t in s.tree.find_all(exp.Table) if t.name == "qsidecar_jobs")
        how, index = hints(table)
        if not CLAIMING <= how or index != "qsidecar_ready" or s.tree.expression.args.get("limit") is None:
            say(f"a claim picks rows without {CLAIMING - how} or without TOP or its index")
        if "OPTION (OPTIMIZE FOR (@claim_left = 1), KEEPFIXED PLAN)" not in s.text:
            say("a claim picks rows with a TOP that the server takes for a hundred rows: it may lock more of them ahead")
    for s in takes:
        where = [normal(c) for c in conditions(s.tree)]
        if "state = 'ready'" not in where or "run_at IS NULL" not in where or "OUTPUT inserted.id INTO @claim_taken" not in s.text:
            say("a claim takes rows without looking at their state once more")


def batch_rules(name, schema, found, parameters):
    """All that is wrong with a batch. found are its statements."""
    wrong = []
    for s in found:
        statement_rules(name, schema, s, lambda what, s=s: wrong.append(f"{what}\n    {s.text[:300]}"))
    if [s.text for s in found[:len(HEAD)]] != HEAD:
        wrong.append("it does not begin with its settings")
    if name.split("_")[0] == "claim":
        claim_rules(found, wrong.append)
    if len(parameters) > 2000:
        wrong.append("sp_executesql takes 2100 parameters at most")
    return wrong
