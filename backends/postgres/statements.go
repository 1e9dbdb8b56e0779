package postgres

import (
	"embed"
	"fmt"
	"strconv"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/postgres/migrate"
)

// sqlFiles hold the statements: "-- name: X" precedes the text of X, and "-- fragment: X"
// precedes the text that replaces {X}.
//
//go:embed sql/*.sql
var sqlFiles embed.FS

// statements are the statements of sqlFiles with the schema's name inserted.
//
// The cost of a statement must follow from its text, and not from the server's estimates about
// the tables. Plans are kept, and a table that was empty when its statistics were taken can hold
// millions of rows a minute later. So a statement reads a table by `id = ANY(array)`, in the
// order of an index with a LIMIT, or by a LATERAL query with a LIMIT. It never joins: the
// server could reverse a join, or read the whole table. The values for each row come from
// arrays sorted by id, and width_bucket finds their index.
type statements struct {
	begin, beginRead, unsynced, unsyncedClaim, status, statusOfOne, statusOfMany                                                  string
	insert, insertKeyed, keyed                                                                                                    string
	ack, deliver, lock, findLocked, findLockedKeys, deleteDone, endClaims, renewClaims                                            string
	claim, claimLean, claimLIFO, claimExcept, claimLIFOExcept, bury, probe, owners                                                string
	join, renew, leave                                                                                                            string
	look, lookKeys, promote, lockDue, lockLost                                                                                    string
	findScheduled, findExpired, markDead, forget, pruneJobs, pruneKeys                                                            string
	claimedBy, stats, queuesReady, queuesScheduled, queuesFinished, queuesClaimed, queuesPaused, oldestOf, chosen, view, failures string
	place, keyHolder                                                                                                              string
	peekReady, peekScheduled, peekClaimed, peekDone, peekNewest                                                                   string
	retryFrom, retry, change, delete, lockClaimed                                                                                 string
	keysTaken, keysTwice                                                                                                          string
	pause, resume, anyReady                                                                                                       string
	count, purge                                                                                                                  map[backends.State]string
}

// load reads sqlFiles and inserts the fragments.
func load() map[string]string {
	texts, fragments := map[string]string{}, map[string]string{
		"max_version": strconv.Itoa(migrate.Latest), "watchers": strconv.Itoa(backends.Watchers), "in_time": strconv.FormatFloat(backends.InTime, 'g', -1, 64),
		"due_within": strconv.FormatInt(core.DueWithin.Milliseconds(), 10),
	}
	for _, file := range []string{"write", "claim", "maintain", "operator"} {
		b, err := sqlFiles.ReadFile("sql/" + file + ".sql")
		if err != nil {
			panic(err) // impossible: the file is embedded
		}
		into, name := texts, ""
		for line := range strings.Lines(string(b)) {
			if n, ok := strings.CutPrefix(line, "-- name: "); ok {
				into, name = texts, strings.TrimSpace(n)
			} else if n, ok := strings.CutPrefix(line, "-- fragment: "); ok {
				into, name = fragments, strings.TrimSpace(n)
			} else if !strings.HasPrefix(line, "--") {
				into[name] += line
			}
		}
	}
	for range 3 { // a fragment can contain others
		for name := range texts {
			for f, text := range fragments {
				texts[name] = strings.ReplaceAll(texts[name], "{"+f+"}", strings.TrimSpace(text))
			}
		}
	}
	return texts
}

// except leaves rows out of a claim.
const except = " AND j.id <> ALL($24::bigint[])"

