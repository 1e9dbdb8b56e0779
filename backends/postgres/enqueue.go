package postgres

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
)

// storing are the new jobs of a group: those without conditions, and those that
// have a key or come with an ack.
type storing struct {
	plain, keyed []newJob
	twice        []newJob // with a key that an earlier one of keyed has
	leases       leases   // that acks with jobs need
	keys         map[batch.Key]bool
}

// newJob is a job, the write that it is of, and its place there.
type newJob struct {
	*backends.NewJob
	write, place int
	lease        *backends.Lease
}

func (e *storing) add(write int, jobs []backends.NewJob, lease *backends.Lease) {
	if lease != nil {
		e.leases.Add(write, *lease, 0)
	}
	for i := range jobs {
		j := newJob{NewJob: &jobs[i], write: write, place: i, lease: lease}
		switch k := (batch.Key{Queue: j.Queue, Key: j.Key}); {
		case j.Key == "" && lease == nil:
			e.plain = append(e.plain, j)
		case j.Key != "" && e.keys[k]:
			e.twice = append(e.twice, j)
		default:
			if e.keys == nil {
				e.keys = map[batch.Key]bool{}
			}
			e.keys[k] = j.Key != ""
			e.keyed = append(e.keyed, j)
		}
	}
}

func (e *storing) queue(t *tx, res []backends.WriteResult) error {
	if len(e.leases.ID) > 0 {
		e.leases.Sort()
		t.add(t.s.sql.hold, nil, e.leases.ID, e.leases.Host, e.leases.Number)
	}
	for _, jobs := range [][]newJob{e.plain, e.keyed, e.twice} {
		for _, j := range jobs {
			if j.lease == nil {
				room(res, j)
			}
		}
	}
	if err := e.queuePlain(t, res); err != nil {
		return err
	}
	return e.queueKeyed(t, res)
}

// room makes place for the answer about j.
func room(res []backends.WriteResult, j newJob) *backends.Stored {
	r := &res[j.write]
	for len(r.Stored) <= j.place {
		r.Stored = append(r.Stored, backends.Stored{})
	}
	return &r.Stored[j.place]
}

// columns are the arrays that a statement inserts from.
type columns struct {
	queue, headers   []string
	payload          [][]byte
	priority         []int16
	delay, timeout   []int64
	runAt            []*time.Time
	max              []int16
	key              []string
	ttl              []int64
	job, host, token []int64
}

func (c *columns) add(j newJob) error {
	headers := ""
	if len(j.Headers) > 0 {
		text, err := json.Marshal(j.Headers)
		if err != nil {
			return fmt.Errorf("headers: %w", err)
		}
		headers = string(text)
	}
	payload := j.Payload
	if payload == nil {
		payload = []byte{} // nil would be NULL
	}
	var runAt *time.Time
	if j.Delay <= 0 && !j.RunAt.IsZero() {
		runAt = &j.RunAt
	}
	c.queue, c.payload, c.headers = append(c.queue, j.Queue), append(c.payload, payload), append(c.headers, headers)
	c.priority, c.max = append(c.priority, j.Priority), append(c.max, int16(j.MaxAttempts))
	c.delay, c.timeout = append(c.delay, max(ms(j.Delay), 0)), append(c.timeout, ms(j.Timeout))
	c.runAt = append(c.runAt, runAt)
	return nil
}

func (c *columns) addKeyed(j newJob) {
	c.key, c.ttl = append(c.key, j.Key), append(c.ttl, ms(j.KeyTTL))
	var id, host, token int64
	if j.lease != nil {
		id, _ = number(j.lease.Job)
		if id == 0 {
			id = -1 // no job: nothing is stored
		}
		host, token = int64(j.lease.Token.Host), int64(j.lease.Token.Number)
	}
	c.job, c.host, c.token = append(c.job, id), append(c.host, host), append(c.token, token)
}

func (e *storing) queuePlain(t *tx, res []backends.WriteResult) error {
	if len(e.plain) == 0 {
		return nil
	}
	var c columns
	for _, j := range e.plain {
		if err := c.add(j); err != nil {
			return err
		}
	}
	i := 0
	t.each(t.s.sql.store, func(rows pgx.Rows) error {
		var id int64
		var ready bool
		if err := rows.Scan(&id, &ready); err != nil {
			return err
		}
		if i == len(e.plain) {
			return fmt.Errorf("%d jobs made more than %d rows", len(e.plain), i)
		}
		e.plain[i].stored(res, id, ready)
		i++
		return nil
	}, c.queue, c.payload, c.priority, c.delay, c.runAt, c.max, c.timeout, c.headers)
	return nil
}

func (j *newJob) stored(res []backends.WriteResult, id int64, ready bool) {
	*room(res, *j) = backends.Stored{ID: idOf(id)}
	if ready {
		batch.Free(&res[j.write], j.Queue)
	}
}

func (e *storing) queueKeyed(t *tx, res []backends.WriteResult) error {
	if len(e.keyed) == 0 {
		return nil
	}
	var c columns
	for _, j := range e.keyed {
		if err := c.add(j); err != nil {
			return err
		}
		c.addKeyed(j)
	}
	toStore := map[int64]newJob{} // by the id that it is to have
	asked := map[int]newJob{}     // those whose key has a first job, by their number in the arrays
	t.each(t.s.sql.storeKeyed, func(rows pgx.Rows) error {
		var n *int64
		var id int64
		var own bool
		var ready *bool
		if err := rows.Scan(&n, &id, &own, &ready); err != nil {
			return err
		}
		switch {
		case n == nil: // it was stored
			j := toStore[id]
			delete(toStore, id)
			j.stored(res, id, *ready)
			return nil
		case own:
			toStore[id] = e.keyed[*n-1]
		default:
			asked[int(*n-1)] = e.keyed[*n-1]
		}
		room(res, e.keyed[*n-1])
		return nil
	}, c.queue, c.payload, c.priority, c.delay, c.runAt, c.max, c.timeout, c.headers, c.key, c.ttl, c.job, c.host, c.token)
	e.queueFirst(t, res, toStore, asked)
	return nil
}

// queueFirst asks for the first jobs of all keys: by then it is known which of
// the new jobs are duplicates.
func (e *storing) queueFirst(t *tx, res []backends.WriteResult, toStore map[int64]newJob, asked map[int]newJob) {
	var queues, keys []string
	jobs := append(append([]newJob{}, e.keyed...), e.twice...)
	for _, j := range jobs {
		queues, keys = append(queues, j.Queue), append(keys, j.Key)
	}
	t.each(t.s.sql.keyed, func(rows pgx.Rows) error {
		if len(toStore) > 0 {
			t.passedOver = true
		}
		var n, id int64
		var state string
		if err := rows.Scan(&n, &id, &state); err != nil {
			return err
		}
		j := jobs[n-1]
		if _, duplicate := asked[int(n-1)]; !duplicate && int(n) <= len(e.keyed) {
			return nil
		}
		if j.lease != nil && len(res[j.write].Stored) == 0 {
			return nil // its ack is lost
		}
		*room(res, j) = backends.Stored{ID: idOf(id), Duplicate: true, State: backends.State(state)}
		return nil
	}, queues, keys)
}
