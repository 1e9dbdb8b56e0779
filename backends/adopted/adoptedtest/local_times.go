// Package adoptedtest has tests of adopted tables for servers that only another package's tests start. Start reading at LocalTimes.
package adoptedtest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// Change is a change of a zone's clock.
type Change struct {
	Zone string
	At   time.Time
}

// Changes are changes in both directions, one of half an hour, and, as the last one, one that isn't between summer and winter.
var Changes = []Change{
	{"Europe/Berlin", time.Date(2026, 10, 25, 1, 0, 0, 0, time.UTC)},
	{"Europe/Berlin", time.Date(2026, 3, 29, 1, 0, 0, 0, time.UTC)},
	{"Australia/Lord_Howe", time.Date(2026, 4, 4, 15, 0, 0, 0, time.UTC)},
	{"Africa/Casablanca", time.Date(2026, 2, 15, 2, 0, 0, 0, time.UTC)},
}

// Server is a server whose clock the test moves, in the zone of the change.
type Server struct {
	Open  func() backends.Engine
	SQL   func(text string)  // runs a statement of the table's owner
	Clock func(at time.Time) // sets the server's clock
	Type  string             // of a column for a time without a zone
}

const (
	step = 10 * time.Minute
	age  = 30 * time.Minute // stuck_after, and the retention
	late = time.Hour + step
)

var delays = []time.Duration{0, time.Minute, 10 * time.Minute, 30 * time.Minute, time.Hour, 90 * time.Minute, 3 * time.Hour, 25 * time.Hour}

const me backends.Identity = 1 << 62

type localTimes struct {
	*testing.T
	Server
	store  *adopted.Store
	now    time.Time
	tokens uint64
	due    map[string]time.Time // by job: not before
	taken  map[string]time.Time // rows of own consumers, by id: when they were taken
	ended  map[string]time.Time
}

// LocalTimes checks that columns of local times make nothing happen earlier than asked, and at most an hour late: delays, times,
// back-offs, changes, stuck_after and retention.
func LocalTimes(t *testing.T, change Change, on Server) {
	zone, err := time.LoadLocation(change.Zone)
	if err != nil {
		t.Fatal(err)
	}
	x := &localTimes{T: t, Server: on, now: change.At.Add(-3 * time.Hour), due: map[string]time.Time{}, taken: map[string]time.Time{}, ended: map[string]time.Time{}}
	x.Clock(x.now)
	x.SQL(strings.ReplaceAll(`CREATE TABLE timed (id int PRIMARY KEY, kind varchar(9) NOT NULL, state varchar(9) NOT NULL, run_at TIME NOT NULL, made_at TIME NOT NULL, taken_at TIME NULL, ended_at TIME NULL)`, "TIME", on.Type))
	engine := on.Open()
	if x.store, err = adopted.New(t.Context(), engine, tables()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.store.Close(); err != nil {
			t.Error(err)
		}
	})
	x.heartbeat(backends.HeartbeatJoin)
	for x.now.Before(change.At.Add(54 * time.Hour)) { // the longest delay, twice
		more := x.now.Before(change.At.Add(3 * time.Hour))
		x.step(zone, more && x.now.Sub(change.At)%(2*step) == 0)
		if x.now = x.now.Add(step); !more {
			x.skip()
		}
	}
	x.warned(change.Zone)
	if len(x.due)+len(x.taken)+len(x.ended) > 0 {
		t.Errorf("left: jobs due at %v, rows taken at %v, and ended at %v", x.due, x.taken, x.ended)
	}
}

// skip moves the clock to two hours before something is due, if that is later. The next step shows what happened too
// early in between.
func (l *localTimes) skip() {
	next := l.now.Add(100 * time.Hour)
	for _, of := range []map[string]time.Time{l.due, l.taken, l.ended} {
		for _, at := range of { // a row is due later than that
			if at.Before(next) {
				next = at
			}
		}
	}
	for l.now.Before(next.Add(-2 * time.Hour)) {
		l.now = l.now.Add(step)
	}
}

func tables() map[string]mapping.Table {
	m := mapping.Table{
		Name: "timed", MaxAttempts: 9, StuckAfter: age, RetainDone: age,
		Columns: map[mapping.Role][]string{
			mapping.ID: {"id"}, mapping.Payload: {"id"}, mapping.State: {"state"}, mapping.RunAt: {"run_at"}, mapping.CreatedAt: {"made_at"}, mapping.ClaimedAt: {"taken_at"}, mapping.FinishedAt: {"ended_at"},
		},
		States: map[backends.State]mapping.Value{backends.StateReady: {Text: "new"}, backends.StateClaimed: {Text: "busy"}, backends.StateDone: {Text: "done"}},
		Where:  map[string]mapping.Value{"kind": {Text: "jobs"}},
	}
	others := m
	others.Where = map[string]mapping.Value{"kind": {Text: "others"}}
	return map[string]mapping.Table{"jobs": m, "others": others}
}

func (l *localTimes) heartbeat(kind backends.HeartbeatKind) {
	if _, err := l.store.Heartbeat(l.Context(), backends.Heartbeat{Sidecar: me, Kind: kind, Timeout: 1000 * time.Hour}); err != nil {
		l.Fatal(err)
	}
}