func render(schema string) *statements {
	texts := load()
	// get returns a statement. pairs are placeholders, each followed by its replacement.
	get := func(name string, pairs ...string) string {
		text, ok := texts[name]
		if !ok {
			panic(fmt.Sprintf("sql: there is no statement %q", name))
		}
		for i := 0; i < len(pairs); i += 2 {
			text = strings.ReplaceAll(text, "{"+pairs[i]+"}", pairs[i+1])
		}
		return in(schema, strings.TrimSpace(text))
	}
	ofState := func(name string, state backends.State) string {
		where, order := index(state)
		first, second, _ := strings.Cut(order, ", ")
		of := "timestamptz"
		if state == backends.StateReady {
			of = "int"
		}
		return get(name, "state", string(state), "where", where, "order", order, "first", first, "second", second, "type", of)
	}
	each := func(name string) map[backends.State]string {
		m := map[backends.State]string{}
		for _, state := range states {
			m[state] = ofState(name, state)
		}
		return m
	}
	count := each("count")
	var counts []string
	for _, state := range states {
		counts = append(counts, "("+count[state]+")")
	}
	return &statements{
		begin: get("begin"), beginRead: get("begin_read"), unsynced: get("unsynced"), unsyncedClaim: get("unsynced_claim"),
		status: get("status"), statusOfOne: get("status_of_one"), statusOfMany: get("status_of_many"),
		insert: get("insert"), insertKeyed: get("insert_keyed"), keyed: get("keyed"),
		ack: get("ack"), deliver: get("deliver"), lock: get("lock"), findLocked: get("find_locked"), findLockedKeys: get("find_locked_keys"), deleteDone: get("delete_done"),
		endClaims: get("end_claims"), renewClaims: get("renew_claims"),
		claim: get("claim", "except", ""), claimLean: get("claim_lean"), claimLIFO: get("claim_lifo", "except", ""),
		claimExcept: get("claim", "except", except), claimLIFOExcept: get("claim_lifo", "except", except),
		bury: get("bury"), probe: get("probe"), owners: get("owners"),
		join: get("join"), renew: get("renew"), leave: get("leave"), claimedBy: get("claimed_by"),
		look: get("look"), lookKeys: get("look_keys"), promote: get("promote"), lockDue: get("lock_due"), lockLost: get("lock_lost"),
		findScheduled: get("find_scheduled"), findExpired: get("find_expired"),
		markDead: get("mark_dead"), forget: get("forget"), pruneJobs: get("prune_jobs"), pruneKeys: get("prune_keys"),
		queuesFinished: get("queues_finished"), queuesClaimed: get("queues_claimed"), queuesPaused: get("queues_paused"),
		chosen: get("chosen"), view: get("view"), failures: get("failures"), place: get("place"), keyHolder: get("key_holder"),
		peekReady: get("peek_ready"), peekScheduled: get("peek_scheduled"), peekClaimed: get("peek_claimed"), peekDone: get("peek_done"), peekNewest: get("peek_newest"),
		keysTaken: get("keys_taken"), keysTwice: get("keys_twice"),
		change: get("change"), delete: get("delete"), lockClaimed: get("lock_claimed"),
		pause: get("pause"), resume: get("resume"), anyReady: get("any_ready"),
		count: count, purge: each("purge"),
		stats: get("stats", "counts", strings.Join(counts, ",\n  "), "queue", "$1"), oldestOf: get("oldest_of", "queue", "x.queue"),
		queuesReady: ofState("queues", backends.StateReady), queuesScheduled: ofState("queues", backends.StateScheduled),
		retry:     get("retry", "ids", "id = ANY($2::bigint[])"),
		retryFrom: get("retry", "ids", "finished_at IS NOT NULL AND (finished_at, id) > ($2::timestamptz, $3::bigint) ORDER BY finished_at, id LIMIT $4"),
	}
}

var states = []backends.State{backends.StateReady, backends.StateScheduled, backends.StateClaimed, backends.StateDone, backends.StateDead}

// index returns the condition and the order of the rows of a state. The condition repeats the text of
// the state's partial index: with a parameter instead, the server wouldn't use the index.
func index(state backends.State) (where, order string) {
	switch state {
	case backends.StateReady:
		return "state = 'ready'", "-priority::int, position"
	case backends.StateScheduled:
		return "state = 'scheduled'", "run_at, id"
	case backends.StateClaimed:
		return "state = 'claimed'", "claimed_at, id"
	}
	return "finished_at IS NOT NULL AND state = '" + string(state) + "'", "finished_at, id"
}
