package mysql

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
)

// remembered is a row of qsidecar_keys that this transaction has locked.
type remembered struct {
	job     int64 // 0: the row is new
	state   backends.State
	expires instant            // forEver: the job has not ended
	first   *storing           // the job of this transaction that has the key now
	same    []*backends.Stored // the answers about its duplicates
}

// free: a job may be stored with the key.
func (m *remembered) free(now instant) bool {
	return m.first == nil && (m.job == 0 || m.expires <= now)
}

// lockKeys queues statements that make the missing rows of keys, and lock and read
// all of them, in their order.
func (k *commitment) lockKeys(t *tx, keyed map[batch.Key]struct{}) {
	if len(keyed) == 0 {
		return
	}
	keys := make([]batch.Key, 0, len(keyed))
	for key := range keyed {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b batch.Key) int {
		if n := strings.Compare(a.Queue, b.Queue); n != 0 {
			return n
		}
		return strings.Compare(a.Key, b.Key)
	})
	t.wrote = true
	for part := range slices.Chunk(keys, 200) {
		var args []any
		for _, key := range part {
			args = append(args, key.Queue, []byte(key.Key))
		}
		n := len(part)
		t.add("INSERT INTO qsidecar_keys (queue, `key`, job, expires_at) VALUES "+strings.TrimSuffix(strings.Repeat("(?, ?, 0, "+t.s.sql.clock+"), ", n), ", ")+
			" ON DUPLICATE KEY UPDATE job = job", args...)
		t.each(func(r *result) error {
			m := &remembered{job: r.int(2), state: backends.State(r.text(3)), expires: r.instant(4)}
			k.keys[batch.Key{Queue: r.text(0), Key: r.text(1)}] = m
			return nil
		}, "SELECT queue, `key`, job, state, expires_at FROM qsidecar_keys WHERE "+anyKey("", n)+" FOR UPDATE", args...)
		// The jobs that have not ended are in some state, or were deleted by hand.
		t.each(func(r *result) error {
			if m := k.keys[batch.Key{Queue: r.text(0), Key: r.text(1)}]; m != nil && m.job != 0 {
				if m.state = backends.State(r.text(2)); m.state != backends.StateDeleted {
					m.expires = forEver
				}
			}
			return nil
		}, "SELECT k.queue, k.`key`, COALESCE((SELECT j.state FROM qsidecar_jobs j WHERE j.id = k.job), 'deleted') FROM qsidecar_keys k "+
			"WHERE ("+anyKey("k.", n)+") AND k.state IS NULL", args...)
	}
}

// anyKey is the condition that a row is that of one of n keys.
func anyKey(table string, n int) string {
	return strings.TrimSuffix(strings.Repeat("("+table+"queue = ? AND "+table+"`key` = ?) OR ", n), " OR ")
}

const forEver = instant(1<<63 - 1)

// storing is a job to be stored, and where the answer about it goes.
type storing struct {
	*backends.NewJob
	write, place int
	state        backends.State
	runAt        instant
	id           int64
}

// store decides about jobs: a duplicate is answered at once.
func (k *commitment) store(write int, jobs []backends.NewJob, now instant) {
	if len(jobs) == 0 {
		return
	}
	r := &k.res.Writes[write]
	r.Stored = make([]backends.Stored, len(jobs))
	for i := range jobs {
		j := storing{NewJob: &jobs[i], write: write, place: i, state: backends.StateReady}
		if m := k.keys[batch.Key{Queue: j.Queue, Key: j.Key}]; j.Key != "" && m != nil && !m.free(now) {
			r.Stored[i] = backends.Stored{ID: batch.ID(m.job), Duplicate: true, State: m.state}
			if m.first != nil { // its id is not known yet
				r.Stored[i].State = m.first.state
				m.same = append(m.same, &r.Stored[i])
			}
			continue
		} else if j.Key != "" && m != nil {
			m.first = &j
		}
		switch {
		case j.Delay > 0:
			j.state = backends.StateScheduled
		case !j.RunAt.IsZero():
			if j.runAt = instant(j.RunAt.UnixMicro()); j.runAt <= now {
				j.runAt = 0
			} else {
				j.state = backends.StateScheduled
			}
		}
		if j.state == backends.StateReady {
			batch.Free(r, j.Queue)
		}
		k.stores = append(k.stores, j)
	}
}

