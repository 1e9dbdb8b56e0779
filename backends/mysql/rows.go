package mysql

import (
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
)

// job is a row that the transaction has locked.
type job struct {
	core.Row
	state          backends.State
	keep, keepDead int64           // ms; 0 means: not kept for keep, and indefinitely for keepDead
	deadline, due  session.Instant // without due: the time limit has not begun
	claimedAt      session.Instant
	runAt          session.Instant
	expiresAt      session.Instant
	group          string          // which the job waits for; empty: none
	startBefore    session.Instant // when the job expires; 0: never
	removed        bool            // when it expires
	keyState       string
	enqueued       session.Instant
}

// readJob reads a row of the statements lock and lock_free.
func readJob(r *session.Result) *job {
	j := &job{state: backends.State(r.Text(3)), keep: r.Int(15), keepDead: r.Int(16), deadline: r.Instant(21), due: r.Instant(22), runAt: r.Instant(25), expiresAt: r.Instant(26), claimedAt: r.Instant(27), group: r.Text(28), startBefore: r.Instant(31), removed: r.Int(32) != 0, keyState: r.Text(33), enqueued: r.Instant(34)}
	j.Row = core.Row{
		ID: r.Int(0), Queue: r.Text(1), Key: r.Text(2), Group: r.Text(29), Batch: r.Int(30), Priority: int16(r.Int(4)), Position: r.Int(5), Fence: r.Int(6),
		Token: backends.Token{Sidecar: backends.Identity(r.Int(17)), Number: uint64(r.Int(18))}, Owner: backends.Identity(r.Int(19)),
		Lease: core.FromMS(r.Int(20)), Kept: j.keep > 0, Failed: r.Int(23) != 0, HasWorker: r.Int(24) != 0, Pending: j.keyState == "pending", Engine: j,
		AttemptState: backends.AttemptState{
			Attempts: int(r.Int(7)), Losses: int(r.Int(8)), PrefetchLosses: int(r.Int(9)), Prefetched: r.Int(10) != 0, Limit: int(r.Int(12)),
			Backoff: core.FromMS(r.Int(13)), BackoffMax: core.FromMS(r.Int(14)),
		},
	}
	if j.Prefetched { // the column counts recorded deliveries only
		j.Attempts++
	}
	return j
}

// is reports whether the job is in a state.
func (j *job) is(state backends.State) bool {
	if j.state == backends.StateReady && j.runAt == 0 && j.group != "" {
		return state == backends.StateBlocked
	}
	return j.state == state
}

// keepsKey reports whether the job has a key that it needs until its end.
func (j *job) keepsKey() bool { return j.Key != "" && j.keyState != "start" }

// key returns the job's key in its queue.
func (j *job) key() jobKey { return jobKey{j.Queue, j.Key} }

func keysOf(jobs []*job) []jobKey {
	keys := make([]jobKey, len(jobs))
	for i, j := range jobs {
		keys[i] = j.key()
	}
	return keys
}

// rowList adds rows to one INSERT, or to several if they don't fit into a packet. Queue no other statement between two rows.
type rowList struct {
	*tx
	head string // with the first row's placeholders after VALUES
	n    int
}

// add adds a row that needs about that many bytes.
func (r *rowList) add(bytes int64, values ...any) {
	r.makeRoom(bytes)
	if r.n == 0 || r.Empty() {
		r.Add(r.head, values...)
	} else {
		r.Text(", ("+strings.TrimSuffix(strings.Repeat("?, ", len(values)), ", ")+")", values...)
	}
	r.n++
}
