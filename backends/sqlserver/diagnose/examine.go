package diagnose

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/checks"
	"github.com/qsidecar/qsidecar/backends/sqlserver"
	"github.com/qsidecar/qsidecar/backends/sqlserver/internal/plan"
	"github.com/qsidecar/qsidecar/backends/sqlserver/migrate"
)

// examination is one call of Examine.
type examination struct {
	checks.Examination
	sqlserver.Setup
	engine *Engine
	info   backends.Info
	conn   *sql.Conn
	queues []backends.Policy
	login  string // includes the login's user in this database
	now    func() time.Time
}

// Examine implements backends.Examiner.
func (x *Engine) Examine(ctx context.Context, queues []backends.Policy) (found []backends.Finding, err error) {
	err = x.Session(ctx, func(ctx context.Context, c *sql.Conn) error {
		e := &examination{engine: x, Setup: x.Setup(), info: x.Info(), conn: c, queues: queues, now: time.Now}
		err := e.Run(ctx, []checks.Check{
			{Topic: "server", Run: e.checkSettings},
			{Topic: "cluster", Run: e.checkCluster},
			{Topic: "schema", Run: e.checkSchema},
			{Topic: "rights", Run: e.checkRights},
			{Topic: "indexes", Run: e.checkIndexes, NeedsTables: true},
			{Topic: "triggers", Run: e.checkTriggers, NeedsTables: true},
			{Topic: "sequence", Run: e.checkSequence, NeedsTables: true},
			{Topic: "claim", Run: e.checkClaim, NeedsTables: true},
			{Topic: "maintenance", Run: e.checkOverdue, NeedsTables: true},
		}, unseen)
		found = e.Findings
		return err
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// unseen returns the finding for a check that the server refused, or nil if the connection failed.
func unseen(_ checks.Check, err error) *backends.Finding {
	var sqlErr mssql.Error
	if !errors.As(err, &sqlErr) || sqlserver.Broken(err) {
		return nil
	}
	f := &backends.Finding{Text: sqlserver.Message(sqlErr)}
	switch sqlErr.Number {
	case 229, 230, 262, 297, 300, 371, 15247:
		f.Fix = "run the check as a login that may, if you want to know"
	case 1222:
		f.Text = "another transaction holds a lock on the tables"
	default:
		f.Severity, f.Fix = backends.SeverityWarning, "see the server's log"
	}
	return f
}

// rows runs a query, which waits briefly for locks, and calls f for each row.
func (e *examination) rows(ctx context.Context, query string, f func(rows *sql.Rows) error) error {
	return e.engine.Rows(ctx, e.conn, "SET LOCK_TIMEOUT 2000;\n"+query, f)
}

// checkSettings reports the server, and checks its settings and those of the database.
func (e *examination) checkSettings(ctx context.Context) error {
	var rcsi, autoClose, forced int
	var snapshot, durability, updateability sql.NullString
	var login, user string
	var now time.Time
	before := e.now()
	if err := e.rows(ctx, e.engine.Statement("examine_settings"), func(rows *sql.Rows) error {
		return rows.Scan(&rcsi, &snapshot, &durability, &autoClose, &updateability, &login, &user, &now, &forced)
	}); err != nil {
		return err
	}
	took := e.now().Sub(before)
	e.login = login + ", user " + user
	e.AddInfo("server", fmt.Sprintf("SQL Server %s at %s, database %s at compatibility level %d, as login %s",
		e.Server, e.info.Address, e.Name, e.Level, e.login))
	if updateability.Valid && updateability.String != "READ_WRITE" {
		e.AddError("server", "this database takes no writes here: it is "+updateability.String,
			"name the primary in the url (an availability group's listener, without applicationintent=ReadOnly), or ALTER DATABASE … SET READ_WRITE")
	}
	e.checkLocking()
	e.checkIsolation(rcsi == 1)
	e.checkDurability(durability.String)
	if autoClose == 1 {
		e.AddWarning("server", "AUTO_CLOSE is on: the server closes the database with its last connection, and opens it again with the next",
			fmt.Sprintf("ALTER DATABASE %s SET AUTO_CLOSE OFF", migrate.QuoteName(e.Name)))
	}
	if forced == 1 {
		e.AddWarning("server", "is_parameterization_forced is 1: the server makes parameters of constants, and then no filtered index is found (error 8622). "+
			"By its documentation statements with variables are left alone, as the sidecar's are",
			fmt.Sprintf("if there is an error 8622, ALTER DATABASE %s SET PARAMETERIZATION SIMPLE", migrate.QuoteName(e.Name)))
	}
	e.CompareClocks(now.Sub(before.Add(took/2)), took/2, checks.ClockOffset)
	return nil
}

// checkLocking reports how claims lock rows.
func (e *examination) checkLocking() {
	if e.Babelfish {
		e.AddWarning("server", "Babelfish is not supported: no run there has shown that the sidecar works on it", "use a SQL Server, or PostgreSQL and the sidecar's backend for it")
		e.AddInfo("claim", "claims pick their rows and look at the state once more when they take them: "+
			"Babelfish ignores the hints for locks. If two hosts pick the same row, one waits for the other and then picks again")
		return
	}
	e.AddInfo("claim", "claims lock their rows with UPDLOCK, READPAST (every supported version has them), and look at the state once more when they take them")
}

func (e *examination) checkIsolation(rcsi bool) {
	if rcsi {
		e.AddInfo("isolation", "READ_COMMITTED_SNAPSHOT is on: peek, stats and counts see every committed row and do not wait for open transactions; claims still lock rows (READCOMMITTEDLOCK)")
		return
	}
	if e.Babelfish {
		return
	}
	e.AddWarning("isolation", "READ_COMMITTED_SNAPSHOT is off: counts, peeks and `stats` leave out the jobs that a transaction has locked at that moment",
		fmt.Sprintf("ALTER DATABASE %s SET READ_COMMITTED_SNAPSHOT ON while no program is connected, if the other programs of the database can work with it", migrate.QuoteName(e.Name)))
}

func (e *examination) checkDurability(set string) {
	switch set {
	case "FORCED":
		e.AddWarning("durability", "DELAYED_DURABILITY is FORCED: a commit is answered before it is on disk, and the last of them are lost in a crash",
			fmt.Sprintf("ALTER DATABASE %s SET DELAYED_DURABILITY = DISABLED, unless you can lose them", migrate.QuoteName(e.Name)))
	case "ALLOWED":
		e.AddInfo("durability", "DELAYED_DURABILITY is ALLOWED, and the sidecar does not ask for it: its commits are on disk when they are answered")
	default:
		e.AddInfo("durability", "a commit is on disk when it is answered")
	}
}

// checkSchema checks that the tables exist and are of this version.
func (e *examination) checkSchema(ctx context.Context) error {
	meta, err := migrate.Read(ctx, e.conn, e.info.Address, e.Schema)
	version := meta.Version
	e.engine.database = meta.Database
	var sqlErr mssql.Error
	schema := migrate.QuoteName(e.Schema)
	switch {
	case errors.As(err, &sqlErr) && sqlErr.Number == 229:
		e.AddError("rights", fmt.Sprintf("login %s has no right to read %s.qsidecar_meta", e.login, schema),
			checks.OwnerGrants)
		return nil
	case errors.As(err, &sqlErr), err != nil && sqlserver.Broken(err):
		return err
	case err != nil:
		e.AddError("schema", err.Error(), "follow the advice at the end of that sentence")
	case version == 0:
		e.AddInfo("schema", fmt.Sprintf("the tables are missing in schema %s, or this login may not see them: serve or `qsidecar migrate` will create them", schema))
	default:
		e.TablesFound(version, migrate.Latest, " in schema "+schema, "")
	}
	if version >= migrate.Latest {
		e.Version = version // other tables have other names
	}
	return nil
}

// checkRights checks that this login has the rights that a sidecar needs: to use the tables
// and, if some are missing, to create them.
func (e *examination) checkRights(ctx context.Context) error {
	var rows []string
	add := func(name, class, need string) {
		rows = append(rows, sqlserver.RightsRow(name, class, need))
	}
	if e.Version < migrate.Latest {
		// The owner of a new schema can do anything in it. In another one, new objects and the sequence need ALTER:
		// https://learn.microsoft.com/sql/t-sql/statements/create-sequence-transact-sql
		exists := false
		if err := e.rows(ctx, "SELECT CASE WHEN SCHEMA_ID("+migrate.QuoteText(e.Schema)+") IS NULL THEN 0 ELSE 1 END AS has_schema;", func(rows *sql.Rows) error { return rows.Scan(&exists) }); err != nil {
			return err
		}
		for _, need := range []string{"CREATE TABLE", "CREATE FUNCTION"} {
			add(e.Name, "DATABASE", need)
		}
		if exists {
			add(migrate.QuoteName(e.Schema), "SCHEMA", "ALTER")
		} else {
			add(e.Name, "DATABASE", "CREATE SCHEMA")
		}
	}
	if e.Version > 0 {
		rows = append(rows, sqlserver.OwnRights(e.Schema)...)
	}
	var lacks []string
	if err := e.rows(ctx, e.engine.RightsSQL(rows), func(rows *sql.Rows) error {
		var name, need string
		var has bool
		err := rows.Scan(&name, &need, &has)
		if !has {
			lacks = append(lacks, need+" on "+name)
		}
		return err
	}); err != nil {
		return err
	}
	switch {
	case len(lacks) > 0 && e.Version < migrate.Latest:
		e.AddError("rights", fmt.Sprintf("tables have to be created, and login %s lacks: %s", e.login, strings.Join(lacks, "; ")),
			checks.OwnerMigrates)
	case len(lacks) > 0:
		e.AddError("rights", fmt.Sprintf("login %s lacks: %s", e.login, strings.Join(lacks, "; ")),
			checks.OwnerGrants)
	default:
		e.AddInfo("rights", "login "+e.login+" has all rights that a sidecar needs")
	}
	return nil
}

var createIndex = regexp.MustCompile(`CREATE (?:UNIQUE )?INDEX (\w+)`)

// checkIndexes checks that the sidecar's indexes exist and are enabled.
func (e *examination) checkIndexes(ctx context.Context) error {
	exists := map[string]bool{} // false: the index is disabled
	var noRowLocks []string
	if err := e.rows(ctx, e.engine.Statement("examine_indexes"), func(rows *sql.Rows) error {
		var name string
		var disabled, rowLocks bool
		err := rows.Scan(&name, &disabled, &rowLocks)
		exists[name] = !disabled
		if !rowLocks && !e.Babelfish {
			noRowLocks = append(noRowLocks, name)
		}
		return err
	}); err != nil {
		return err
	}
	if len(noRowLocks) > 0 {
		e.AddError("indexes", "row locks are off for these indexes, and every statement locks single rows (error 651): "+strings.Join(noRowLocks, ", "),
			"ALTER INDEX … SET (ALLOW_ROW_LOCKS = ON)")
	}
	missing := []string{}
	for _, found := range createIndex.FindAllStringSubmatch(migrate.Script(0), -1) {
		behind := func(name string) bool { return strings.HasPrefix(name, found[1]) } // Babelfish adds a hash
		if !exists[found[1]] && !(e.Babelfish && slices.ContainsFunc(slices.Collect(maps.Keys(exists)), behind)) {
			missing = append(missing, found[1])
		}
	}
	if len(missing) > 0 {
		e.AddError("indexes", "these indexes are missing or disabled, and every statement names the one that it needs: "+strings.Join(missing, ", "),
			"create them again: run what `qsidecar migrate --print` prints, which leaves alone what exists; a disabled index needs ALTER INDEX … REBUILD")
	}
	return nil
}

// checkSequence finds a sequence that is behind the ids, as after a restore of the tables alone. A sidecar that has the
// right repairs it at its next connection.
func (e *examination) checkSequence(ctx context.Context) error {
	if e.Babelfish {
		return nil
	}
	return e.rows(ctx, e.engine.BehindSQL(), func(rows *sql.Rows) error {
		var last, highest int64
		err := rows.Scan(&last, &highest)
		if err == nil && sqlserver.Behind(last, highest) {
			e.AddError("sequence", fmt.Sprintf("the sequence %s.qsidecar_sequence is at %d, and a job or a key has the id %d: inserts of jobs fail or reuse ids", migrate.QuoteName(e.Schema), last, highest),
				"restart a sidecar whose login has UPDATE on the sequence, or run: "+e.engine.RepairSQL())
		}
		return err
	})
}

// checkTriggers finds the triggers of other programs, which run with each change.
func (e *examination) checkTriggers(ctx context.Context) error {
	return e.rows(ctx, e.engine.Statement("examine_triggers"), func(rows *sql.Rows) error {
		var name string
		var instead bool
		err := rows.Scan(&name, &instead)
		if instead {
			e.AddError("triggers", fmt.Sprintf("the trigger %s replaces what the sidecar does to its jobs (INSTEAD OF)", name), "drop it, or make it an AFTER trigger")
		} else {
			e.AddInfo("triggers", fmt.Sprintf("the trigger %s runs in the sidecar's statements; if it raises an error, the sidecar refuses the job", name))
		}
		return err
	})
}

// checkOverdue finds jobs that maintenance had to change long ago.
func (e *examination) checkOverdue(ctx context.Context) error {
	return e.rows(ctx, e.engine.Statement("examine_overdue"), func(rows *sql.Rows) error {
		var queue, state string
		var jobs, example int64
		err := rows.Scan(&queue, &state, &jobs, &example)
		if err == nil {
			e.Overdue(queue, state, jobs, strconv.FormatInt(example, 10))
		}
		return err
	})
}

// checkClaim checks the plan of the claim as it is sent, except that its parameters are
// variables. Nothing is executed.
func (e *examination) checkClaim(ctx context.Context) error {
	if e.Babelfish {
		return nil // Babelfish shows no plan in this way
	}
	queue := "any"
	if len(e.queues) > 0 {
		queue = e.queues[0].Queue
	}
	xml, err := e.engine.showplan(ctx, e.conn, e.engine.ClaimBatch(queue))
	if err != nil {
		return err
	}
	faults, seeks, err := plan.ClaimFaults(xml)
	switch {
	case err != nil:
		e.AddInfo("plan", "the plan of the claim cannot be read: "+err.Error())
	case len(faults) > 0:
		e.AddError("plan", "the claim's plan is not the one it was written for: "+strings.Join(faults, "; "),
			"check that the index qsidecar_ready is as `qsidecar migrate --print` creates it, and report it to qsidecar's authors")
	default:
		e.AddInfo("plan", fmt.Sprintf("the claim seeks in the index qsidecar_ready, in its order, in each of %d statements, and takes its rows by primary key", seeks))
	}
	return nil
}
