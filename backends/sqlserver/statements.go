package sqlserver

import (
	"embed"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/sqltext"
	"github.com/qsidecar/qsidecar/backends/sqlserver/migrate"
)

// sqlFiles hold the statements: see package sqltext. The comment of each declares its parameters, and how many result sets it
// returns.
//
//go:embed sql/*.sql
var sqlFiles embed.FS

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
	greet, behind, draw                    string
	examine                                map[string]string
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
	lockExpired, lockExpiredOnly           *piece
	expire, removeExpired                  *piece
	findScheduled, findExpired             *piece
	markDead, forget, pruneJobs, pruneKeys *piece
	queues, stats, place, chosen, view     *piece
	keyHolder, peekReady, peekScheduled    *piece
	peekClaimed, peekFinished, peekNewest  *piece
	retryIDs, retryFrom                    *piece
	change, delete, pause, resume          *piece
	states, cancelWaiting, noteCancelled   *piece
	cancelled, forgetCancelled             *piece
	addHour, forgetHours, clock, hours     *piece
	lockGates, readGates, passGate         *piece
	lockLimits, setLimits, allLimits       *piece
	noteGroups, noteAll, leaveGroups       *piece
	lockStripes, lockFreeStripes           *piece
	readGroups, lockMembers, changeSlots   *piece
	countReturns, groupSlots, findGroups   *piece
	peekBlocked                            *piece
	zone, line, brief, describe            *piece
	count, purge                           map[backends.State]*piece
	all                                    []*piece
}

func render(schema string) *statements {
	t := sqltext.Read(sqlFiles, "@", map[string]string{"s": migrate.QuoteName(schema)})
	s := &statements{
		head: t.Get("head", ""), begin: t.Get("begin", ""), greet: t.Get("greet", ""), behind: t.Get("behind", ""), draw: t.Get("draw", ""),
		examine: map[string]string{},
	}
	settings, _, _ := strings.Cut(s.head, "DECLARE ")
	s.settings = strings.TrimSuffix(settings, "\n")
	get := func(name string) *piece {
		text, comments := t.Declared(name)
		p := &piece{name: name, text: text}
		declare(p, comments)
		s.all = append(s.all, p)
		return p
	}
	each := func(name string, states ...backends.State) map[backends.State]*piece {
		m := map[backends.State]*piece{}
		for _, state := range states {
			m[state] = get(name + "_" + string(state))
		}
		return m
	}
	s.mark, s.seal = get("mark"), get("seal")
	s.store, s.storeKeyed = get("store"), get("store_keyed")
	s.ack, s.deliver, s.lock, s.findLocked, s.findLockedKeys = get("ack"), get("deliver"), get("lock"), get("find_locked"), get("find_locked_keys")
	s.endClaims, s.renewClaims = get("end_claims"), get("renew_claims")
	s.claim, s.claimNewest, s.bury, s.host, s.probe = get("claim"), get("claim_newest"), get("bury"), get("host"), get("probe")
	s.claimExcept, s.claimNewestExcept = get("claim_except"), get("claim_newest_except")
	s.join, s.renew, s.leave, s.claimedBy = get("join"), get("renew"), get("leave"), get("claimed_by")
	s.around, s.promote, s.lockDue, s.lockLost = get("around"), get("promote"), get("lock_due"), get("lock_lost")
	s.promoteOnly, s.pruneOnly, s.findScheduled, s.findExpired = get("promote_only"), get("prune_only"), get("find_scheduled"), get("find_expired")
	s.lockExpired, s.lockExpiredOnly, s.expire, s.removeExpired = get("lock_expired"), get("lock_expired_only"), get("expire"), get("remove_expired")
	s.markDead, s.forget, s.pruneJobs, s.pruneKeys = get("mark_dead"), get("forget"), get("prune_jobs"), get("prune_keys")
	s.queues, s.stats, s.place, s.chosen, s.view = get("queues"), get("stats"), get("place"), get("chosen"), get("view")
	s.peekReady, s.peekScheduled, s.peekClaimed, s.peekFinished = get("peek_ready"), get("peek_scheduled"), get("peek_claimed"), get("peek_finished")
	s.keyHolder, s.peekNewest = get("key_holder"), get("peek_newest")
	s.retryIDs, s.retryFrom = get("retry_ids"), get("retry_from")
	s.zone, s.line, s.brief, s.describe = get("adopt_zone"), get("adopt_line"), get("adopt_brief"), get("describe")
	s.addHour, s.forgetHours, s.clock, s.hours = get("add_hour"), get("forget_hours"), get("clock"), get("hours")
	s.lockGates, s.readGates, s.passGate = get("lock_gates"), get("read_gates"), get("pass_gate")
	s.noteGroups, s.noteAll, s.leaveGroups = get("note_groups"), get("note_all"), get("leave_groups")
	s.lockStripes, s.lockFreeStripes, s.readGroups = get("lock_stripes"), get("lock_free_stripes"), get("read_groups")
	s.lockMembers, s.changeSlots, s.countReturns = get("lock_members"), get("change_slots"), get("count_returns")
	s.groupSlots, s.findGroups, s.peekBlocked = get("group_slots"), get("find_groups"), get("peek_blocked")
	s.lockLimits, s.setLimits, s.allLimits = get("lock_limits"), get("set_limits"), get("all_limits")
	s.describe.adopted, s.brief.adopted = true, true
	s.states, s.cancelWaiting, s.noteCancelled = get("states"), get("cancel_waiting"), get("note_cancelled")
	s.cancelled, s.forgetCancelled = get("cancelled"), get("forget_cancelled")
	s.change, s.delete, s.pause, s.resume = get("change"), get("delete"), get("pause"), get("resume")
	s.count, s.purge = each("count", states...), each("purge", backends.StateReady, backends.StateBlocked, backends.StateScheduled, backends.StateDone, backends.StateDead)
	for _, name := range []string{"examine_settings", "examine_rights", "examine_indexes", "examine_triggers", "examine_overdue"} {
		s.examine[name] = t.Get(name, "")
	}
	t.Done()
	return s
}

// pastLocks are the hints by which a query passes over rows that others have locked.
const pastLocks = ", READPAST, READCOMMITTEDLOCK"

// readVersions lets the statements that count and list jobs read committed row versions. They then do not wait for
// locks. The database must have READ_COMMITTED_SNAPSHOT on.
func (s *statements) readVersions() {
	looks := append(slices.Collect(maps.Values(s.count)), s.stats, s.queues, s.peekReady, s.peekScheduled, s.peekClaimed, s.peekFinished, s.peekNewest, s.peekBlocked, s.noteAll, s.readGroups, s.groupSlots, s.findGroups)
	for _, p := range looks {
		p.text = strings.ReplaceAll(p.text, pastLocks, "")
	}
}

// declare reads a piece's parameters and sets from its comments.
func declare(p *piece, comments []string) {
	p.sets = -1
	for _, line := range comments {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		switch {
		case strings.HasPrefix(words[0], "@"):
			p.params = append(p.params, param{words[0][1:], strings.Join(words[1:], " ")})
		case words[0] == "sets":
			if _, err := fmt.Sscan(words[1], &p.sets); err != nil {
				panic(fmt.Sprintf("%s: %q", p.name, line)) // impossible: a test renders all pieces
			}
		}
	}
	if p.sets < 0 {
		panic(p.name + " doesn't declare how many result sets it returns")
	}
}

var states = []backends.State{backends.StateReady, backends.StateBlocked, backends.StateScheduled, backends.StateClaimed, backends.StateDone, backends.StateDead}
