package mysql

import (
	"cmp"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/table"
	"github.com/qsidecar/qsidecar/backends/mysql/migrate"
)

// rowUpdate is what rows must have in common so that one UPDATE can change them.
type rowUpdate struct {
	renewed, worker bool
	state           backends.State
	requeued        bool  // at a new position
	failed          bool  // with a cause
	alone           int64 // the row's id if it has a result. Results can be large, so such a row has its own UPDATE. 0: it has none
}

func updateOf(j *job) rowUpdate {
	c := &j.Change
	if c.Kind == core.Renewed {
		return rowUpdate{renewed: true, worker: c.SetWorker}
	}
	u := rowUpdate{state: c.State, requeued: c.State == backends.StateReady && !c.SamePosition, failed: c.Cause != ""}
	if c.Result != nil {
		u.alone = j.ID
	}
	return u
}

// changedBytes estimates the size of a row's part of an UPDATE.
func (j *job) changedBytes() int64 { return 4096 + 2*int64(len(j.Change.Message)+len(j.Change.Result)) }

// updateAll queues the UPDATEs of rows whose claims ended or continue. A row costs a server much less in a statement for many than
// in one of its own.
func (t *tx) updateAll(all []*job) {
	slices.SortFunc(all, compareIDs)
	groups := map[rowUpdate][]*job{}
	var order []rowUpdate
	for _, j := range all {
		u := updateOf(j)
		if groups[u] == nil {
			order = append(order, u)
		}
		groups[u] = append(groups[u], j)
	}
	for _, u := range order {
		for jobs := groups[u]; len(jobs) > 0; {
			n, size := 1, jobs[0].changedBytes()
			for n < len(jobs) && n < rowsAtOnce && size+jobs[n].changedBytes() < t.c.Packet/2 {
				size += jobs[n].changedBytes()
				n++
			}
			t.makeRoom(size)
			t.update(u, jobs[:n])
			jobs = jobs[n:]
		}
	}
}

func compareIDs(a, b *job) int { return cmp.Compare(a.ID, b.ID) }

// idsOf returns the ids of jobs as a list in SQL.
func idsOf(jobs []*job) string {
	ids := make([]int64, len(jobs))
	for i, j := range jobs {
		ids[i] = j.ID
	}
	return session.List(ids)
}

// update queues one UPDATE of rows that have u in common, in the order of their ids.
func (t *tx) update(u rowUpdate, jobs []*job) {
	list := idsOf(jobs)
	t.Add("UPDATE " + table.ByID + " SET ")
	set := func(column string, value func(j *job) any) { t.set(column, "id, "+list, jobs, value) }
	if u.renewed {
		t.renew(u, set)
	} else {
		t.end(u, jobs[0].Change.Result, set)
	}
	t.Text(" WHERE id IN (" + list + ")")
}

// set adds a column to an UPDATE, with the value of each row. among begins the arguments of INTERVAL: the column
// that identifies a row, and then the ids of jobs in ascending order. ELT converts numbers to texts, and the column converts them back.
func (t *tx) set(column, among string, jobs []*job, value func(j *job) any) {
	values := make([]any, len(jobs))
	same := true
	for i, j := range jobs {
		values[i] = value(j)
		same = same && values[i] == values[0]
	}
	if same {
		t.Text(column+" = ?", values[0])
		return
	}
	t.Text(column+" = ELT(INTERVAL("+among+")"+strings.Repeat(", ?", len(values))+")", values...)
}

const unclaim = "prefetched = 0, token_sidecar = NULL, token_number = NULL, owner = NULL, lease_ms = NULL, deadline = NULL, due_at = NULL, claimed_at = NULL, worker = NULL"

// end adds the columns of rows whose claims ended, which have this result.
func (t *tx) end(u rowUpdate, result []byte, set func(column string, value func(j *job) any)) {
	t.Text(unclaim+", state = ?", string(u.state))
	set(", attempts", func(j *job) any { return int64(j.Change.Attempts) })
	set(", losses", func(j *job) any { return int64(j.Change.Losses) })
	set(", prefetch_losses", func(j *job) any { return int64(j.Change.PrefetchLosses) })
	if u.state == backends.StateScheduled {
		set(", run_at", func(j *job) any { return t.now.After(core.MS(j.Change.Delay)).SQL() })
	} else {
		t.Text(", run_at = NULL")
	}
	if u.requeued {
		t.Text(", position = "+migrate.Position+", ready_at = ?", t.now)
	}
	if u.failed {
		set(", last_error", func(j *job) any { return j.Change.Message })
	}
	if u.state == backends.StateDone || u.state == backends.StateDead {
		t.Text(", finished_at = ?, result = ?", t.now, session.Nullable(result))
		set(", expires_at", func(j *job) any { return j.expires(t.now).SQL() })
	}
}

// renew adds the columns of rows whose claims continue.
func (t *tx) renew(u rowUpdate, set func(column string, value func(j *job) any)) {
	set("attempts", func(j *job) any { return int64(j.Change.Attempts) - session.Flag(j.Change.Prefetched) })
	set(", prefetch_losses", func(j *job) any { return int64(j.Change.PrefetchLosses) })
	set(", prefetched", func(j *job) any { return session.Flag(j.Change.Prefetched) })
	set(", owner", func(j *job) any { return int64(j.Change.Owner) })
	set(", lease_ms", func(j *job) any { return session.Positive(core.MS(j.Change.Lease)) })
	set(", deadline", func(j *job) any { return j.limitEnd(t.now).SQL() })
	set(", due_at", func(j *job) any {
		if !j.Change.NewDue {
			return cmp.Or(j.due, j.limitEnd(t.now)).SQL()
		}
		return session.Earlier(t.now.After(core.MS(j.Change.Lease)), j.limitEnd(t.now)).SQL()
	})
	if u.worker {
		set(", worker", func(j *job) any { return session.OrNull(j.Change.Worker) })
	}
}

// limitEnd returns when the time limit of a claim that continues ends. If the job was prefetched, it begins now, or
// Change.Ago before.
func (j *job) limitEnd(now session.Instant) session.Instant {
	if j.due != 0 || j.deadline == 0 {
		return j.deadline
	}
	return now + max(j.deadline-j.claimedAt-session.Instant(j.Change.Ago.Microseconds()), 0)
}
