package sqlserver

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	mssql "github.com/microsoft/go-mssqldb"
)

// emulator replaces SQL Server. It is a driver that carries out the batches that are sent, which
// testdata/tsql/translate.py turns into PostgreSQL's SQL. It shows that the statements do what
// they are meant to, and that arguments and answers are read as they were written. It shows
// nothing that SQL Server does differently: locks, plans, conversions and settings. It never
// locks a key range.
type emulator struct {
	url, schema string
	translator  *translations
	tables      map[string][]*answer // tables of other owners: what the catalogue lists for each

	// lockTimeouts ends the wait for a lock as SET LOCK_TIMEOUT requires. Without it a machine that stands still ends
	// no wait.
	lockTimeouts bool

	gateway atomic.Pointer[mssql.Error] // answers the next batch, which the server doesn't get

	gone atomic.Bool // the indexes of adopted tables

	mu    sync.Mutex
	conns map[*emulated]struct{}
}

// cut breaks all connections, as a network does.
func (e *emulator) cut() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for c := range e.conns {
		c.pg.PgConn().Conn().Close()
	}
}

// Connect implements driver.Connector.
func (e *emulator) Connect(ctx context.Context) (driver.Conn, error) {
	config, err := pgx.ParseConfig(e.url)
	if err != nil {
		return nil, err
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
	config.RuntimeParams["client_min_messages"] = "warning"
	pg, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("unable to open tcp connection with host: %w", err)
	}
	c := &emulated{e: e, pg: pg}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.conns[c] = struct{}{}
	return c, nil
}

// Driver implements driver.Connector.
func (e *emulator) Driver() driver.Driver { return nil }

// emulated is a session.
type emulated struct {
	e    *emulator
	pg   *pgx.Conn
	vars map[string]value
	sets []*answer
}

var _ interface {
	driver.QueryerContext
	driver.ExecerContext
	driver.NamedValueChecker
	driver.Validator
	driver.Pinger
} = (*emulated)(nil)

func (c *emulated) Prepare(string) (driver.Stmt, error)      { return nil, errors.New("not needed") }
func (c *emulated) Begin() (driver.Tx, error)                { return nil, errors.New("not needed") }
func (c *emulated) CheckNamedValue(*driver.NamedValue) error { return nil }
func (c *emulated) IsValid() bool                            { return !c.pg.IsClosed() }
func (c *emulated) Ping(ctx context.Context) error {
	if answer := c.e.gateway.Swap(nil); answer != nil {
		return *answer
	}
	return c.told(ctx, c.pg.Ping(ctx))
}
func (c *emulated) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	_, err := c.QueryContext(ctx, query, args)
	return driver.ResultNoRows, err
}

func (c *emulated) Close() error {
	c.e.mu.Lock()
	delete(c.e.conns, c)
	c.e.mu.Unlock()
	_ = c.pg.Close(context.Background()) // it is possibly broken
	return nil
}

// QueryContext implements driver.QueryerContext.
func (c *emulated) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if c.pg.IsClosed() {
		return nil, driver.ErrBadConn
	}
	if answer := c.e.gateway.Swap(nil); answer != nil {
		return nil, *answer
	}
	c.vars, c.sets = map[string]value{}, nil
	if query == "sp_executesql" {
		if err := c.declare(args); err != nil {
			return nil, err
		}
		query, args = string(args[0].Value.(mssql.NVarCharMax)), nil
	}
	for _, a := range args { // a plain statement's, whose types the driver finds
		kind := "text"
		switch a.Value.(type) {
		case int, int64:
			kind = "bigint"
		}
		c.vars[a.Name] = value{kind, textOf(a.Value)}
	}
	if err := c.batch(ctx, query); err != nil {
		return nil, c.told(ctx, err)
	}
	if len(c.sets) == 0 {
		return &answers{sets: []*answer{{}}}, nil
	}
	return &answers{sets: c.sets}, nil
}

var declaration = regexp.MustCompile(`@(\w+) ([a-z0-9]+(?:\([a-z0-9]+\))?)(?:, |$)`)

// declare reads sp_executesql's declarations and arguments.
func (c *emulated) declare(args []driver.NamedValue) error {
	if len(args) < 2 {
		return nil
	}
	kinds := map[string]string{}
	for _, m := range declaration.FindAllStringSubmatch(string(args[1].Value.(mssql.NVarCharMax)), -1) {
		kinds[m[1]] = m[2]
	}
	for _, a := range args[2:] {
		kind, ok := kinds[a.Name]
		if !ok {
			return mssql.Error{Number: 8145, Message: a.Name + " is not a parameter"}
		}
		delete(kinds, a.Name)
		c.vars[a.Name] = value{postgresTypes.Replace(kind), textOf(a.Value)}
	}
	if len(kinds) > 0 {
		return mssql.Error{Number: 8178, Message: fmt.Sprintf("not supplied: %v", kinds)}
	}
	return nil
}

