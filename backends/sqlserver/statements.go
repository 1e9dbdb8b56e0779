package sqlserver

import (
	"embed"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
)

// The statements. The comment of each describes it, and declares its parameters and how
// many result sets it returns.
//
//go:embed sql/*.sql
var files embed.FS

// A piece is a part of a batch. Its parameters and variables begin with its own prefix, so
// that different pieces can go into one batch.
//
// The cost of a piece must follow from its text, not from the server's statistics. The server
// keeps plans, and a table that was empty when it created a plan can hold millions of rows a
// minute later. So there are two ways to reach a table:
//   - through a named index, by a seek (FORCESEEK), in the index's own order, with a TOP if
//     the number of rows has no other bound;
//   - from a list, row by row (LOOP JOIN, FORCE ORDER), by the primary key.
//
// So nothing is gained by a new plan when the statistics are old, as after every few hundred
// changes of the jobs (KEEPFIXED PLAN):
// https://learn.microsoft.com/sql/t-sql/queries/hints-transact-sql-query
//
// A list is a table variable with a primary key. Its columns have the table's types and
// collations, so that nothing is converted on the table's side. It has at most a thousand
// rows. The server escalates to a lock of the whole table only at many more.
type piece struct {
	name   string
	params []param
	sets   int // result sets
	text   string

	adopted bool // for adopted tables: it can use the declarations of knowing
}

type param struct{ name, kind string }

// statements are all statements, with the schema's name in them.
type statements struct {
	head, settings, begin                  string
	greet                                  string
	mark, seal                             *piece
	store, storeKeyed                      *piece
	ack, deliver                           *piece
	lock, findLocked, findLockedKeys       *piece
	endClaims, renewClaims                 *piece
	claim, claimNewest, bury, host, probe  *piece
	claimExcept, claimNewestExcept         *piece
	join, renew, leave, claimedBy          *piece
	around, promote, lockDue, lockLost     *piece
	promoteOnly, pruneOnly                 *piece
	findScheduled, findExpired             *piece
	markDead, forget, pruneJobs, pruneKeys *piece
	queues, stats, place, chosen, view     *piece
	keyHolder, peekReady, peekScheduled    *piece
	peekClaimed, peekFinished, peekNewest  *piece
	retryIDs, retryFrom, keysTaken         *piece
	change, delete, pause, resume          *piece
	zone, line, brief, describe            *piece
	count, purge                           map[backends.State]*piece
	all                                    []*piece
}

// claimAlone is the condition for backends.Job.Alone.
const claimAlone = "j.losses > 0 AND j.attempts + 1 >= COALESCE(j.max_attempts, p.max_attempts) AND s.lease_ms IS NULL"

// claimTail completes the end of a claim. The end uses three expressions more than once: whether the job must be alone,
// whether the delivery does not count yet, and the deadline of the run.
var claimTail = strings.NewReplacer(
	"{alone}", claimAlone,
	"{uncharged}", "CASE WHEN (s.prefetched = 1 OR "+claimAlone+") AND j.prefetch_losses < COALESCE(j.max_attempts, p.max_attempts) THEN 1 ELSE 0 END",
	"{deadline}", "DATEADD(second, CONVERT(int, COALESCE(j.timeout_ms, p.timeout_ms) / 1000), "+
		"DATEADD(millisecond, CONVERT(int, COALESCE(j.timeout_ms, p.timeout_ms) % 1000), @now))",
).Replace(body("claim_tail"))

// limitEnd returns when the time limit of a claim that continues ends. If the job was prefetched, it begins ago
// milliseconds before now.
func limitEnd(ago string) string {
	left := "DATEDIFF_BIG(millisecond, j.claimed_at, j.deadline) - " + ago
	return "CASE WHEN j.due_at IS NOT NULL OR j.deadline IS NULL THEN j.deadline WHEN " + left + " <= 0 THEN @now" +
		" ELSE DATEADD(second, CONVERT(int, (" + left + ") / 1000), DATEADD(millisecond, CONVERT(int, (" + left + ") % 1000), @now)) END"
}

