package sqlserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/qsidecar/qsidecar/backends"
)

// examination is one Examine.
type examination struct {
	*Store
	backends.Findings
	conn    *sql.Conn
	queues  []backends.Policy
	version int    // of the tables; 0: there are none, or none that can be read
	login   string // and the user that it is in this database
	now     func() time.Time
}

// clockApart is from where on a difference of clocks is worth a word.
const clockApart = 2 * time.Second

// Examine implements backends.Examiner.
func (s *Store) Examine(ctx context.Context, queues []backends.Policy) ([]backends.Finding, error) {
	ctx, done := s.bound(ctx)
	defer done()
	c, err := s.db.Conn(ctx)
	if err != nil {
		return nil, s.outcome(ctx, err)
	}
	e := &examination{Store: s, conn: c, queues: queues, now: time.Now}
	// Nobody gets this session after it: it has settings that no reset is sure to undo.
	defer discard(c)
	for _, l := range []struct {
		topic  string
		f      func(e *examination, ctx context.Context) error
		tables bool // it is about the tables: left out where there are none
	}{
		{"server", (*examination).lookSettings, false},
		{"schema", (*examination).lookSchema, false},
		{"rights", (*examination).lookRights, false},
		{"indexes", (*examination).lookIndexes, true},
		{"triggers", (*examination).lookTriggers, true},
		{"claim", (*examination).lookClaim, true},
	} {
		if l.tables && e.version == 0 {
			continue
		}
		if err := e.look(ctx, l.topic, l.f); err != nil {
			return nil, s.outcome(ctx, err)
		}
	}
	return e.Findings, nil
}

// look takes one look. What the server refuses to show is a finding.
func (e *examination) look(ctx context.Context, topic string, f func(e *examination, ctx context.Context) error) error {
	before := len(e.Findings)
	err := f(e, ctx)
	var said mssql.Error
	if !errors.As(err, &said) || ctx.Err() != nil || broken(err) {
		return err
	}
	e.Findings = e.Findings[:before]
	switch said.Number {
	case 229, 230, 262, 297, 300, 371, 15247:
		e.Findings = append(e.Findings, backends.Finding{Severity: backends.SeverityInfo, Topic: topic,
			Text: "this could not be looked at: " + words(said), Fix: "run the check as a login that may, if you want to know"})
	case 1222:
		e.AddInfo(topic, "this could not be looked at: another transaction holds a lock on the tables")
	default:
		e.AddWarning(topic, "this could not be looked at: "+words(said), "see what the server's log says about it")
	}
	return nil
}

// rows runs one of the examination's queries and calls f for each row.
func (e *examination) rows(ctx context.Context, query string, f func(rows *sql.Rows) error) error {
	return e.plain(ctx, e.conn, "SET LOCK_TIMEOUT 2000;\n"+query, f)
}

// lookSettings: which server, and what it and its database are set to.
func (e *examination) lookSettings(ctx context.Context) error {
	var rcsi, autoClose, forced int
	var snapshot, durability, updateability sql.NullString
	var login, user string
	var now time.Time
	before := e.now()
	if err := e.rows(ctx, body("examine_settings"), func(rows *sql.Rows) error {
		return rows.Scan(&rcsi, &snapshot, &durability, &autoClose, &updateability, &login, &user, &now, &forced)
	}); err != nil {
		return err
	}
	took := e.now().Sub(before)
	e.login = login + ", user " + user
	e.AddInfo("server", fmt.Sprintf("SQL Server %s at %s, database %s at compatibility level %d, as login %s",
		e.server.version, e.place, e.server.name, e.server.level, e.login))
	if updateability.Valid && updateability.String != "READ_WRITE" {
		e.AddError("server", "this database takes no writes here: it is "+updateability.String,
			"name the primary in the url (an availability group's listener, without applicationintent=ReadOnly), or ALTER DATABASE … SET READ_WRITE")
	}
	e.claimForm()
	e.isolation(rcsi == 1)
	e.durability(durability.String)
	if autoClose == 1 {
		e.AddWarning("server", "AUTO_CLOSE is on: the database is closed whenever its last connection is, and opened anew",
			fmt.Sprintf("ALTER DATABASE %s SET AUTO_CLOSE OFF", quoteName(e.server.name)))
	}
	if forced == 1 {
		e.AddWarning("server", "is_parameterization_forced is 1: the server makes parameters of constants, and then no filtered index is found (error 8622). "+
			"By its documentation statements with variables are left alone, as the sidecar's are",
			fmt.Sprintf("if there is an error 8622, ALTER DATABASE %s SET PARAMETERIZATION SIMPLE", quoteName(e.server.name)))
	}
	e.clock(now, before.Add(took/2), took)
	return nil
}