var (
	postgresTypes  = strings.NewReplacer("datetime2(6)", "timestamp(6)", "nvarchar(max)", "text", "nvarchar", "varchar", "varbinary(max)", "bytea")
	postgresQuotes = strings.NewReplacer("[", `"`, "]", `"`)
	create         = regexp.MustCompile(`CREATE (SEQUENCE|INDEX|UNIQUE INDEX) [^;]*`)
)

// batch carries out a batch. Some batches have no translation and are carried out here.
func (c *emulated) batch(ctx context.Context, query string) error {
	switch {
	case strings.Contains(query, "@describe_table"):
		if c.sets = c.e.tables[*c.vars["describe_name"].text]; c.sets == nil {
			c.sets = make([]*answer, 8)
			for i := range c.sets {
				c.sets[i] = &answer{}
			}
		}
		return nil
	case strings.HasPrefix(query, "SET SHOWPLAN_XML ON"):
		return mssql.Error{Number: 262, Message: "SHOWPLAN permission denied"}
	case strings.Contains(query, "SERVERPROPERTY('ProductVersion')"):
		c.sets = []*answer{{[]string{"version", "edition", "engine", "level", "babelfish", "name", "versions"},
			[][]driver.Value{{"16.0.0.0", "an emulation on PostgreSQL", int64(3), int64(160), int64(0), "qsidecar", int64(0)}}}}
		return nil
	case strings.Contains(query, "sp_sequence_get_range"):
		return c.ask(ctx, strings.ReplaceAll(`SELECT setval('{s}.qsidecar_sequence', (SELECT max(n) / 1000 * 1000 + 10000 FROM (SELECT max(greatest(id, position)) AS n FROM {s}.qsidecar_jobs
			UNION ALL SELECT max(job) FROM {s}.qsidecar_keys UNION ALL SELECT max(job) FROM {s}.qsidecar_failures) x))`, "{s}", c.e.schema))
	case strings.Contains(query, "sys.sequences"):
		return c.ask(ctx, strings.ReplaceAll(`SELECT q.last_value, greatest(0, (SELECT max(id) FROM {s}.qsidecar_jobs), (SELECT max(job) FROM {s}.qsidecar_keys), (SELECT max(job) FROM {s}.qsidecar_failures))
			FROM {s}.qsidecar_sequence q`, "{s}", c.e.schema))
	case strings.Contains(query, "LOCK_ESCALATION"):
		return nil
	case strings.Contains(query, "sp_getapplock"):
		c.sets = []*answer{{[]string{"got"}, [][]driver.Value{{int64(0)}}}}
		return c.do(ctx, "SELECT pg_advisory_xact_lock(1)")
	case strings.Contains(query, "CASE WHEN OBJECT_ID"):
		return c.ask(ctx, fmt.Sprintf(`SELECT CASE WHEN EXISTS (SELECT FROM pg_tables WHERE schemaname = '%s' AND tablename = 'qsidecar_meta') THEN 1 ELSE 0 END`, c.e.schema))
	case strings.Contains(query, "CREATE SCHEMA"):
		return c.do(ctx, "CREATE SCHEMA "+c.e.schema)
	case strings.Contains(query, "CREATE FUNCTION"):
		return c.do(ctx, fmt.Sprintf(`CREATE TABLE %[1]s.clock AS SELECT clock_timestamp() AT TIME ZONE 'UTC' AS now;
			CREATE FUNCTION %[1]s.qsidecar_now() RETURNS timestamp(6) LANGUAGE sql STABLE AS $$SELECT now FROM %[1]s.clock$$`, c.e.schema))
	case strings.Contains(query, "NEWID"):
		return c.do(ctx, fmt.Sprintf(`INSERT INTO %s.qsidecar_meta VALUES (1, 1, 1, left(replace(gen_random_uuid()::text, '-', ''), 11))`, c.e.schema))
	case strings.Contains(query, "CREATE SEQUENCE"), strings.Contains(query, "CREATE INDEX"), strings.Contains(query, "CREATE UNIQUE INDEX"):
		return c.do(ctx, postgresQuotes.Replace(create.FindString(query)))
	}
	if c.e.gone.Load() && strings.Contains(query, "WITH (INDEX ([IX_") {
		if err := c.do(ctx, "ROLLBACK"); err != nil {
			return err
		}
		return mssql.Error{Number: 308, Class: 16, Message: "Index 'IX' on table 'T' (specified in the FROM clause) does not exist."}
	}
	steps, err := c.e.translator.steps(query, c.e.schema)
	if err != nil {
		return err
	}
	_, err = c.carryOut(ctx, steps)
	return err
}

