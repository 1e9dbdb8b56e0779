package mysql

import (
	"cmp"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
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
	of := func(value func(j *job) any) any { return byRow("id, "+list, jobs, value) }
	if u.renewed {
		t.renew(u, list, of)
	} else {
		t.end(u, list, jobs[0].Change.Result, of)
	}
}

// byRow returns a parameter that has the value of each row. among begins the arguments of INTERVAL: the column that
// identifies a row, and then the ids of jobs in ascending order. ELT converts numbers to texts, and the column converts them back.
func byRow(among string, jobs []*job, value func(j *job) any) any {
	values := make([]any, len(jobs))
	same := true
	for i, j := range jobs {
		values[i] = value(j)
		same = same && values[i] == values[0]
	}
	if same {
		return values[0]
	}
	return session.Part{SQL: "ELT(INTERVAL(" + among + ")" + strings.Repeat(", ?", len(values)) + ")", Args: values}
}

// end queues the UPDATE of rows whose claims ended, which have this result.
func (t *tx) end(u rowUpdate, list string, result []byte, of func(value func(j *job) any) any) {
	values := []any{
		string(u.state),
		of(func(j *job) any { return int64(j.Change.Attempts) }),
		of(func(j *job) any { return int64(j.Change.Losses) }),
		of(func(j *job) any { return int64(j.Change.PrefetchLosses) }),
		nil, // run_at
		session.Flag(u.failed), of(func(j *job) any { return j.Change.Message }),
		nil, nil, nil, // finished_at, prune_at, result
	}
	if u.state == backends.StateScheduled {
		values[4] = of(func(j *job) any { return t.now.After(core.MS(j.Change.Delay)).SQL() })
	}
	if u.state == backends.StateDone || u.state == backends.StateDead {
		values = append(values[:7], t.now, of(func(j *job) any { return j.expires(t.now).SQL() }), session.Nullable(result))
	}
	sql := t.s.sql.endClaims
	if u.requeued {
		sql, values = t.s.sql.endClaimsRequeued, append(values, t.now)
	}
	t.Add(sql, append(values, session.Part{SQL: list})...)
}

// renew queues the UPDATE of rows whose claims continue.
func (t *tx) renew(u rowUpdate, list string, of func(value func(j *job) any) any) {
	t.Add(t.s.sql.renewClaims,
		of(func(j *job) any { return int64(j.Change.Attempts) - session.Flag(j.Change.Prefetched) }),
		of(func(j *job) any { return int64(j.Change.PrefetchLosses) }),
		of(func(j *job) any { return session.Flag(j.Change.Prefetched) }),
		of(func(j *job) any { return int64(j.Change.Owner) }),
		of(func(j *job) any { return session.Positive(core.MS(j.Change.Lease)) }),
		of(func(j *job) any { return j.limitEnd(t.now).SQL() }),
		of(func(j *job) any {
			if !j.Change.NewDue {
				return cmp.Or(j.due, j.limitEnd(t.now)).SQL()
			}
			return session.Earlier(t.now.After(core.MS(j.Change.Lease)), j.limitEnd(t.now)).SQL()
		}),
		session.Flag(u.worker), of(func(j *job) any { return session.OrNull(j.Change.Worker) }),
		session.Part{SQL: list})
}

// limitEnd returns when the time limit of a claim that continues ends. If the job was prefetched, it begins now, or
// Change.Ago before.
func (j *job) limitEnd(now session.Instant) session.Instant {
	if j.due != 0 || j.deadline == 0 {
		return j.deadline
	}
	return now + max(j.deadline-j.claimedAt-session.Instant(j.Change.Ago.Microseconds()), 0)
}