func (e *examination) claimForm() {
	if e.server.babelfish {
		e.AddWarning("server", "Babelfish is not supported: no run there has shown that the sidecar works on it", "use a SQL Server, or PostgreSQL and the sidecar's backend for it")
		e.AddInfo("claim", "claims pick their rows and look at the state once more when they take them: "+
			"Babelfish passes over the hints for locks, so two hosts that want the same row wait for each other, and one of them picks again")
		return
	}
	e.AddInfo("claim", "claims lock their rows with UPDLOCK, READPAST (every supported version has them), and look at the state once more when they take them")
}

func (e *examination) isolation(rcsi bool) {
	if rcsi {
		e.AddInfo("isolation", "READ_COMMITTED_SNAPSHOT is on: peek, stats and counts see every committed row and do not wait for open transactions; claims still lock rows (READCOMMITTEDLOCK)")
		return
	}
	if e.server.babelfish {
		return
	}
	e.AddWarning("isolation", "READ_COMMITTED_SNAPSHOT is off: counts, peeks and `stats` leave out the jobs that a transaction has locked at that moment",
		fmt.Sprintf("ALTER DATABASE %s SET READ_COMMITTED_SNAPSHOT ON, when nobody is connected, if the database's other programs may read so", quoteName(e.server.name)))
}

func (e *examination) durability(set string) {
	switch set {
	case "FORCED":
		e.AddWarning("durability", "DELAYED_DURABILITY is FORCED: a commit is answered before it is on disk, and the last of them are lost in a crash",
			fmt.Sprintf("ALTER DATABASE %s SET DELAYED_DURABILITY = DISABLED, if that is not wanted", quoteName(e.server.name)))
	case "ALLOWED":
		e.AddInfo("durability", "DELAYED_DURABILITY is ALLOWED, and the sidecar does not ask for it: its commits are on disk when they are answered")
	default:
		e.AddInfo("durability", "a commit is on disk when it is answered")
	}
}

// clock compares the database's clock with this host's. Every instant is the
// database's: a difference harms nobody but who reads them.
func (e *examination) clock(theirs, ours time.Time, took time.Duration) {
	apart := theirs.Sub(ours)
	if apart.Abs() <= took/2+clockApart {
		e.AddInfo("clock", fmt.Sprintf("the database's clock and this host's are at most %v apart", max(apart.Abs(), took).Round(time.Millisecond)))
		return
	}
	way := "ahead of"
	if apart < 0 {
		way = "behind"
	}
	e.AddWarning("clock", fmt.Sprintf("the database's clock is %v %s this host's; instants of jobs are the database's", apart.Abs().Round(time.Millisecond), way),
		"set both by the same time server, so that instants in logs and jobs can be compared")
}

// lookSchema: are the tables there, and of this version?
func (e *examination) lookSchema(ctx context.Context) error {
	version, err := e.describe(ctx, e.conn)
	var said mssql.Error
	schema := quoteName(e.o.Schema)
	switch {
	case errors.As(err, &said) && said.Number == 229:
		e.AddError("rights", fmt.Sprintf("login %s may not read %s.qsidecar_meta", e.login, schema),
			"have somebody with the right run the GRANTs that `qsidecar migrate --print` ends with")
		return nil
	case errors.As(err, &said), err != nil && broken(err):
		return err
	case err != nil:
		e.AddError("schema", err.Error(), "see the end of that sentence")
	case version == 0:
		e.AddInfo("schema", fmt.Sprintf("there are no tables in schema %s, or none that this login may see: serve or `qsidecar migrate` makes them", schema))
	case version < len(migrations):
		e.AddInfo("schema", fmt.Sprintf("the tables in schema %s are of version %d: serve or `qsidecar migrate` will bring them to %d", schema, version, len(migrations)))
	default:
		e.AddInfo("schema", fmt.Sprintf("the tables in schema %s are there, of version %d", schema, version))
	}
	e.version = version
	return nil
}

var grant = regexp.MustCompile(`(?m)^GRANT ([A-Z, ]+) ON (\S+) TO`)