// carryOut carries out steps. left is "break" or "continue" after such a step.
func (c *emulated) carryOut(ctx context.Context, steps []step) (left string, err error) {
	for _, s := range steps {
		switch s.What {
		case "break", "continue":
			return s.What, nil
		case "begin", "commit", "rollback":
			if s.What != "rollback" || c.pg.PgConn().TxStatus() != 'I' {
				err = c.do(ctx, s.What)
			}
		case "patience":
			if c.e.lockTimeouts {
				err = c.do(ctx, fmt.Sprintf("SET lock_timeout = '%dms'", max(s.Number, 1)))
			}
		case "list", "do":
			err = c.do(ctx, s.Query)
		case "select":
			err = c.ask(ctx, s.Query)
		case "declare":
			c.vars[s.Names[0]] = value{kind: s.Kind}
			if s.Query != "" {
				err = c.assign(ctx, s)
			}
		case "assign":
			err = c.assign(ctx, s)
		case "if":
			var yes bool
			if yes, err = c.true(ctx, s.Query); err == nil {
				left, err = c.carryOut(ctx, map[bool][]step{true: s.yes, false: s.no}[yes])
			}
			if left != "" {
				return left, err
			}
		case "while":
			err = c.while(ctx, s)
		default:
			err = fmt.Errorf("a step %q", s.What)
		}
		if err != nil {
			return "", err
		}
	}
	return "", nil
}

func (c *emulated) while(ctx context.Context, s step) error {
	for range 10_000 {
		yes, err := c.true(ctx, s.Query)
		if err != nil || !yes {
			return err
		}
		left, err := c.carryOut(ctx, s.yes)
		if err != nil || left == "break" {
			return err
		}
	}
	return errors.New("a WHILE without an end")
}

var inQuery = regexp.MustCompile(`<<(\w+)>>`)

// filled is a query with parameters for its variables.
func (c *emulated) filled(query string) (string, []any, error) {
	var args []any
	var names []string
	var wrong error
	query = inQuery.ReplaceAllStringFunc(query, func(word string) string {
		name := word[2 : len(word)-2]
		v, ok := c.vars[name]
		if !ok {
			wrong = mssql.Error{Number: 137, Message: "Must declare the scalar variable @" + name}
		}
		i := slices.Index(names, name)
		if i < 0 {
			i = len(names)
			names, args = append(names, name), append(args, v.text)
		}
		return fmt.Sprintf("$%d::text::%s", i+1, v.kind)
	})
	// The translation is for one schema.
	return strings.ReplaceAll(query, `"qsidecar".`, c.e.schema+"."), args, wrong
}

// do carries out a statement that answers with no rows.
func (c *emulated) do(ctx context.Context, query string) error {
	query, args, err := c.filled(query)
	if err != nil {
		return err
	}
	var tag pgconn.CommandTag
	if len(args) == 0 && strings.Contains(query, ";") {
		var results []*pgconn.Result
		results, err = c.pg.PgConn().Exec(ctx, query).ReadAll()
		if err == nil && len(results) > 0 {
			tag = results[len(results)-1].CommandTag
		}
	} else {
		tag, err = c.pg.Exec(ctx, query, args...)
	}
	if err != nil {
		return fmt.Errorf("%w in %.300s", err, query)
	}
	n := strconv.FormatInt(tag.RowsAffected(), 10)
	c.vars["ROWCOUNT"] = value{"bigint", &n}
	return nil
}

// rows are those of a query.
func (c *emulated) rows(ctx context.Context, query string) (a *answer, err error) {
	query, args, err := c.filled(query)
	if err != nil {
		return nil, err
	}
	rows, err := c.pg.Query(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("%w in %.300s", err, query)
	}
	defer rows.Close()
	a = &answer{}
	for _, f := range rows.FieldDescriptions() {
		a.Columns = append(a.Columns, f.Name)
	}
	for rows.Next() {
		values, err := rows.Values()
		if err != nil {
			return nil, err
		}
		row := make([]driver.Value, len(values))
		for i, v := range values {
			row[i] = answered(v)
		}
		a.Rows = append(a.Rows, row)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("%w in %.300s", err, query)
	}
	return a, nil
}

func (c *emulated) ask(ctx context.Context, query string) error {
	a, err := c.rows(ctx, query)
	if err == nil {
		c.sets = append(c.sets, a)
		n := strconv.Itoa(len(a.Rows))
		c.vars["ROWCOUNT"] = value{"bigint", &n}
	}
	return err
}

func (c *emulated) assign(ctx context.Context, s step) error {
	a, err := c.rows(ctx, s.Query)
	if err != nil {
		return err
	}
	n := strconv.Itoa(len(a.Rows))
	c.vars["ROWCOUNT"] = value{"bigint", &n}
	if len(a.Rows) == 0 {
		return nil // the variables keep what they have
	}
	for i, name := range s.Names {
		v, ok := c.vars[name]
		if !ok {
			return mssql.Error{Number: 137, Message: "Must declare the scalar variable @" + name}
		}
		v.text = textOf(a.Rows[len(a.Rows)-1][i])
		c.vars[name] = v
	}
	return nil
}

func (c *emulated) true(ctx context.Context, query string) (bool, error) {
	a, err := c.rows(ctx, query)
	if err != nil {
		return false, err
	}
	return a.Rows[0][0] == int64(1), nil
}
