package mysql

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
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
func (m *keyRow) free(now session.Instant) bool { return m.job == 0 || m.expires <= now }

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
		n, args := len(part), argsOf(part)
		t.Add("INSERT INTO qsidecar_keys (queue, `key`, job, expires_at) VALUES "+strings.TrimSuffix(strings.Repeat("(?, ?, 0, "+t.s.sql.clock+"), ", n), ", ")+
			" ON DUPLICATE KEY UPDATE job = job", args...)
		t.Each(func(r *session.Result) {
			m := &keyRow{job: r.Int(2), state: backends.State(r.Text(3)), expires: r.Instant(4)}
			into[jobKey{r.Text(0), r.Text(1)}] = m
		}, "SELECT queue, `key`, job, state, expires_at FROM "+keysTable+" WHERE "+anyKey("", n)+" FOR UPDATE", args...)
		// A job that has not ended is in some state, or was deleted by hand.
		t.Each(func(r *session.Result) {
			if m := into[jobKey{r.Text(0), r.Text(1)}]; m != nil && m.job != 0 {
				if m.state = backends.State(r.Text(2)); m.state != backends.StateDeleted {
					m.expires = forever
				}
			}
		}, "SELECT k.queue, k.`key`, COALESCE((SELECT j.state FROM qsidecar_jobs j WHERE j.id = k.job), 'deleted') FROM qsidecar_keys k "+
			"WHERE ("+anyKey("k.", n)+") AND k.state IS NULL", args...)
	}
}

// lockExistingKeys queues statements that lock the rows of keys, as far as they exist, and fail if another
// transaction has locked one of them. No transaction waits for a key while it has others locked: an application
// that stores keys in another order would be the victim of that deadlock. The keys are sorted.
func (t *tx) lockExistingKeys(keys []jobKey) {
	for part := range slices.Chunk(keys, keysAtOnce) {
		t.eachKey(func(*session.Result) {}, part, "SELECT job FROM "+keysTable, " FOR UPDATE NOWAIT")
	}
}

// eachKey queues a query for the rows of keys.
func (t *tx) eachKey(f func(r *session.Result), keys []jobKey, query, tail string) {
	t.makeRoom(1024 * int64(len(keys)))
	t.Each(f, query+" WHERE "+anyKey("", len(keys))+tail, argsOf(keys)...)
}

// keysTable is the table of keys for statements that lock rows. They lock, or fail at, all rows that they scan. The server
// scans only the keys that they name, in the order of the index, if they have no ORDER BY and read the column job.
const keysTable = "qsidecar_keys FORCE INDEX (PRIMARY)"

func compareKeys(a, b jobKey) int {
	return cmp.Or(strings.Compare(a.queue, b.queue), strings.Compare(a.key, b.key))
}

// argsOf returns the arguments of anyKey.
func argsOf(keys []jobKey) []any {
	args := make([]any, 0, 2*len(keys))
	for _, key := range keys {
		args = append(args, key.queue, []byte(key.key))
	}
	return args
}

// keysAtOnce is the largest number of keys in a condition.
const keysAtOnce = 200

// anyKey returns the condition that a row has one of n keys.
func anyKey(table string, n int) string {
	return strings.TrimSuffix(strings.Repeat("("+table+"queue = ? AND "+table+"`key` = ?) OR ", n), " OR ")
}

const forever = session.Instant(1<<63 - 1)

// takeKeys queues a statement that stores the ids of new jobs in the rows of their keys. The statement before it inserted the jobs. The
// transaction has locked the rows of the keys.
func (t *tx) takeKeys(jobs []newJob, step, clock string) {
	first := true
	for i := range jobs {
		j := &jobs[i]
		if j.Key == "" {
			continue
		}
		if first {
			t.Add("INSERT INTO qsidecar_keys (queue, `key`, job, state, expires_at) VALUES ")
		} else {
			t.Text(", ")
		}
		first = false
		t.Text("(?, ?, LAST_INSERT_ID() + ? * "+step+", NULL, "+clock+" + INTERVAL ? MICROSECOND)", j.Queue, []byte(j.Key), int64(i), 1000*core.MS(j.KeyTTL))
	}
	if !first {
		t.Text(" ON DUPLICATE KEY UPDATE job = VALUES(job), state = NULL, expires_at = VALUES(expires_at)")
	}
}

// endKeys queues an UPDATE of the keys of jobs that ended. jobs are in the order of keys, in which every transaction locks them.
func (t *tx) endKeys(jobs []*job) {
	byID := slices.SortedFunc(slices.Values(jobs), compareIDs)
	t.makeRoom(1024 * int64(len(jobs)))
	t.Add("UPDATE qsidecar_keys FORCE INDEX (PRIMARY) SET ")
	t.set("state", "job, "+idsOf(byID), byID, func(j *job) any { return string(j.Change.State) })
	next := " WHERE "
	for _, j := range jobs {
		t.Text(next+"queue = ? AND `key` = ? AND job = ?", j.Queue, []byte(j.Key), j.ID)
		next = " OR "
	}
}

// takeKeysBack gives dead jobs their keys again. It returns the jobs that have their key now or have none.
// If whole is true, a key of another job is an error.
func (t *tx) takeKeysBack(ctx context.Context, rows []*job, whole bool) (with []*job, err error) {
	first := map[jobKey]*job{} // the job that can get the key
	for _, j := range rows {
		if key := j.key(); j.Key != "" && first[key] == nil {
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
		return j.Key != "" && (first[j.key()] != j || m != nil && m.job != j.ID && !m.free(t.now))
	})
	if whole && len(with) < len(rows) {
		return nil, backends.ErrKeyTaken
	}
	for _, j := range slices.SortedFunc(slices.Values(with), func(a, b *job) int { return strings.Compare(a.Key, b.Key) }) {
		if j.Key != "" {
			t.Add(t.s.sql.takeKeyBack, j.ID, t.now, j.ID, j.Queue, []byte(j.Key))
			t.makeRoom(4096)
		}
	}
	return with, nil
}
