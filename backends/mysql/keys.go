package mysql

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
)

// jobKey is a job's key in its queue.
type jobKey struct{ queue, key string }

// keyRow is a row of qsidecar_keys that the transaction has locked.
type keyRow struct {
	job     int64 // 0: the row is new
	state   backends.State
	expires session.Instant // forever: the job has not ended
}

// free reports whether a new job can use the key.
func (k *keyRow) free(now session.Instant) bool { return k.job == 0 || k.expires <= now }

// lockKeys queues statements that create missing rows of keys, lock all of them, and read them, in their
// order. They put a row for each key into `into`.
func (t *tx) lockKeys(keys []jobKey, into map[jobKey]*keyRow) {
	if len(keys) == 0 {
		return
	}
	slices.SortFunc(keys, compareKeys)
	if t.keys += len(keys); t.keys > 1 { // one key can wait for its lock
		t.lockExistingKeys(keys)
	}
	t.wrote = true
	for part := range slices.Chunk(keys, keysAtOnce) {
		one := t.anyKey(part)
		t.Add(t.s.sql.insertMissingKeys, session.Part{SQL: repeated(t.s.sql.missingKey, ", ", len(part)), Args: one.Args})
		t.Each(func(r *session.Result) {
			m := &keyRow{job: r.Int(2), state: backends.State(r.Text(3)), expires: r.Instant(4)}
			into[jobKey{r.Text(0), r.Text(1)}] = m
		}, t.s.sql.lockKeys, one)
		t.Each(func(r *session.Result) {
			if m := into[jobKey{r.Text(0), r.Text(1)}]; m != nil && m.job != 0 {
				if m.state = backends.State(r.Text(2)); r.Int(3) != 0 {
					m.expires = 0
				} else if m.state != backends.StateDeleted {
					m.expires = forever
				}
			}
		}, t.s.sql.statesOfKeys, one)
	}
}

// lockExistingKeys queues statements that lock the rows of keys, as far as they exist, and fail if another
// transaction has locked one of them. No transaction waits for a key while it has others locked: an application
// that stores keys in another order would be the victim of that deadlock. The keys are sorted.
func (t *tx) lockExistingKeys(keys []jobKey) {
	t.eachKey(func(*session.Result) {}, keys, t.s.sql.lockExistingKeys)
}

// eachKey queues a query for the rows of keys.
func (t *tx) eachKey(f func(r *session.Result), keys []jobKey, query string) {
	for part := range slices.Chunk(keys, keysAtOnce) {
		t.makeRoom(1024 * int64(len(part)))
		t.Each(f, query, t.anyKey(part))
	}
}

func compareKeys(a, b jobKey) int {
	return cmp.Or(strings.Compare(a.queue, b.queue), strings.Compare(a.key, b.key))
}

// keysAtOnce is the largest number of keys in a condition.
const keysAtOnce = 200

// anyKey returns the condition that a row has one of the keys.
func (t *tx) anyKey(keys []jobKey) session.Part {
	args := make([]any, 0, 2*len(keys))
	for _, key := range keys {
		args = append(args, key.queue, []byte(key.key))
	}
	return session.Part{SQL: repeated(t.s.sql.oneKey, " OR ", len(keys)), Args: args}
}

// repeated returns n copies of a text with a separator between them.
func repeated(text, separator string, n int) string {
	return strings.TrimSuffix(strings.Repeat(text+separator, n), separator)
}

const forever = session.Instant(1<<63 - 1)

// takeKeys queues a statement that stores the ids of new jobs in the rows of their keys. The statement before it inserted the jobs. The
// transaction has locked the rows of the keys.
func (t *tx) takeKeys(jobs []newJob, now any) {
	var args []any
	n := 0
	for i := range jobs {
		if j := &jobs[i]; j.Key != "" {
			args = append(args, j.Queue, []byte(j.Key), int64(i), now, 1000*j.KeyMillis())
			n++
		}
	}
	if n > 0 {
		t.Add(t.s.sql.takeKeys, session.Part{SQL: repeated(t.s.sql.takenKey, ", ", n), Args: args})
	}
}

// endKeys queues an UPDATE of the keys of jobs that ended. jobs are in the order of keys, in which every transaction locks them.
func (t *tx) endKeys(jobs []*job) {
	byID := slices.SortedFunc(slices.Values(jobs), compareIDs)
	t.makeRoom(1024 * int64(len(jobs)))
	var args []any
	for _, j := range jobs {
		args = append(args, j.Queue, []byte(j.Key), j.ID)
	}
	t.Add(t.s.sql.endKeys, byRow("job, "+idsOf(byID), byID, func(j *job) any { return string(j.Change.State) }),
		session.Part{SQL: repeated(t.s.sql.oneKeyOfJob, " OR ", len(jobs)), Args: args})
}

// takeKeysBack gives dead jobs their keys again. It returns the jobs that have their key now or have none.
func (t *tx) takeKeysBack(ctx context.Context, rows []*job) (with []*job, err error) {
	first := map[jobKey]*job{} // the job that can get the key
	for _, j := range rows {
		if key := j.key(); j.keepsKey() && first[key] == nil {
			first[key] = j
		}
	}
	keys := map[jobKey]*keyRow{}
	t.lockKeys(slices.Collect(maps.Keys(first)), keys)
	if err := t.Flush(ctx); err != nil {
		return nil, err
	}
	with = slices.DeleteFunc(slices.Clone(rows), func(j *job) bool {
		m := keys[j.key()]
		return j.keepsKey() && (first[j.key()] != j || m != nil && m.job != j.ID && !m.free(t.now))
	})
	for _, j := range slices.SortedFunc(slices.Values(with), func(a, b *job) int { return strings.Compare(a.Key, b.Key) }) {
		if j.keepsKey() {
			t.Add(t.s.sql.takeKeyBack, j.ID, t.now, j.ID, j.Queue, []byte(j.Key))
			t.makeRoom(4096)
		}
	}
	return with, nil
}