// lookRights: may this login do what a sidecar does? Where tables are missing: make them?
func (e *examination) lookRights(ctx context.Context) error {
	var rows []string
	add := func(name, class, need string) {
		rows = append(rows, fmt.Sprintf("  (%s, '%s', '%s')", quoteText(name), class, need))
	}
	if e.version < len(migrations) {
		for _, need := range []string{"CREATE TABLE", "CREATE FUNCTION", "CREATE SCHEMA"} {
			add(e.server.name, "DATABASE", need)
		}
	}
	if e.version > 0 {
		for _, m := range grant.FindAllStringSubmatch(in(e.o.Schema, rights), -1) {
			if e.version < 2 && strings.HasSuffix(m[2], ".qsidecar_leases") {
				continue // version 2 makes it
			}
			for need := range strings.SplitSeq(m[1], ", ") {
				add(m[2], "OBJECT", need)
			}
		}
	}
	var lacks []string
	if err := e.rows(ctx, strings.Replace(body("examine_rights"), "{rights}", strings.Join(rows, ",\n"), 1), func(rows *sql.Rows) error {
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
	case len(lacks) > 0 && e.version < len(migrations):
		e.AddError("rights", fmt.Sprintf("tables are to be made, and login %s lacks: %s", e.login, strings.Join(lacks, "; ")),
			"have somebody with the rights run what `qsidecar migrate --print` prints")
	case len(lacks) > 0:
		e.AddError("rights", fmt.Sprintf("login %s lacks: %s", e.login, strings.Join(lacks, "; ")),
			"have somebody with the right run the GRANTs that `qsidecar migrate --print` ends with")
	default:
		e.AddInfo("rights", "login "+e.login+" has all rights that a sidecar needs")
	}
	return nil
}

var createIndex = regexp.MustCompile(`CREATE (?:UNIQUE )?INDEX (\w+)`)

func (e *examination) lookIndexes(ctx context.Context) error {
	there := map[string]bool{} // whether it is of use
	if err := e.rows(ctx, in(e.o.Schema, body("examine_indexes")), func(rows *sql.Rows) error {
		var name string
		var disabled bool
		err := rows.Scan(&name, &disabled)
		there[name] = !disabled
		return err
	}); err != nil {
		return err
	}
	missing := []string{}
	for _, m := range migrations[:min(e.version, len(migrations))] {
		for _, found := range createIndex.FindAllStringSubmatch(m, -1) {
			behind := func(name string) bool { return strings.HasPrefix(name, found[1]) } // Babelfish's hash
			if !there[found[1]] && !(e.server.babelfish && slices.ContainsFunc(slices.Collect(maps.Keys(there)), behind)) {
				missing = append(missing, found[1])
			}
		}
	}
	if len(missing) > 0 {
		e.AddError("indexes", "these indexes are missing or disabled, and every statement names the one that it needs: "+strings.Join(missing, ", "),
			"make them again: `qsidecar migrate --print` has them, and does nothing about what is there; a disabled one needs ALTER INDEX … REBUILD")
	}
	return nil
}

func (e *examination) lookTriggers(ctx context.Context) error {
	return e.rows(ctx, in(e.o.Schema, body("examine_triggers")), func(rows *sql.Rows) error {
		var name string
		var instead bool
		err := rows.Scan(&name, &instead)
		if instead {
			e.AddError("triggers", fmt.Sprintf("the trigger %s is INSTEAD OF what the sidecar does to its jobs", name), "drop it, or make it an AFTER trigger")
		} else {
			e.AddInfo("triggers", fmt.Sprintf("the trigger %s runs with each of the statements that it is for; what it raises is a job's refusal", name))
		}
		return err
	})
}

// lookClaim: the plan of the real claim.
func (e *examination) lookClaim(ctx context.Context) error {
	if e.server.babelfish {
		return nil // it shows none in this way
	}
	queue := "any"
	if len(e.queues) > 0 {
		queue = e.queues[0].Queue
	}
	xml, err := e.showplan(ctx, queue)
	if err != nil {
		return err
	}
	faults, seeks, err := claimFaults(xml)
	switch {
	case err != nil:
		e.AddInfo("plan", "the plan of the claim cannot be read: "+err.Error())
	case len(faults) > 0:
		e.AddError("plan", "the claim's plan is not the one it was written for: "+strings.Join(faults, "; "),
			"see that the index qsidecar_ready is as `qsidecar migrate --print` makes it, and tell qsidecar's authors")
	default:
		e.AddInfo("plan", fmt.Sprintf("the claim seeks in the index qsidecar_ready, in its order, in each of %d statements, and takes its rows by primary key", seeks))
	}
	return nil
}

// showplan asks for the plan of the claim. Nothing is carried out.
func (e *examination) showplan(ctx context.Context, queue string) (xml string, err error) {
	return e.showplanOf(ctx, e.conn, e.claimStatement(queue))
}