// fragments are the parts that several pieces share.
var fragments = strings.NewReplacer(
	"{claim_head}", body("claim_head"), "{claim_tail}", claimTail, "{beat_tail}", body("beat_tail"),
	"{remove_tail}", body("remove_tail"), "{remove_keys}", body("remove_keys"), "{promote_tail}", body("promote_tail"), "{deliver_end}", limitEnd("d.ago_ms"), "{renewal_end}", limitEnd("r.ago_ms"), "{retry_head}", body("retry_head"), "{retry_tail}", body("retry_tail"),
	// the assignments that end a claim
	"{unclaimed}", `prefetched = 0, token_sidecar = NULL, token_number = NULL, owner = NULL, lease_ms = NULL,
  deadline = NULL, due_at = NULL, claimed_at = NULL, worker = NULL`,
	// the columns of a claimed row that scanRow reads
	"{claim}", `j.id, j.queue, COALESCE(j.[key], N'') AS name, j.priority, j.position, j.fence,
  j.token_sidecar, j.token_number, j.owner, COALESCE(j.lease_ms, 0) AS lease_ms, j.attempts, j.claim_max, j.losses, j.backoff_ms, j.backoff_max_ms,
  j.prefetched, j.prefetch_losses, CASE WHEN j.retention_done_ms IS NULL THEN 0 ELSE 1 END AS kept, CASE WHEN j.worker IS NULL THEN 0 ELSE 1 END AS has_worker`,
)

// raw returns the text of a file.
func raw(name string) string {
	b, err := files.ReadFile("sql/" + name + ".sql")
	if err != nil {
		panic(err) // impossible: the file is embedded
	}
	return string(b)
}

