package mysql

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
)

var _ backends.Examiner = (*Store)(nil)

// examination is one Examine. It sends nothing but SELECT, SHOW and EXPLAIN.
type examination struct {
	*Store
	backends.Findings
	conn   *conn
	queues []backends.Policy

	user    string
	version int // of the tables; 0: there are none, or none that can be read
	vars    map[string]string
}

const (
	clockApart  = 2 * time.Second  // of this host and the server, worth advice
	oldSnapshot = 10 * time.Minute // the age of a transaction that is
)

// Examine implements backends.Examiner.
func (s *Store) Examine(ctx context.Context, queues []backends.Policy) ([]backends.Finding, error) {
	ctx, done := s.Bound(ctx)
	defer done()
	c, err := s.dial(ctx, nil)
	if err != nil {
		return nil, s.Outcome(ctx, err)
	}
	defer c.close()
	e := &examination{Store: s, conn: c, queues: queues}
	for _, l := range []struct {
		topic  string
		f      func(ctx context.Context) error
		tables bool // it is about the tables: left out where there are none
	}{
		{"server", e.lookServer, false},
		{"schema", e.lookSchema, false},
		{"rights", e.lookRights, true},
		{"triggers", e.lookTriggers, true},
		{"claim", e.lookClaim, true},
		{"isolation", e.lookIsolation, false},
		{"binlog", e.lookBinlog, false},
		{"durability", e.lookDurability, false},
		{"disk", e.lookDisk, false},
		{"packets", e.lookPackets, false},
		{"transactions", e.lookTransactions, false},
		{"connections", e.lookConnections, false},
		{"clock", e.lookClock, false},
	} {
		if l.tables && e.version == 0 {
			continue
		}
		before := len(e.Findings)
		if err := l.f(ctx); err != nil && (!fromServer(err) || endsSession(err) || ctx.Err() != nil) {
			return nil, s.Outcome(ctx, err)
		} else if err != nil {
			e.Findings = e.Findings[:before]
			e.Findings = append(e.Findings, backends.Finding{Severity: backends.SeverityInfo, Topic: l.topic,
				Text: fmt.Sprintf("this could not be looked at: %v", err), Fix: "run the check as a user that may, if you want to know"})
		}
	}
	return e.Findings, nil
}

// rows are the answers of a query as texts, NULL as "".
func (e *examination) rows(ctx context.Context, sql string, args ...any) (rows [][]string, err error) {
	err = e.conn.query(ctx, sql, args, []func(r *result) error{func(r *result) error {
		for {
			ok, err := r.next()
			if err != nil || !ok {
				return err
			}
			row := make([]string, len(r.row))
			for i, v := range r.row {
				switch v := v.(type) {
				case nil:
				case []byte:
					row[i] = string(v)
				default:
					row[i] = fmt.Sprint(v)
				}
			}
			rows = append(rows, row)
		}
	}})
	return rows, err
}

// lookServer: which server, and may it be written to? It also reads its settings.
func (e *examination) lookServer(ctx context.Context) error {
	vars, err := e.rows(ctx, "SHOW GLOBAL VARIABLES")
	if err != nil {
		return err
	}
	e.vars = map[string]string{}
	for _, v := range vars {
		e.vars[v[0]] = v[1]
	}
	user, err := e.rows(ctx, "SELECT CURRENT_USER()")
	if err != nil {
		return err
	}
	e.user = user[0][0]
	e.AddInfo("server", fmt.Sprintf("%s at %s, as user %s", e.server.name(), e.place, e.user))
	if e.on("super_read_only") || e.on("read_only") || e.on("innodb_read_only") {
		e.AddError("server", "this server is read-only, as replicas are", "name the primary in the url")
	}
	if e.on("wsrep_on") {
		e.AddWarning("server", "this server is a node of a Galera cluster: claims on several nodes meet only when they commit, and one of them is then tried again",
			"have all sidecars use the same node, as long as it is up")
	}
	return nil
}

func (e *examination) on(name string) bool {
	v := strings.ToUpper(e.vars[name])
	return v == "ON" || v == "1"
}

