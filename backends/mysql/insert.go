package mysql

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/table"
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
	t.lockExistingKeys(keys)
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

// newJob is a job to store.
type newJob struct {
	*core.NewJob
	state backends.State
	runAt session.Instant
}

// Insert implements core.Writer. It locks the rows of keys first, to find out which jobs are duplicates.
func (t *tx) Insert(jobs []*core.NewJob) (pending bool) {
	var keys []jobKey
	dated := false
	for _, j := range jobs {
		if j.Key != "" {
			keys = append(keys, jobKey{j.Queue, j.Key})
		}
		dated = dated || !j.RunAt.IsZero()
	}
	if len(keys) == 0 && !dated {
		t.insertAll(jobs, nil)
		return false
	}
	t.askNow()
	rows := map[jobKey]*keyRow{}
	t.lockKeys(keys, rows)
	t.then = append(t.then, func() { t.insertAll(jobs, rows) })
	return true
}

// insertAll queues the INSERTs of jobs whose keys are free, and completes the other jobs as duplicates.
func (t *tx) insertAll(jobs []*core.NewJob, keys map[jobKey]*keyRow) {
	var all []newJob
	var queues []string
	for _, j := range jobs {
		if m := keys[jobKey{j.Queue, j.Key}]; j.Key != "" && m != nil && !m.free(t.now) {
			j.Duplicate(m.job, m.state)
			continue
		}
		x := newJob{NewJob: j, state: backends.StateReady}
		switch {
		case j.Delay > 0:
			x.state = backends.StateScheduled
		case !j.RunAt.IsZero():
			if x.runAt = session.Instant(j.RunAt.UnixMicro()); x.runAt <= t.now {
				x.runAt = 0
			} else {
				x.state = backends.StateScheduled
			}
		}
		all, queues = append(all, x), append(queues, j.Queue)
	}
	for from := 0; from < len(all); {
		to, size := from, int64(0)
		for to < len(all) && to-from < rowsAtOnce {
			more := 2*int64(len(all[to].Payload)) + 20_000
			if to > from && size+more > t.c.Packet/2 {
				break
			}
			size += more
			to++
		}
		t.makeRoom(size)
		t.insertSome(all[from:to])
		from = to
	}
	t.register(queues)
}

// rowsAtOnce is the largest number of rows of one INSERT of jobs, and of one UPDATE.
const rowsAtOnce = 500

const insertHead = "INSERT INTO qsidecar_jobs (queue, state, priority, max_attempts, timeout_ms, run_at, enqueued_at, ready_at, `key`, headers, payload) VALUES "

// insertSome queues one INSERT. The ids of one statement are consecutive, in steps of auto_increment_increment. A Galera
// node changes it when another node joins or leaves, also between two statements, so there the INSERT itself stores it.
func (t *tx) insertSome(jobs []newJob) {
	t.wrote = true
	t.Add(insertHead)
	clock, step, row := t.s.sql.clock, "@@auto_increment_increment", "(?, ?, ?, ?, ?, "
	if t.s.dialer.Server.Galera {
		step, row = "@qsidecar_step", "(?, ?, IF(@qsidecar_step := @@auto_increment_increment, ?, 0), ?, ?, "
	}
	if t.now != 0 {
		clock = "'" + t.now.SQL().(string) + "'"
	}
	for i := range jobs {
		j := &jobs[i]
		if i > 0 {
			t.Text(", ")
		}
		headers := headersText(j.Headers)
		payload := j.Payload
		if payload == nil {
			payload = []byte{} // nil would be NULL
		}
		t.Text(row, j.Queue, string(j.state), int64(j.Priority), session.Positive(int64(j.MaxAttempts)), session.Positive(core.MS(j.Timeout)))
		if j.Delay > 0 {
			t.Text(clock+" + INTERVAL ? MICROSECOND", 1000*core.MS(j.Delay))
		} else {
			t.Text("?", j.runAt)
		}
		t.Text(", "+clock+", "+clock+", ?, ?, ?)", keyOrNull(j.Key), headers, payload)
	}
	t.Each(func(r *session.Result) {
		first, step := r.Int(0), r.Int(1)
		for i := range jobs {
			jobs[i].Stored(first+int64(i)*step, jobs[i].state == backends.StateReady)
		}
	}, "SELECT LAST_INSERT_ID(), "+step)
	t.takeKeys(jobs, step, clock)
}

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

func keyOrNull(key string) any {
	if key == "" {
		return nil
	}
	return []byte(key)
}

func headersText(h map[string]string) any {
	if len(h) == 0 {
		return nil
	}
	text, _ := json.Marshal(h) // a map of strings can't fail
	return string(text)
}

// Ack implements core.Writer. It deletes jobs that are not kept, have no key and never failed, which are
// nearly all of them. If it deletes another number of rows than there are leases, the transaction fails
// with core.ErrNotAll.
func (t *tx) Ack(leases []core.Lease, _ func(i int)) (sure bool) {
	var ids, hosts, numbers []int64
	oneHost := true
	for _, l := range leases {
		ids, hosts, numbers = append(ids, l.ID), append(hosts, l.Host), append(numbers, l.Number)
		oneHost = oneHost && l.Host == leases[0].Host
	}
	t.wrote = true
	t.Add(table.DeleteByID + " WHERE id IN (" + session.List(ids) + ") AND token_number = " + table.Among(ids, numbers) + " AND token_sidecar = ")
	if oneHost {
		t.Text("?", hosts[0])
	} else {
		t.Text(table.Among(ids, hosts))
	}
	t.Text(" AND retention_done_ms IS NULL AND `key` IS NULL AND last_error IS NULL")
	t.acked, t.BeforeNext = int64(len(ids)), t.checkAck
	return true
}

// Deliver implements core.Writer. The core does not call it: see core.Traits.
func (t *tx) Deliver([]core.Lease, []backends.Delivery, func(i int)) {}
