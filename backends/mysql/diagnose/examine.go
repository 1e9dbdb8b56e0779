package diagnose

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/checks"
	"github.com/qsidecar/qsidecar/backends/mysql"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/plan"
	"github.com/qsidecar/qsidecar/backends/mysql/migrate"
)

// examination is one call of Examine. It sends only SELECT, SHOW, EXPLAIN and SET SESSION.
type examination struct {
	checks.Examination
	mysql.Setup
	engine  *Engine
	info    backends.Info
	session mysql.Session
	queues  []backends.Policy

	user string
	vars map[string]string // the server's settings
}

// Examine implements backends.Examiner.
func (x *Engine) Examine(ctx context.Context, queues []backends.Policy) (found []backends.Finding, err error) {
	err = x.Session(ctx, func(ctx context.Context, s mysql.Session) error {
		e := &examination{engine: x, Setup: x.Setup(), info: x.Info(), session: s, queues: queues}
		err := e.run(ctx)
		found = e.Findings
		return err
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

func (e *examination) run(ctx context.Context) error {
	return e.Run(ctx, []checks.Check{
		{Topic: "server", Run: e.checkServer},
		{Topic: "cluster", Run: e.checkCluster},
		{Topic: "cluster", Run: e.checkHosts},
		{Topic: "schema", Run: e.checkSchema},
		{Topic: "rights", Run: e.checkRights, NeedsTables: true},
		{Topic: "triggers", Run: e.checkTriggers, NeedsTables: true},
		{Topic: "claim", Run: e.checkClaim, NeedsTables: true},
		{Topic: "maintenance", Run: e.checkOverdue, NeedsTables: true},
		{Topic: "isolation", Run: e.checkIsolation},
		{Topic: "binlog", Run: e.checkBinlog},
		{Topic: "durability", Run: e.checkDurability},
		{Topic: "disk", Run: e.checkDisk},
		{Topic: "packets", Run: e.checkPackets},
		{Topic: "transactions", Run: e.checkTransactions},
		{Topic: "connections", Run: e.checkConnections},
		{Topic: "clock", Run: e.checkClock},
	}, func(_ checks.Check, err error) *backends.Finding {
		if !fromServer(err) || mysql.EndsSession(err) {
			return nil
		}
		return &backends.Finding{Text: err.Error(), Fix: "run the check as a user that may, if you want to know"}
	})
}

func fromServer(err error) bool { return mysql.ErrorCode(err) != 0 }

func isCode(err error, codes ...uint16) bool { return slices.Contains(codes, mysql.ErrorCode(err)) }

// checkServer names the server and checks that it takes writes. It also reads the settings.
func (e *examination) checkServer(ctx context.Context) error {
	vars, err := e.session.Rows(ctx, "SHOW GLOBAL VARIABLES")
	if err != nil {
		return err
	}
	e.vars = map[string]string{}
	for _, v := range vars {
		e.vars[v[0].String] = v[1].String
	}
	user, err := e.session.Rows(ctx, "SELECT CURRENT_USER()")
	if err != nil {
		return err
	}
	e.user = user[0][0].String
	e.AddInfo("server", fmt.Sprintf("%s at %s, as user %s", e.Server, e.info.Address, e.user))
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

// checkSchema checks that the tables exist and are of this version.
func (e *examination) checkSchema(ctx context.Context) error {
	meta, err := migrate.Read(ctx, e.session, e.info.Address)
	version := meta.Version
	e.engine.database = meta.Database
	switch {
	case fromServer(err):
		e.AddError("rights", fmt.Sprintf("user %s can't read qsidecar_meta: %v", e.user, err), "grant what `qsidecar migrate --print` ends with")
		return nil
	case err != nil && e.session.Broken():
		return err
	case err != nil:
		e.AddError("schema", err.Error(), "follow the advice at the end of that sentence")
	case version == 0:
		e.AddInfo("schema", fmt.Sprintf("the tables are missing in %s: serve or `qsidecar migrate` will create them, if user %s has the right; otherwise "+checks.OwnerMigrates+"", e.info.Address, e.user))
	default:
		e.TablesFound(version, migrate.Latest, "", ", if user "+e.user+" has the right")
	}
	if version < migrate.Latest {
		return nil // older tables lack what the other checks read
	}
	e.Version = version
	others, err := e.session.Rows(ctx, "SELECT table_name, engine FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name LIKE 'qsidecar\\_%' AND engine <> 'InnoDB'")
	for _, t := range others {
		e.AddError("schema", fmt.Sprintf("the table %s is of the engine %s, which has no transactions", t[0].String, t[1].String), fmt.Sprintf("ALTER TABLE %s ENGINE = InnoDB", migrate.QuoteName(t[0].String)))
	}
	return err
}

// checkRights finds the rights that `migrate --print` grants and this user lacks.
func (e *examination) checkRights(ctx context.Context) error {
	missing, err := e.session.MissingRights(ctx)
	if err != nil {
		return err
	}
	var lacking, grants []string
	for _, m := range missing {
		lacking, grants = append(lacking, strings.Join(m.Rights, ", ")+" ON "+m.Object), append(grants, m.Grant())
	}
	if len(lacking) == 0 {
		e.AddInfo("rights", fmt.Sprintf("user %s has all that a sidecar needs on its tables", e.user))
		return nil
	}
	e.AddError("rights", fmt.Sprintf("user %s lacks %s", e.user, strings.Join(lacking, "; ")), strings.Join(grants, "; "))
	return nil
}

// checkTriggers finds foreign triggers, which run with each change.
func (e *examination) checkTriggers(ctx context.Context) error {
	triggers, err := e.session.Rows(ctx, "SELECT trigger_name, event_object_table FROM information_schema.triggers WHERE event_object_schema = DATABASE() AND event_object_table LIKE 'qsidecar\\_%' ORDER BY 1")
	for _, t := range triggers {
		e.ForeignTrigger(fmt.Sprintf("the trigger %s on %s", t[0].String, t[1].String), "raises an error that change is refused", "a CHECK")
	}
	return err
}

// checkOverdue finds jobs that maintenance had to change long ago. It reads the claimed jobs, which are as many as workers have,
// and the scheduled ones that are due.
func (e *examination) checkOverdue(ctx context.Context) error {
	const jobs = "qsidecar_jobs j FORCE INDEX (qsidecar_segments)"
	rows, err := e.session.Rows(ctx, fmt.Sprintf(`SELECT queue, 'claimed', COUNT(*), MIN(id) FROM (
			SELECT id, queue FROM %[1]s WHERE segment >= 'c' AND segment < 'd' AND state = 'claimed' AND (due_at < UTC_TIMESTAMP(6) - INTERVAL 1 MINUTE
				OR lease_ms IS NULL AND owner <> 0 AND claimed_at < UTC_TIMESTAMP(6) - INTERVAL 1 MINUTE
				AND NOT EXISTS (SELECT 1 FROM qsidecar_sidecars h WHERE h.sidecar = j.owner AND NOT h.dead)) LIMIT %[2]d) AS x GROUP BY queue
		UNION ALL SELECT queue, 'scheduled', COUNT(*), MIN(id) FROM (
			SELECT id, queue FROM %[1]s WHERE segment >= 's' AND segment < 't' AND state = 'scheduled' AND run_at < UTC_TIMESTAMP(6) - INTERVAL 1 MINUTE LIMIT %[2]d) AS y GROUP BY queue
		ORDER BY 1, 2`, jobs, checks.MostOverdue))
	if err != nil {
		return err
	}
	for _, r := range rows {
		n, err := strconv.ParseInt(r[2].String, 10, 64)
		if err != nil {
			return err
		}
		e.Overdue(r[0].String, r[1].String, n, r[3].String)
	}
	return nil
}

// checkClaim reports how jobs are claimed, and checks the plan of the claim.
func (e *examination) checkClaim(ctx context.Context) error {
	if e.SkipLocked {
		e.AddInfo("claim", "claims are SELECT … FOR UPDATE SKIP LOCKED and UPDATE by primary key, which this server has")
	} else {
		e.AddWarning("claim", "this server has no SKIP LOCKED (MariaDB has it since 10.6): claims of a queue run one after another, lock its row of qsidecar_queues until they commit, and lock jobs by primary key",
			"you need not do anything; with a newer server several sidecars can claim from one queue at the same time")
	}
	p := backends.Policy{Queue: "mail"}
	if len(e.queues) > 0 {
		p = e.queues[0]
	}
	rows, err := e.session.ExplainClaim(ctx, p)
	faults := plan.Faults(rows, p.LIFO)
	switch {
	case isCode(err, 1176):
		e.AddError("plan", "the index qsidecar_segments is missing: nothing can be claimed", "ALTER TABLE qsidecar_jobs ADD INDEX qsidecar_segments (segment, urgency, sort_key, id)")
	case err != nil:
		return err
	case len(faults) > 0:
		e.AddError("plan", fmt.Sprintf("the plan of the claim of queue %s has %s: its cost grows with the table", p.Queue, strings.Join(faults, ", ")),
			"compare the index qsidecar_segments with what `qsidecar migrate --print` prints; ANALYZE TABLE qsidecar_jobs")
	default:
		e.AddInfo("plan", fmt.Sprintf("the claim of queue %s reads the index qsidecar_segments in its order, from where the last one ended: it sorts nothing, and LIMIT stops it", p.Queue))
	}
	return nil
}