// lookSchema: are the tables there, and of this version?
func (e *examination) lookSchema(ctx context.Context) error {
	version, err := e.meta(ctx, e.conn)
	switch {
	case fromServer(err):
		e.AddError("rights", fmt.Sprintf("user %s may not read qsidecar_meta: %v", e.user, err), "grant what `qsidecar migrate --print` ends with")
		return nil
	case err != nil && e.conn.bad:
		return err
	case err != nil:
		e.AddError("schema", err.Error(), "see the end of that sentence")
	case version == 0:
		e.AddInfo("schema", fmt.Sprintf("the tables are missing in %s: serve or `qsidecar migrate` will make them, if user %s may; else have somebody run what `qsidecar migrate --print` prints", e.place, e.user))
	case version < len(migrations):
		e.AddInfo("schema", fmt.Sprintf("the tables are of version %d: serve or `qsidecar migrate` will bring them to %d, if user %s may", version, len(migrations), e.user))
	case version > len(migrations):
		e.AddInfo("schema", fmt.Sprintf("the tables are of version %d, which is newer than this program's (%d) and fit for it", version, len(migrations)))
	default:
		e.AddInfo("schema", fmt.Sprintf("the tables are there, of version %d", version))
	}
	e.version = version
	if version == 0 {
		return nil
	}
	others, err := e.rows(ctx, "SELECT table_name, engine FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name LIKE 'qsidecar\\_%' AND engine <> 'InnoDB'")
	for _, t := range others {
		e.AddError("schema", fmt.Sprintf("the table %s is of the engine %s, which has no transactions", t[0], t[1]), fmt.Sprintf("ALTER TABLE %s ENGINE = InnoDB", quoteName(t[0])))
	}
	return err
}

// ours are the tables, and what a sidecar does with each.
var ours = []string{"qsidecar_jobs", "qsidecar_failures", "qsidecar_expiring", "qsidecar_keys", "qsidecar_hosts", "qsidecar_queues", "qsidecar_commits", "qsidecar_leases"}

// lookRights has the server explain statements, for which it wants the same rights
// as for running them.
func (e *examination) lookRights(ctx context.Context) error {
	var lacking []string
	for _, table := range ours {
		if table == "qsidecar_leases" && e.version < 2 {
			continue // serve will make it
		}
		columns, err := e.rows(ctx, "SELECT column_name FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = ? ORDER BY ordinal_position LIMIT 1", table)
		if err != nil {
			return err
		}
		if len(columns) == 0 {
			lacking = append(lacking, "any right ON "+table)
			continue
		}
		id := quoteName(columns[0][0])
		for right, sql := range map[string]string{
			"SELECT": "SELECT 1 FROM %[1]s WHERE FALSE", "INSERT": "INSERT INTO %[1]s (%[2]s) VALUES (1)",
			"UPDATE": "UPDATE %[1]s SET %[2]s = 1 WHERE FALSE", "DELETE": "DELETE FROM %[1]s WHERE FALSE",
		} {
			if _, err := e.rows(ctx, "EXPLAIN "+fmt.Sprintf(sql, table, id)); isCode(err, 1142, 1143, 1044) {
				lacking = append(lacking, right+" ON "+table)
			} else if err != nil && !fromServer(err) {
				return err
			}
		}
	}
	if len(lacking) == 0 {
		e.AddInfo("rights", fmt.Sprintf("user %s has all that a sidecar needs on its tables", e.user))
		return nil
	}
	slices.Sort(lacking)
	e.AddError("rights", fmt.Sprintf("user %s lacks %s", e.user, strings.Join(lacking, "; ")),
		fmt.Sprintf("GRANT SELECT, INSERT, UPDATE, DELETE ON %s.* TO the user", quoteName(e.config.DBName)))
	return nil
}

// lookTriggers: others' have a say in each change.
func (e *examination) lookTriggers(ctx context.Context) error {
	triggers, err := e.rows(ctx, "SELECT trigger_name, event_object_table FROM information_schema.triggers WHERE event_object_schema = DATABASE() AND event_object_table LIKE 'qsidecar\\_%' ORDER BY 1")
	for _, t := range triggers {
		e.AddWarning("triggers", fmt.Sprintf("the trigger %s on %s is not the sidecar's: it runs in the sidecar's transactions, and where it raises an error that change is refused", t[0], t[1]),
			"keep it short, and have it refuse nothing but what nobody should do; plain INSERTs alone are better guarded by a CHECK")
	}
	return err
}