func (l *localTimes) commit(b backends.CommitContent) backends.Results {
	l.Helper()
	r, err := l.store.Commit(l.Context(), b)
	if err != nil {
		l.Fatalf("%v: %v", l.now, err)
	}
	for _, w := range r.Writes {
		if len(w.Lost) > 0 || w.Err != nil {
			l.Errorf("%v: %+v", l.now, w)
		}
	}
	return r
}

// step does what can be done now. more: it adds jobs and rows, which LocalTimes does in each second step.
func (l *localTimes) step(zone *time.Location, more bool) {
	l.Helper()
	l.Clock(l.now)
	l.claim()
	if !more {
		l.sweep()
		return
	}
	var jobs []backends.NewJob
	var due []time.Time
	for _, d := range delays {
		if due = append(due, l.now.Add(d), l.now.Add(d)); d > 0 {
			jobs = append(jobs, l.job(backends.NewJob{Delay: d}), l.job(backends.NewJob{RunAt: l.now.Add(d)}))
		} else {
			jobs = append(jobs, l.job(backends.NewJob{}), l.job(backends.NewJob{RunAt: l.now}))
		}
	}
	for i, s := range l.commit(backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: jobs}}}).Writes[0].Stored {
		l.due[s.ID] = due[i]
	}
	l.claim()
	local := l.now.In(zone).Format("2006-01-02 15:04:05")
	for state, at := range map[string]map[string]time.Time{"busy": l.taken, "done": l.ended} {
		l.tokens++
		at[fmt.Sprint(l.tokens)] = l.now
		l.SQL(fmt.Sprintf("INSERT INTO timed VALUES (%d, 'others', '%s', '%[3]s', '%[3]s', '%[3]s', '%[3]s')", l.tokens, state, local))
	}
	l.sweep()
}

// job is a job with an id.
func (l *localTimes) job(j backends.NewJob) backends.NewJob {
	l.tokens++
	j.Queue, j.Payload = "jobs", []byte(fmt.Sprint(l.tokens))
	return j
}

// claim claims all jobs that are ready. Some fail, with a delay.
func (l *localTimes) claim() {
	l.Helper()
	for {
		c := backends.Claim{Queues: []backends.Policy{{Queue: "jobs", MaxAttempts: 9, Backoff: time.Hour, BackoffMax: time.Hour}}}
		for range 50 {
			l.tokens++
			c.Slots = append(c.Slots, backends.Slot{Token: backends.Token{Sidecar: me, Number: l.tokens}})
		}
		jobs := l.commit(backends.CommitContent{Sidecar: me, Claims: []backends.Claim{c}}).Claims[0].Jobs
		var writes []backends.Write
		for i, j := range jobs {
			l.inTime("a job", j.ID, l.due)
			if delay := delays[(i+len(l.due))%len(delays)]; j.Attempt == 1 && delay > 0 {
				writes = append(writes, backends.Nack{Leases: []backends.Lease{j.Lease()}, Delay: delay, HasDelay: true})
				l.due[j.ID] = l.now.Add(delay)
			} else {
				writes = append(writes, backends.Ack{Leases: []backends.Lease{j.Lease()}})
			}
		}
		if len(jobs) == 0 {
			return
		}
		l.commit(backends.CommitContent{Writes: writes})
	}
}

// warned checks that check advises another column.
func (l *localTimes) warned(zone string) {
	found, err := l.store.Examine(l.Context(), nil)
	if err != nil {
		l.Fatal(err)
	}
	for _, f := range found {
		if f.Topic == "times" && f.Severity == backends.SeverityWarning && strings.Contains(f.Text, "run_at, made_at, taken_at, ended_at") {
			return
		}
	}
	l.Errorf("check doesn't warn of local times in %s", zone)
}

// inTime checks that something is not too early and not too late, and removes it.
func (l *localTimes) inTime(what, id string, of map[string]time.Time) {
	l.Helper()
	due, known := of[id]
	if delete(of, id); !known {
		l.Errorf("%v: %s %s, which isn't expected", l.now, what, id)
		return
	}
	if by := l.now.Sub(due); by < 0 || by > late {
		l.Errorf("%v: %s was due at %v, %v ago", l.now, what, due, by)
	}
}

// sweep takes back rows and deletes others.
func (l *localTimes) sweep() {
	l.Helper()
	l.heartbeat(backends.HeartbeatRenew)
	if _, err := l.store.Maintain(l.Context(), backends.Maintenance{Limit: 1000, Prune: true}); err != nil {
		l.Fatal(err)
	}
	left := map[string]backends.State{}
	var ids []string
	for _, of := range []map[string]time.Time{l.taken, l.ended} {
		for id := range of {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return
	}
	views, err := l.store.Peek(l.Context(), backends.Peek{Queue: "others", IDs: ids, Max: len(ids)})
	if err != nil {
		l.Fatal(err)
	}
	for _, v := range views {
		left[v.ID] = v.State
	}
	for id, at := range l.taken {
		if left[id] != backends.StateClaimed {
			l.taken[id] = at.Add(age)
			l.inTime("a row that its consumer took", id, l.taken)
		}
	}
	for id, at := range l.ended {
		if left[id] == "" {
			l.ended[id] = at.Add(age)
			l.inTime("a done row", id, l.ended)
		}
	}
}
