package postgres

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestAnsweredIsOnDisk: the server crashes as soon as a write has been answered, and still has
// the write. Only a commit of claims alone need not wait for the disk.
func TestAnsweredIsOnDisk(t *testing.T) {
	t.Setenv(testserver.EnvURL, "") // a server that can be damaged
	// Data that no commit waits for is in no file before the crash (see stopLogWriter).
	p, err := testserver.StartPostgres(t.Context(), testserver.NewestPostgres, testserver.Options{Durable: true, Settings: map[string]string{
		"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB", "wal_level": "minimal", "max_wal_senders": "0", "autovacuum": "off",
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
	s := open(t, Options{URL: p.Admin()})
	beat(t, s, 1)
	fill(t, s, 8)
	claims := claimBatch(1, 8, 1)
	claims.Claims[0].Slots[6].Prefetch = true // for "deliver"
	r, err := s.Commit(t.Context(), claims)
	if err != nil {
		t.Fatal(err)
	}
	jobs := r.Claims[0].Jobs
	must(t, p.Admin(), "CREATE TABLE synced ()") // also syncs the claims
	one := func(n int) []backends.Lease { return []backends.Lease{{Job: jobs[n].ID, Token: jobs[n].Token}} }
	write := func(w backends.Write) func(*Store) error {
		return func(s *Store) error {
			_, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{w}})
			return err
		}
	}
	command := func(c backends.Command) func(*Store) error {
		c.Queue = "q"
		return func(s *Store) error { _, _, err := s.Command(t.Context(), c); return err }
	}
	job := func(n int, what string) string {
		return fmt.Sprintf("SELECT coalesce((SELECT %s FROM qsidecar.qsidecar_jobs WHERE id = %s), 'gone')", what, jobs[n].ID)
	}
	for _, step := range []struct {
		name        string
		do          func(*Store) error
		query, want string
	}{
		{"a claim alone, which need not", func(s *Store) error { fill(t, s, 1); take(t, s, 1, 1, 100); return nil },
			"SELECT string_agg(state, ' ') FROM qsidecar.qsidecar_jobs WHERE id > " + jobs[7].ID, "ready"},
		{"enqueue", write(backends.Enqueue{Jobs: []backends.NewJob{{Queue: "new", Key: "k"}}}),
			"SELECT string_agg(state, ' ') FROM qsidecar.qsidecar_jobs WHERE queue = 'new'", "ready"},
		{"ack", write(backends.Ack{Leases: one(0)}), job(0, "state"), "gone"},
		{"ack with another job", write(backends.Ack{Leases: one(1), Enqueue: []backends.NewJob{{Queue: "next"}}}),
			"SELECT string_agg(state, ' ') FROM qsidecar.qsidecar_jobs WHERE queue = 'next'", "ready"},
		{"nack", write(backends.Nack{Leases: one(2), Delay: time.Hour, HasDelay: true}), job(2, "state"), "scheduled"},
		{"bury", write(backends.Nack{Leases: one(3), Dead: true}), job(3, "state"), "dead"},
		{"extend", write(backends.Extend{Leases: one(4), Lease: time.Hour}), job(4, "lease_ms::text"), "3600000"},
		{"release", write(backends.Release{Leases: one(5), Uncounted: true}), job(5, "state"), "ready"},
		{"deliver", write(backends.Deliver{Deliveries: []backends.Delivery{{Lease: one(6)[0], Worker: "late"}}}), job(6, "worker"), "late"},
		{"ack with a claim", func(s *Store) error {
			b := claimBatch(1, 1, 200)
			b.Writes = []backends.Write{backends.Ack{Leases: one(7)}}
			_, err := s.Commit(t.Context(), b)
			return err
		}, job(7, "state"), "gone"},
		{"retry", command(backends.Command{Kind: backends.Retry, All: true}), job(3, "state"), "ready"},
		{"delete", command(backends.Command{Kind: backends.Delete, IDs: []string{jobs[3].ID}}), job(3, "state"), "gone"},
		{"purge", command(backends.Command{Kind: backends.Purge, State: backends.StateScheduled}), job(2, "state"), "gone"},
		{"pause", command(backends.Command{Kind: backends.Pause}), "SELECT coalesce(string_agg(queue, ' '), '') FROM qsidecar.qsidecar_queues WHERE paused", "q"},
	} {
		t.Run(step.name, func(t *testing.T) {
			writer := stopLogWriter(t, p)
			s := open(t, Options{URL: p.Admin()}) // the previous Store lost its connections
			if err := step.do(s); err != nil {
				t.Fatal(err)
			}
			if err := crash(t, p, writer); err != nil {
				t.Fatal(err)
			}
			c, err := pgx.Connect(t.Context(), p.Admin())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close(t.Context())
			var got string
			if err := c.QueryRow(t.Context(), step.query).Scan(&got); err != nil || got != step.want {
				t.Errorf("after the crash: %q, %v; want %q", got, err, step.want)
			}
		})
	}
}

// stopLogWriter stops the process that writes data to the disk that no commit waits for. It
// returns its id for crash. It stops the process while it sleeps, when it holds no locks.
func stopLogWriter(t *testing.T, p *testserver.Postgres) (pid int) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), p.Admin())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	testwait.Until(t, "the log's writer sleeps", func() bool {
		asleep := false
		if err := c.QueryRow(t.Context(), "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'").Scan(&pid); err != nil {
			return false // the process has not started yet
		}
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			return false // it ended
		}
		if err := c.QueryRow(t.Context(), "SELECT wait_event = 'WalWriterMain' FROM pg_stat_activity WHERE pid = $1", pid).Scan(&asleep); err != nil || !asleep {
			_ = syscall.Kill(pid, syscall.SIGCONT)
			return false
		}
		return true
	})
	return pid
}

// crash kills one of the server's processes. The whole server then drops its memory and
// restarts from its files.
func crash(t *testing.T, p *testserver.Postgres, pid int) error {
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return err
	}
	testwait.Until(t, "the killed process is gone", func() bool { return syscall.Kill(pid, 0) != nil })
	return p.Ready(t.Context())
}
