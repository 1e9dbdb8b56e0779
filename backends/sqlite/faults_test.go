package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testsqlite"
)

// The error must have this kind and contain these words.
func says(t *testing.T, err error, retryable, refused bool, words ...string) {
	t.Helper()
	if err == nil || backends.Retryable(err) != retryable || backends.IsRefused(err) != refused {
		t.Errorf("%v: retryable %v, refused %v; want %v, %v", err, backends.Retryable(err), backends.IsRefused(err), retryable, refused)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}

func TestAFileThatMayNotBeWritten(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	if err := s.writer.once("PRAGMA query_only=1"); err != nil {
		t.Fatal(err)
	}
	_, err := s.Commit(t.Context(), one)
	says(t, err, true, false, s.path, "read-only")
}

func TestAFileThatIsGone(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	aside := s.path + ".aside"
	if err := os.Rename(s.path, aside); err != nil {
		t.Fatal(err)
	}
	_, err := s.Commit(t.Context(), one)
	says(t, err, true, false, s.path, "moved or deleted")
	_, err = s.Heartbeat(t.Context(), backends.Heartbeat{Sidecar: 1, Timeout: time.Minute})
	says(t, err, true, false, s.path, "moved or deleted")
	if err := os.WriteFile(s.path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = s.Commit(t.Context(), one)
	says(t, err, true, false, "another file replaced it")
	if err := os.Rename(aside, s.path); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(t.Context(), one); err != nil {
		t.Errorf("back in its place: %v", err)
	}
}

func TestADamagedPage(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "jobs.db")
	s := open(t, path)
	for range 20 {
		if _, err := s.Commit(t.Context(), one); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	copy(file[4096:], bytes.Repeat([]byte{0xff}, len(file)-4096))
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	says(t, fails(t, path, path, "damaged", "backup"), false, false)
}

func TestTriggersThatPassARowOver(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	if _, err := s.Commit(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	if err := exec(t, s, `CREATE TRIGGER x BEFORE INSERT ON qsidecar_jobs BEGIN SELECT RAISE(IGNORE); END;
		CREATE TRIGGER y BEFORE UPDATE ON qsidecar_jobs WHEN NEW.worker = 'evil' BEGIN SELECT RAISE(ROLLBACK, 'not him'); END`); err != nil {
		t.Fatal(err)
	}
	_, err := s.Commit(t.Context(), one)
	says(t, err, false, true, "RAISE(IGNORE)")
	if len(claim(t, s, 1, "q", 9)) != 1 { // the host is not declared dead
		t.Fatal("the job stored before is gone")
	}
	r := backends.Release{Uncounted: true}
	held, err := s.ClaimedBy(t.Context(), 1, "", 9)
	if err != nil || len(held) != 1 {
		t.Fatalf("%v, %v", held, err)
	}
	r.Leases = []backends.Lease{held[0].Lease}
	if _, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{r}}); err != nil {
		t.Fatal(err)
	}
	c := backends.Claim{Queues: []backends.Policy{{Queue: "q", MaxAttempts: 1}}, Slots: []backends.Slot{{Worker: "evil"}}}
	res, err := s.Commit(t.Context(), backends.CommitContent{Sidecar: 1, Claims: []backends.Claim{c}})
	if err != nil || len(res.Claims) != 1 {
		t.Fatalf("%+v, %v", res, err)
	}
	says(t, res.Claims[0].Err, false, true, "not him")
	c.Slots[0].Worker = "good" // RAISE(ROLLBACK) ended the transaction, and the next one works
	if res, err := s.Commit(t.Context(), backends.CommitContent{Sidecar: 1, Claims: []backends.Claim{c}}); err != nil || len(res.Claims[0].Jobs) != 1 {
		t.Errorf("%+v, %v", res, err)
	}
}

// TestALostSequence: sqlite_sequence is emptied, or set back, as a test suite's clean-up does. No id is used twice.
func TestALostSequence(t *testing.T) {
	t.Parallel()
	for _, damage := range []string{"DELETE FROM sqlite_sequence", "UPDATE sqlite_sequence SET seq = 1 WHERE name = 'qsidecar_jobs'"} {
		s := fresh(t)
		for range 3 {
			if _, err := s.Commit(t.Context(), one); err != nil {
				t.Fatal(err)
			}
		}
		if err := exec(t, s, "INSERT INTO qsidecar_keys (queue, key, job, expires_at, state) VALUES ('q', 'gone', 1040, 9000000000000, 'done')"); err != nil {
			t.Fatal(err)
		}
		if err := exec(t, s, damage); err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for range 3 {
			r, err := s.Commit(t.Context(), one)
			if err != nil {
				t.Fatalf("%s: %v", damage, err)
			}
			id := r.Writes[0].Stored[0].ID
			if len(id) < 4 || id <= "1040" || seen[id] {
				t.Errorf("%s: the new job has the id %s", damage, id)
			}
			seen[id] = true
		}
	}
}

// TestRestoredInACommit: the reply to a COMMIT is lost, an older copy is restored into the file, and another Store commits.
// The commit is reported as lost, which it is, because no other Store uses its row of qsidecar_commits.
func TestRestoredInACommit(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	other := open(t, s.path)
	backup := filepath.Join(t.TempDir(), "backup.db")
	store := func(s *Store) {
		t.Helper()
		if _, err := s.Commit(t.Context(), one); err != nil {
			t.Error(err)
		}
	}
	store(s)
	store(other)
	if err := exec(t, s, "VACUUM INTO '"+backup+"'"); err != nil {
		t.Fatal(err)
	}
	store(s)
	hook := func(before bool) error {
		if before {
			return nil
		}
		s.fault.Store(nil)
		db, err := sql.Open("sqlite", s.path)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		testsqlite.Restore(t, db, backup)
		store(other)
		return errors.New("lost")
	}
	s.fault.Store(&hook)
	_, err := s.Commit(t.Context(), one)
	says(t, err, true, false, "the commit failed")
	if n := ready(t, s); n != 3 {
		t.Errorf("%d ready, want 2 of the backup and 1 stored after its restore", n)
	}
	store(s)
}

// The outcome of a commit stays unknown while another program holds the lock.
func TestAnOutcomeThatStaysUnknown(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	ctx, cancel := context.WithCancel(t.Context())
	var unlock func()
	hook := func(before bool) error {
		if before {
			return nil
		}
		s.fault.Store(nil)
		unlock = lock(t, s)
		s.onWait(cancel)
		return errors.New("lost")
	}
	s.fault.Store(&hook)
	_, err := s.Commit(ctx, one)
	if !errors.Is(err, backends.ErrUnknownOutcome) {
		t.Errorf("answered %v, want an unknown outcome", err)
	}
	unlock()
	if _, err := s.Commit(t.Context(), one); err != nil {
		t.Error(err)
	}
	if n := ready(t, s); n != 2 {
		t.Errorf("%d ready, want 2", n)
	}
}

// A seal whose answer was lost counts like one whose answer arrived.
func TestALostSeal(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	if _, err := s.Commit(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	s.number++ // a commit that never happened
	if happened, err := s.happened(t.Context()); err != nil || happened {
		t.Fatalf("happened %v, %v", happened, err)
	}
	s.number-- // the answer to its seal was lost: call look again
	if happened, err := s.happened(t.Context()); err != nil || happened {
		t.Fatalf("happened %v, %v; it was sealed", happened, err)
	}
	if happened, err := s.happened(t.Context()); err != nil || !happened {
		t.Fatalf("happened %v, %v; the seal itself did", happened, err)
	}
}

func TestCountsBeyondTheExactAreKept(t *testing.T) {
	t.Parallel()
	s, began := fresh(t), time.Now()
	s.LocalTime = func() time.Time { return began }
	add := func(n string) {
		if err := exec(t, s, `WITH RECURSIVE c (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < `+n+`)
			INSERT INTO qsidecar_jobs (queue, position) SELECT 'q', i FROM c`); err != nil {
			t.Fatal(err)
		}
	}
	stats := func() backends.QueueStats {
		st, err := s.Stats(t.Context(), "q")
		if err != nil {
			t.Fatal(err)
		}
		return st[0]
	}
	add("10000")
	if st := stats(); st.Ready != 10_000 || st.Approx {
		t.Errorf("%+v, want exactly 10000", st)
	}
	add("5000")
	if st := stats(); st.Ready != 15_000 || !st.Approx {
		t.Errorf("%+v, want about 15000", st)
	}
	after := func(d time.Duration) { // however long this test takes
		s.LocalTime = func() time.Time { return began.Add(d) }
	}
	add("5000")
	after(9 * time.Second)
	if st := stats(); st.Ready != 15_000 || !st.Approx {
		t.Errorf("%+v, want the count of a moment ago", st)
	}
	after(10 * time.Second)
	if st := stats(); st.Ready != 20_000 {
		t.Errorf("%+v, want a fresh count", st)
	}
}
