"""Looks up every name in a batch, and compares the types of what meets."""

from sqlglot import exp

from batch import Column, columns_of, kind_of, statements

AROUND = {"now": "datetime2(6)", "wrote": "bigint", "adopt_zone": "int", "adopt_here": "datetime2(6)", "adopt_line": "bigint"}  # of a batch, by others
FITS = ["tinyint", "smallint", "int", "bigint"]  # each holds those before it


class Batch:
    """A batch, read statement by statement; wrong collects what is not right."""

    def __init__(self, schema, text, parameters, families=False):
        # families: texts of any length meet, as long as both are national or both are not
        self.schema, self.text, self.families = schema, text, families
        self.scalars = dict(parameters)  # name → type
        self.lists = {}  # table variables: name → columns
        self.used, self.wrong, self.sets = set(), [], 0
        for s in statements(text):
            try:
                self.statement(s)
            except Exception as e:  # noqa: BLE001: whatever it is, it is this statement's
                self.say(s.text, f"cannot be read: {e!r}")
        for name in [*self.scalars, *self.lists]:
            if name not in self.used and name not in AROUND:
                self.say("", f"@{name} is declared and not used")

    def say(self, where, what):
        self.wrong.append(f"{what}\n    {where[:300]}")

    def statement(self, s):
        tree, self.now = s.tree, s.text
        if any(tree.find_all(exp.Command)):
            self.say(s.text, "is opaque to sqlglot")
        match tree:
            case exp.Declare():
                self.declare(tree)
            case exp.Set():
                if s.text.startswith("SET @"):
                    self.scan(tree, [])
            case exp.Select() | exp.Union():
                columns = self.query(tree, [])
                if not s.condition and not any(isinstance(e, exp.EQ) for e in tree.expressions):
                    self.sets += 1
                    if s.depth:
                        self.say(s.text, "gives a result set, but perhaps not once")
                    if not all(name for name, _ in columns):
                        self.say(s.text, "gives a column without a name")
            case exp.Insert():
                self.insert(tree)
            case exp.Update():
                self.update(tree)
            case exp.Delete():
                self.delete(tree)
            case _:
                self.say(s.text, f"is a {type(tree).__name__}, which this check does not know")

    # -- declarations

    def declare(self, tree):
        for item in tree.expressions:
            name, kind = item.this[0].name, item.args["kind"]
            if item.args.get("default"):
                self.scan(item.args["default"], [])
            if isinstance(kind, exp.Schema):
                self.lists[name] = columns_of(kind)
            else:
                self.scalars[name] = kind_of(kind)

    def table(self, node):
        """The columns of a table, of a list, or of a document."""
        match node.this:
            case exp.Parameter():
                self.used.add(node.this.name)
                if node.this.name not in self.lists:
                    self.say(self.now, f"@{node.this.name} is no list")
                return self.lists.get(node.this.name, {})
            case exp.OpenJSON():
                self.scan(node.this.this, [])
                if not node.this.expressions:
                    return {"key": None, "value": None, "type": None}
                return {c.name: c for c in (document(d) for d in node.this.expressions)}
        name = node.name.lower()
        if node.db == "sys":
            return None  # the server's own
        if name not in self.schema.tables:
            self.say(self.now, f"there is no table {name}")
        return self.schema.tables.get(name)

    # -- statements

    def query(self, node, outer):
        """Checks a SELECT and returns its columns: names, with a Column or None."""
        if isinstance(node, exp.Subquery):
            return self.query(node.this, outer)
        if isinstance(node, exp.Union):
            left, right = self.query(node.left, outer), self.query(node.right, outer)
            if len(left) != len(right):
                self.say(self.now, "joins selects of different widths")
            return left
        here = {}
        scopes = [here, *outer]
        self.sources(node.args.get("from_"), node.args.get("joins"), here, scopes)
        for key, value in node.args.items():
            if key not in ("from_", "joins"):
                self.scan(value, scopes)
        return [(e.alias_or_name, self.column(e.unalias(), scopes)) for e in node.expressions]

    def sources(self, first, joins, here, scopes):
        if first is None:
            return
        todo = [first.this, *(joins or [])]
        while todo:
            item = todo.pop(0)
            on = None
            if isinstance(item, exp.Join):
                on, item = item.args.get("on"), item.this
            todo = [*(item.args.get("joins") or []), *todo]
            match item:
                case exp.Lateral():
                    here[item.alias] = dict(self.query(item.this, scopes))
                case exp.Subquery():
                    here[item.alias] = dict(self.query(item.this, scopes[1:]))
                case exp.Table():
                    here[item.alias or item.name] = self.table(item)
                case _:
                    self.say(self.now, f"comes from a {type(item).__name__}")
            if on is not None:
                self.scan(on, scopes)

    def scan(self, value, scopes):
        """Checks an expression: its names, its comparisons, its subqueries."""
        if isinstance(value, list):
            for v in value:
                self.scan(v, scopes)
            return
        if not isinstance(value, exp.Expression):
            return
        match value:
            case exp.Select() | exp.Union():
                self.query(value, scopes)
                return
            case exp.WithTableHint() | exp.QueryOption() | exp.NextValueFor():
                return
            case exp.Parameter(this=exp.Parameter()):
                return  # @@ROWCOUNT, @@TRANCOUNT
            case exp.Parameter():
                self.used.add(value.name)
                if value.name not in self.scalars and value.name not in self.lists:
                    self.say(self.now, f"@{value.name} is not declared")
            case exp.Column():
                self.find(value, scopes)
            case exp.EQ() | exp.NEQ() | exp.GT() | exp.GTE() | exp.LT() | exp.LTE():
                self.compare(value, scopes)
        for v in value.args.values():
            self.scan(v, scopes)

    def find(self, node, scopes):
        name, alias = node.name.lower(), node.table
        units = ("second", "millisecond", "microsecond", "day", "row_number")
        if not alias and name in units:
            return None
        for scope in scopes:
            for source, columns in scope.items():
                if (alias and alias != source) or columns is None:
                    if alias == source:
                        return None
                    continue
                if name in columns:
                    return columns[name]
                if alias:
                    self.say(self.now, f"{alias} has no column {name}")
                    return None
        self.say(self.now, f"there is no {node.sql('tsql')} here")
        return None

    def column(self, node, scopes):
        """The type of what is no more than a column or a variable."""
        if isinstance(node, exp.EQ):  # SELECT @x = column
            self.assign(self.variable(node.this), self.column(node.expression, scopes), node)
            return None
        if isinstance(node, exp.Column):
            return self.find(node, scopes)
        if isinstance(node, exp.Parameter):
            return self.variable(node)
        return None

    def variable(self, node):
        if node.name not in self.scalars:
            return None
        c = Column.__new__(Column)
        c.name, c.kind, c.collation, c.required, c.default = node.name, self.scalars[node.name], "variable", False, False
        return c

    def compare(self, node, scopes):
        a, b = self.column(node.left, scopes) if not isinstance(node.left, exp.EQ) else None, self.column(node.right, scopes)
        if a is None or b is None or a.collation == b.collation == "variable":
            return
        if self.family(a.kind) != self.family(b.kind):
            self.say(self.now, f"compares {a.name} {a.kind} with {b.name} {b.kind}")
        if "char" in a.kind and "variable" not in (a.collation, b.collation) and a.collation != b.collation:
            self.say(self.now, f"compares {a.name} and {b.name} of different collations")

    def family(self, kind):
        if not self.families:
            return kind
        return "nvarchar" if kind.startswith(("nchar", "nvarchar", "ntext")) else "varchar" if kind.startswith(("char", "varchar", "text")) else kind

    def assign(self, to, what, node):
        """What is stored must be of the type it is stored as, or of a smaller one."""
        if to is None or what is None or self.family(to.kind) == self.family(what.kind):
            return
        if self.families and (to.kind, what.kind) in (("int", "bigint"), ("xml", "nvarchar(4000)"), ("varchar(max)", "nvarchar(4000)")):
            return  # sqlglot takes NTEXT for VARCHAR(MAX)
        if to.kind in FITS and what.kind in FITS and FITS.index(what.kind) <= FITS.index(to.kind):
            return
        if what.collation == "document":
            return
        self.say(self.now, f"stores {what.name} {what.kind} as {to.name} {to.kind}: {node.sql('tsql')[:60]}")

    def insert(self, tree):
        target, columns = tree.this, None
        if isinstance(target, exp.Schema):
            columns, target = [c.name.lower() for c in target.expressions], target.this
        there = self.table(target)
        values = [list(v.expressions) for v in tree.expression.expressions] if isinstance(tree.expression, exp.Values) else None
        for c in columns:
            if c not in there:
                self.say(self.now, f"stores into a column {c} that is not there")
        for c in there.values():
            if c.required and not c.default and c.name not in columns:
                self.say(self.now, f"leaves {c.name} out, which is needed")
        if values is not None:
            self.scan(values, [])
            types = [[self.column(e, []) for e in v] for v in values]
        else:
            types = [[c for _, c in self.query(tree.expression, [])]]
        self.output(tree, {"inserted": there})
        for row in types:
            if len(row) != len(columns):
                self.say(self.now, f"stores {len(row)} values into {len(columns)} columns")
            for c, t in zip(columns, row):
                self.assign(there.get(c), t, tree)

    def update(self, tree):
        here = {}
        scopes = [here]
        self.sources(tree.args.get("from_"), None, here, scopes)
        alias = tree.this.name if isinstance(tree.this.this, exp.Identifier) else None
        if not here or alias not in here:
            here["target"] = self.table(tree.this)
            target = here["target"]
        else:
            target = here[alias]
        for e in tree.expressions:
            to = target.get(e.this.name.lower())
            if to is None:
                self.say(self.now, f"sets a column {e.this.name} that is not there")
            self.scan(e.expression, scopes)
            self.assign(to, self.column(e.expression, scopes), e)
        self.scan(tree.args.get("where"), scopes)
        self.output(tree, {"inserted": target, "deleted": target})

    def delete(self, tree):
        here = {}
        scopes = [here]
        self.sources(exp.From(this=tree.this), None, here, scopes)
        target = here[tree.args["tables"][0].name] if tree.args.get("tables") else next(iter(here.values()))
        self.scan(tree.args.get("where"), scopes)
        self.output(tree, {"deleted": target})

    def output(self, tree, scope):
        r = tree.args.get("returning")
        if r is None:
            return
        self.scan(r.expressions, [scope])
        into = r.args.get("into")
        if not isinstance(into, exp.Parameter):
            self.say(self.now, "has an OUTPUT without INTO: it fails where the table has a trigger")
            return
        self.used.add(into.name)
        columns = list(self.lists[into.name].values())
        if len(columns) != len(r.expressions):
            self.say(self.now, f"puts {len(r.expressions)} columns out into {len(columns)}")
        for c, e in zip(columns, r.expressions):
            self.assign(c, self.column(e, [scope]), e)


def document(node):
    c = Column(node) if isinstance(node, exp.ColumnDef) else Column.__new__(Column)
    c.name, c.kind, c.collation, c.required, c.default = node.name.lower(), kind_of(node.args["kind"]), "document", False, False
    return c
