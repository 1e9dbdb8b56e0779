package sqlserver

import (
	"database/sql"
	"fmt"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
)

// storing are the new jobs of a group, in their order.
type storing struct {
	jobs  []newJob
	twice []newJob          // with a key that an earlier one has
	first map[batch.Key]int // in jobs
	keyed bool              // some have a key or come with an ack: they need the larger statement
	told  []bool            // which of jobs were answered: not those whose ack is lost
}

// newJob is a job, the write that it is of, and its place there.
type newJob struct {
	*backends.NewJob
	write, place int
	lease        *backends.Lease
}

func (e *storing) add(write int, jobs []backends.NewJob, lease *backends.Lease) {
	for i := range jobs {
		j := newJob{NewJob: &jobs[i], write: write, place: i, lease: lease}
		k := batch.Key{Queue: j.Queue, Key: j.Key}
		if _, twice := e.first[k]; twice {
			e.twice = append(e.twice, j)
			continue
		}
		if j.Key != "" {
			if e.first == nil {
				e.first = map[batch.Key]int{}
			}
			e.first[k] = len(e.jobs)
		}
		e.keyed = e.keyed || j.Key != "" || lease != nil
		e.jobs = append(e.jobs, j)
	}
}

func (e *storing) queue(t *tx, res []backends.WriteResult) (err error) {
	for _, jobs := range [][]newJob{e.jobs, e.twice} {
		for _, j := range jobs {
			if j.lease == nil {
				room(res, j)
			}
		}
	}
	e.told = make([]bool, len(e.jobs))
	chunks(e.jobs, func(from int, jobs []newJob) {
		if err != nil {
			return
		}
		var payloads blob
		rows := make([]jobRow, len(jobs))
		for i, j := range jobs {
			r, wrong := newJobRow(i, j.NewJob, &payloads)
			if wrong != nil {
				err = wrong
				return
			}
			j.condition(&r)
			rows[i] = r
		}
		if !e.keyed {
			t.add(t.s.sql.store, []reader{each(e.stored(res, jobs))}, document(rows), payloads.bytes())
			return
		}
		last := from+len(jobs) == len(e.jobs)
		t.add(t.s.sql.storeKeyed, []reader{after(each(e.storedKeyed(res, jobs, e.told[from:])), last, func() { e.again(res) })}, document(rows), payloads.bytes())
	})
	return err
}

// condition is the claim that must still be there.
func (j newJob) condition(r *jobRow) {
	if j.lease == nil {
		return
	}
	id, ok := batch.Number(j.lease.Job)
	if !ok {
		id = -1 // no job: nothing is stored
	}
	host, number := int64(j.lease.Token.Host), int64(j.lease.Token.Number)
	r.Job, r.Host, r.Number = &id, &host, &number
}

// room makes place for the answer about j.
func room(res []backends.WriteResult, j newJob) *backends.Stored {
	r := &res[j.write]
	for len(r.Stored) <= j.place {
		r.Stored = append(r.Stored, backends.Stored{})
	}
	return &r.Stored[j.place]
}

// stored reads a row of store.sql's answer.
func (e *storing) stored(res []backends.WriteResult, jobs []newJob) func(rows *sql.Rows) error {
	return func(rows *sql.Rows) error {
		var n int
		var id int64
		var ready bool
		if err := rows.Scan(&n, &id, &ready); err != nil {
			return err
		}
		if n < 0 || n >= len(jobs) {
			return fmt.Errorf("sqlserver: the answer names job %d of %d", n, len(jobs))
		}
		jobs[n].answer(res, backends.Stored{ID: batch.ID(id)}, ready)
		return nil
	}
}

// storedKeyed reads a row of store_keyed.sql's answer.
func (e *storing) storedKeyed(res []backends.WriteResult, jobs []newJob, told []bool) func(rows *sql.Rows) error {
	return func(rows *sql.Rows) error {
		var n int
		var id int64
		var stored bool
		var state string
		if err := rows.Scan(&n, &stored, &id, &state); err != nil {
			return err
		}
		if n < 0 || n >= len(jobs) {
			return fmt.Errorf("sqlserver: the answer names job %d of %d", n, len(jobs))
		}
		told[n] = true
		answer := backends.Stored{ID: batch.ID(id), Duplicate: !stored, State: backends.State(state)}
		jobs[n].answer(res, answer, stored && answer.State == backends.StateReady)
		return nil
	}
}

// answer keeps what became of j. State is that of the first job with the key: only a
// duplicate's is told.
func (j newJob) answer(res []backends.WriteResult, s backends.Stored, ready bool) {
	*room(res, j) = s
	if ready {
		batch.Free(&res[j.write], j.Queue)
	}
}

// again answers for the jobs whose key an earlier one has: by then that one's own
// answer is there. Then the states of those that were stored are of no interest.
func (e *storing) again(res []backends.WriteResult) {
	for _, j := range e.twice {
		n := e.first[batch.Key{Queue: j.Queue, Key: j.Key}]
		if !e.told[n] {
			continue // both come with the same ack, and it is lost
		}
		s := *room(res, e.jobs[n])
		s.Duplicate = true
		*room(res, j) = s
	}
	for n, j := range e.jobs {
		if e.told[n] && !room(res, j).Duplicate {
			room(res, j).State = ""
		}
	}
}