// lookClaim: how jobs are claimed, and by which plan.
func (e *examination) lookClaim(ctx context.Context) error {
	if e.server.skips {
		e.AddInfo("claim", "claims are SELECT … FOR UPDATE SKIP LOCKED and UPDATE by primary key, which this server has")
	} else {
		e.AddWarning("claim", "this server has no SKIP LOCKED (MariaDB has it since 10.6): claims of a queue take turns, hold its row of qsidecar_queues until they commit, and lock jobs by primary key",
			"nothing need be done; a newer server lets sidecars claim from one queue at the same time")
	}
	p := backends.Policy{Queue: "mail"}
	if len(e.queues) > 0 {
		p = e.queues[0]
	}
	faults, err := e.claimFaults(ctx, p)
	switch {
	case err != nil && !fromServer(err):
		return err
	case errors.Is(err, errOwn) || isCode(err, 1176):
		e.AddError("plan", "the index qsidecar_lanes is missing: nothing can be claimed", "ALTER TABLE qsidecar_jobs ADD INDEX qsidecar_lanes (lane, urgency, place, id)")
	case err != nil:
		return err
	case len(faults) > 0:
		e.AddError("plan", fmt.Sprintf("the plan of the claim of queue %s has %s: its cost grows with the table", p.Queue, strings.Join(faults, ", ")),
			"compare the index qsidecar_lanes with what `qsidecar migrate --print` prints; ANALYZE TABLE qsidecar_jobs")
	default:
		e.AddInfo("plan", fmt.Sprintf("the claim of queue %s reads the index qsidecar_lanes in its order, from where the last one ended: it sorts nothing, and LIMIT stops it", p.Queue))
	}
	return nil
}

// lanesKey is how many bytes of the index a claim must use at least: lane and urgency.
const lanesKey = 129 + 2 + 1 + 4 + 1

// claimFaults are what is wrong with the plan of the real claim statement.
func (e *examination) claimFaults(ctx context.Context, p backends.Policy) (faults []string, err error) {
	c := &claiming{Claim: backends.Claim{Queues: []backends.Policy{p}, Slots: make([]backends.Slot, 10), MaxBytes: 1 << 22, MaxPayload: 1 << 22}, s: e.Store, seen: map[string]*cursor.Learned{}}
	sql, args := c.statement(p, "urgency = 0")
	if !p.LIFO {
		sql, args = c.statement(p, c.where(p))
	}
	plan, err := e.rows(ctx, "EXPLAIN FORMAT=TRADITIONAL "+sql, args...)
	if err != nil {
		return nil, err
	}
	return planFaults(plan, p.LIFO), nil
}

// fewRows: the table is so small that MySQL does not care how it is read; an empty one
// is walked through. key is where the index stands in EXPLAIN's row, and the number of
// rows is the third behind it.
func fewRows(row []string, key int) bool {
	rows := 0
	if key+3 < len(row) {
		if _, err := fmt.Sscan(row[key+3], &rows); err != nil {
			return false
		}
	}
	return rows > 0 && rows < 100
}

// planFaults reads EXPLAIN's table: its columns are the same ones in both products,
// but for `partitions` and `filtered`.
func planFaults(plan [][]string, lifo bool) (faults []string) {
	for _, row := range plan {
		line := strings.Join(row, " | ")
		key := slices.Index(row, "qsidecar_lanes")
		for i := key + 1; key >= 0 && i < len(row); i++ {
			if row[i] == "qsidecar_lanes" {
				key = i // after possible_keys
			}
		}
		if key < 0 {
			return []string{"no use of the index qsidecar_lanes (" + line + ")"}
		}
		length := 0
		if _, err := fmt.Sscan(row[key+1], &length); err != nil || length < lanesKey {
			faults = append(faults, fmt.Sprintf("only %s bytes of the index in use", row[key+1]))
		}
		if !slices.Contains(row, "range") && !(lifo && slices.Contains(row, "ref")) && !fewRows(row, key) {
			faults = append(faults, "a walk through the index ("+line+")")
		}
		for _, bad := range []string{"filesort", "temporary"} {
			if strings.Contains(line, bad) {
				faults = append(faults, "Using "+bad)
			}
		}
	}
	return faults
}