// rowsAtOnce is how many rows one INSERT has at most.
const rowsAtOnce = 500

// queueStores queues the INSERTs. The ids of one statement follow one another.
func (k *commitment) queueStores(ctx context.Context, t *tx) error {
	var queues []string
	for from := 0; from < len(k.stores); {
		to, size := from, int64(0)
		for to < len(k.stores) && to-from < rowsAtOnce {
			more := 2*int64(len(k.stores[to].Payload)) + 20_000
			if to > from && size+more > t.s.server.packet/2 {
				break
			}
			size += more
			to++
		}
		if err := t.roomy(ctx, size); err != nil {
			return err
		}
		if err := k.insert(t, k.stores[from:to]); err != nil {
			return err
		}
		from = to
	}
	for i := range k.stores {
		queues = append(queues, k.stores[i].Queue)
	}
	t.register(queues)
	return nil
}

const insertHead = "INSERT INTO qsidecar_jobs (queue, state, priority, max_attempts, timeout_ms, run_at, enqueued_at, ready_at, `key`, headers, payload) VALUES "

func (k *commitment) insert(t *tx, jobs []storing) error {
	t.wrote = true
	t.add(insertHead)
	clock := t.s.sql.clock
	if t.now != 0 {
		clock = "'" + t.now.sql().(string) + "'"
	}
	for i := range jobs {
		j := &jobs[i]
		if i > 0 {
			t.text(", ")
		}
		headers, err := headersText(j.Headers)
		if err != nil {
			return err
		}
		payload := j.Payload
		if payload == nil {
			payload = []byte{} // nil would be NULL
		}
		t.text("(?, ?, ?, ?, ?, ", j.Queue, string(j.state), int64(j.Priority), positive(int64(j.MaxAttempts)), positive(batch.MS(j.Timeout)))
		if j.Delay > 0 {
			t.text(clock+" + INTERVAL ? MICROSECOND", 1000*batch.MS(j.Delay))
		} else {
			t.text("?", j.runAt)
		}
		t.text(", "+clock+", "+clock+", ?, ?, ?)", keyOrNull(j.Key), headers, payload)
	}
	t.each(func(r *result) error {
		k.numbered(jobs, r.int(0), r.int(1))
		return nil
	}, "SELECT LAST_INSERT_ID(), @@auto_increment_increment")
	for i := range jobs {
		if j := &jobs[i]; j.Key != "" {
			t.add("UPDATE qsidecar_keys SET job = LAST_INSERT_ID() + ? * @@auto_increment_increment, state = NULL, expires_at = "+clock+" + INTERVAL ? MICROSECOND "+
				"WHERE queue = ? AND `key` = ?", int64(i), 1000*batch.MS(j.KeyTTL), j.Queue, []byte(j.Key))
		}
	}
	return nil
}

// numbered notes the ids that jobs got, for themselves and their duplicates.
func (k *commitment) numbered(jobs []storing, first, step int64) {
	for i := range jobs {
		j := &jobs[i]
		j.id = first + int64(i)*step
		k.res.Writes[j.write].Stored[j.place] = backends.Stored{ID: batch.ID(j.id)}
		if m := k.keys[batch.Key{Queue: j.Queue, Key: j.Key}]; j.Key != "" {
			for _, same := range m.same {
				same.ID = batch.ID(j.id)
			}
		}
	}
}

func keyOrNull(key string) any {
	if key == "" {
		return nil
	}
	return []byte(key)
}

func headersText(h map[string]string) (any, error) {
	if len(h) == 0 {
		return nil, nil
	}
	text, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("headers: %w", err)
	}
	return string(text), nil
}