// body returns the text of a file without its comments.
func body(name string) string {
	var b strings.Builder
	for line := range strings.Lines(raw(name)) {
		if !strings.HasPrefix(line, "--") && strings.TrimSpace(line) != "" {
			b.WriteString(line)
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func render(schema string) *statements {
	s := &statements{head: in(schema, body("head")), begin: in(schema, body("begin")), greet: body("greet")}
	settings, _, _ := strings.Cut(s.head, "DECLARE ")
	s.settings = strings.TrimSuffix(settings, "\n")
	r := func(file string, replace ...string) *piece {
		p := &piece{name: file, text: in(schema, fragments.Replace(strings.NewReplacer(replace...).Replace(body(file))))}
		declare(p, raw(file))
		s.all = append(s.all, p)
		return p
	}
	each := func(file string, states ...backends.State) map[backends.State]*piece {
		m := map[backends.State]*piece{}
		for _, state := range states {
			w := of[state]
			m[state] = r(file, "{index}", w.index, "{where}", w.where, "{order}", w.order)
			m[state].name += "_" + string(state)
		}
		return m
	}
	s.mark, s.seal = r("mark"), r("seal")
	s.store, s.storeKeyed = r("store"), r("store_keyed")
	s.ack, s.deliver, s.lock, s.findLocked, s.findLockedKeys = r("ack"), r("deliver"), r("lock"), r("find_locked"), r("find_locked_keys")
	s.endClaims, s.renewClaims = r("end_claims"), r("renew_claims")
	s.claim, s.claimNewest, s.bury, s.host, s.probe = r("claim"), r("claim_newest"), r("bury"), r("host"), r("probe")
	s.claimExcept, s.claimNewestExcept = s.except(s.claim), s.except(s.claimNewest)
	s.join, s.renew, s.leave, s.claimedBy = r("join"), r("renew"), r("leave"), r("claimed_by")
	s.around, s.promote, s.lockDue, s.lockLost = r("around"), r("promote"), r("lock_due"), r("lock_lost")
	s.promoteOnly, s.pruneOnly, s.findScheduled, s.findExpired = r("promote_only"), r("prune_only"), r("find_scheduled"), r("find_expired")
	s.markDead, s.forget, s.pruneJobs, s.pruneKeys = r("mark_dead"), r("forget"), r("prune_jobs"), r("prune_keys")
	s.queues, s.stats, s.place, s.chosen, s.view = r("queues"), r("stats"), r("place"), r("chosen"), r("view")
	s.peekReady, s.peekScheduled, s.peekClaimed, s.peekFinished = r("peek_ready"), r("peek_scheduled"), r("peek_claimed"), r("peek_finished")
	s.keyHolder, s.peekNewest = r("key_holder"), r("peek_newest")
	s.retryIDs, s.retryFrom, s.keysTaken = r("retry_ids"), r("retry_from"), r("keys_taken")
	s.zone, s.line, s.brief, s.describe = r("adopt_zone"), r("adopt_line"), r("adopt_brief"), r("describe")
	s.describe.adopted, s.brief.adopted = true, true
	s.change, s.delete, s.pause, s.resume = r("change"), r("delete"), r("pause"), r("resume")
	s.count, s.purge = each("count", states...), each("purge", backends.StateReady, backends.StateScheduled, backends.StateDone, backends.StateDead)
	return s
}

// except returns a claim that leaves rows out, which the database refuses to change.
func (s *statements) except(claim *piece) *piece {
	const ready = "j.state = 'ready' AND j.run_at IS NULL AND j.queue = @claim_queue"
	p := *claim
	p.name += "_except"
	p.params = append(slices.Clone(p.params), param{"claim_refused", "nvarchar(max)"})
	p.text = "DECLARE @claim_except TABLE (id bigint NOT NULL PRIMARY KEY);\n" +
		"INSERT INTO @claim_except (id) SELECT x.id FROM OPENJSON(@claim_refused) WITH (id bigint) AS x;\n" +
		strings.ReplaceAll(p.text, ready, ready+" AND NOT EXISTS (SELECT 1 FROM @claim_except AS e WHERE e.id = j.id)")
	s.all = append(s.all, &p)
	return &p
}

// pastLocks are the hints by which a query passes over rows that others have locked.
const pastLocks = ", READPAST, READCOMMITTEDLOCK"

// readVersions lets the statements that count and list jobs read committed row versions. They then do not wait for
// locks. The database must have READ_COMMITTED_SNAPSHOT on.
func (s *statements) readVersions() {
	looks := append(slices.Collect(maps.Values(s.count)), s.stats, s.queues, s.peekReady, s.peekScheduled, s.peekClaimed, s.peekFinished, s.peekNewest)
	for _, p := range looks {
		p.text = strings.ReplaceAll(p.text, pastLocks, "")
	}
}

// declare reads a piece's parameters and sets from its comment.
func declare(p *piece, file string) {
	for line := range strings.Lines(file) {
		words := strings.Fields(line)
		if len(words) < 3 || words[0] != "--" {
			continue
		}
		switch {
		case strings.HasPrefix(words[1], "@"):
			p.params = append(p.params, param{words[1][1:], strings.Join(words[2:], " ")})
		case words[1] == "sets":
			if _, err := fmt.Sscan(words[2], &p.sets); err != nil {
				panic(fmt.Sprintf("%s.sql: %q", p.name, line)) // impossible: a test renders all pieces
			}
		}
	}
}

var states = []backends.State{backends.StateReady, backends.StateScheduled, backends.StateClaimed, backends.StateDone, backends.StateDead}

// of maps a state to the way to find its rows. The conditions are those of a filtered index. The index would not
// match a parameter instead of a constant.
var of = map[backends.State]struct{ index, where, order string }{
	backends.StateReady:     {"qsidecar_ready", "j.state = 'ready' AND j.run_at IS NULL", "j.priority DESC, j.position"},
	backends.StateScheduled: {"qsidecar_delayed", "j.run_at IS NOT NULL", "j.run_at, j.id"},
	backends.StateClaimed:   {"qsidecar_owned", "j.state = 'claimed'", "j.claimed_at, j.id"},
	backends.StateDone:      {"qsidecar_finished", "j.finished_at IS NOT NULL AND j.state = 'done'", "j.finished_at, j.id"},
	backends.StateDead:      {"qsidecar_finished", "j.finished_at IS NOT NULL AND j.state = 'dead'", "j.finished_at, j.id"},
}
