package mysql

import (
	"bytes"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestKilledSessions ends sessions at any moment and checks that each answer is true.
func TestKilledSessions(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		name := m.Database(t)
		s := open(t, Options{URL: m.URL(name)})
		const writers, each = 6, 40
		var answers [writers][each]error
		var running atomic.Int32
		running.Store(writers)
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				defer running.Add(-1)
				for i := range each {
					j := backends.NewJob{Queue: "q", Payload: fmt.Appendf(nil, "%d-%d", w, i)}
					_, answers[w][i] = s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{j, j}}}})
				}
			})
		}
		killed := 0
		for running.Load() > 0 {
			ids, err := m.Connections(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			for _, id := range ids {
				if err := m.Kill(t.Context(), id); err != nil {
					t.Fatal(err)
				}
				killed++
			}
		}
		wg.Wait()
		if killed == 0 {
			t.Error("nothing was killed")
		}
		failed := 0
		for w := range writers {
			for i, err := range answers[w] {
				n := numberOf(t, m, name, fmt.Sprintf("SELECT COUNT(*) FROM qsidecar_jobs WHERE payload = '%d-%d'", w, i))
				switch {
				case err == nil && n == 2, errors.Is(err, backends.ErrUnknownOutcome) && (n == 0 || n == 2):
				case backends.Retryable(err) && n == 0:
					failed++
				default:
					t.Errorf("answered %v, and %d jobs are there", err, n)
				}
			}
		}
		t.Logf("%s: %d sessions were killed; %d of %d commits failed", m.Version, killed, failed, writers*each)
	})
}

// losesReply loses the reply that it is armed for: it calls the function instead of the read, and breaks.
type losesReply struct {
	net.Conn
	armed *atomic.Pointer[func()]
}

func (l losesReply) Read(b []byte) (int, error) {
	if f := l.armed.Swap(nil); f != nil {
		(*f)()
		return 0, io.ErrUnexpectedEOF
	}
	return l.Conn.Read(b)
}

// TestLostIDs checks that a commit whose reply got lost isn't a success for the enqueue in it: the ids of its jobs are not known.
func TestLostIDs(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		name := m.Database(t)
		var armed atomic.Pointer[func()]
		s := open(t, Options{URL: m.URL(name), wrap: func(c net.Conn) net.Conn { return losesReply{c, &armed} }})
		join(t, s, 1)
		fillBy(t, s, 1, 1)
		jobs := claimJobs(t, s, 1, 1, 1)
		committed := func() {
			testwait.Until(t, "the job is stored", func() bool {
				return numberOf(t, m, name, "SELECT COUNT(*) FROM qsidecar_jobs WHERE payload = 'new'") == 1
			})
		}
		hook := func(_ *session.Conn, before bool) {
			if before {
				s.fault.Store(nil)
				armed.Store(&committed)
			}
		}
		s.fault.Store(&hook)
		res, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{
			backends.Ack{Leases: leasesOf(jobs)},
			backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Payload: []byte("new")}}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		if ack := res.Writes[0]; ack.Err != nil || len(ack.Lost) > 0 {
			t.Errorf("the ack was committed, and the answer is %+v", ack)
		}
		if enqueue := res.Writes[1]; !errors.Is(enqueue.Err, backends.ErrUnknownOutcome) {
			t.Errorf("the ids of the enqueue got lost, and the answer is %+v", enqueue)
		}
	})
}

// TestDeadlockIsRetried checks that a commit is retried after a deadlock with a program that locks in
// another order.
func TestDeadlockIsRetried(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		name := m.Database(t)
		s := open(t, Options{URL: m.URL(name), rowWait: testwait.Limit})
		join(t, s, 1)
		fillBy(t, s, 300, 300)
		jobs := claimJobs(t, s, 1, 2, 1)
		ids := []string{jobs[0].ID, jobs[1].ID}
		c := connect(t, m, name)
		runSQL(t, c, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", "START TRANSACTION", "UPDATE qsidecar_jobs SET timeout_ms = 5 WHERE state = 'ready'", // much to roll back, so the server chooses the other transaction as the victim
			"SELECT 1 FROM qsidecar_jobs WHERE id = "+ids[1]+" FOR UPDATE")
		done := make(chan error, 1)
		go func() {
			_, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Nack{Leases: leasesOf(jobs)}}})
			done <- err
		}()
		other := connect(t, m, name)
		testwait.Until(t, "the nack has locked the first row, and must wait for the second", func() bool {
			_, err := other.ExecContext(t.Context(), "SELECT 1 FROM qsidecar_jobs WHERE id = "+ids[0]+" FOR UPDATE NOWAIT")
			if err != nil && !session.IsCode(err, codeNoWait, codeLockWait) {
				t.Fatal(err)
			}
			return err != nil
		})
		runSQL(t, c, "SELECT 1 FROM qsidecar_jobs WHERE id = "+ids[0]+" FOR UPDATE", "COMMIT")
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if n := s.Usage().Retries[backends.RetryConflict]; n == 0 {
			t.Error("no retry is counted as a conflict")
		}
	})
}

// TestAckBesideClaimCommitsOnce checks that the transaction of a plain ack, with another statement after it, is not
// run again to look at the ack's row.
func TestAckBesideClaimCommitsOnce(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		s := open(t, Options{URL: m.URL(m.Database(t))})
		join(t, s, 1)
		fillBy(t, s, 3, 3)
		b := claimOf(1, 2, 2) // the claim's UPDATE changes another number of rows than the ack
		b.Writes = []backends.Write{backends.Ack{Leases: leasesOf(claimJobs(t, s, 1, 1, 1))}}
		commits := 0
		count := func(_ *session.Conn, before bool) {
			if before {
				commits++
			}
		}
		s.fault.Store(&count)
		r, err := s.Commit(t.Context(), b)
		if err != nil || len(r.Writes[0].Lost) != 0 || len(r.Claims[0].Jobs) != 2 || commits != 1 {
			t.Errorf("%+v, %v, after %d commits; want one", r, err, commits)
		}
	})
}

// TestPackets checks that many jobs are spread over packets, and that a job that fits into no packet harms
// no other client.
func TestPackets(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		s := open(t, Options{URL: m.URL(m.Database(t)), packet: 4 << 20}) // 64 MB would take long
		join(t, s, 1)
		var e backends.Enqueue
		for i := range 40 {
			e.Jobs = append(e.Jobs, backends.NewJob{Queue: "q", Payload: bytes.Repeat([]byte{byte(i)}, 300_000), Key: fmt.Sprint(i)})
		}
		for i, st := range write(t, s, e).Stored {
			if st.Duplicate || st.ID == "" {
				t.Fatalf("job %d: %+v", i, st)
			}
		}
		large := backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Payload: make([]byte, 4<<20)}}}
		_, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{large}})
		if !backends.IsRefused(err) || !strings.Contains(err.Error(), "max_allowed_packet") {
			t.Fatalf("answered %v", err)
		}
		jobs := claimJobs(t, s, 1, 10, 1)
		for i, j := range jobs {
			if len(j.Payload) != 300_000 || j.Payload[0] != byte(i) {
				t.Fatalf("job %d came back with %d bytes", i, len(j.Payload))
			}
		}
		if len(jobs) != 10 {
			t.Fatalf("%d jobs fit 4 MiB, want 10", len(jobs))
		}
	})
}

// TestAbandonedSessionBlocksNoTransaction cuts the connection in the midst of a transaction and checks that the
// locks of its session block no other transaction.
func TestAbandonedSessionBlocksNoTransaction(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		s := open(t, Options{URL: m.URL(m.Database(t)), MaxConnections: minConnections})
		join(t, s, 1)
		fillBy(t, s, 1, 1)
		j := claimJobs(t, s, 1, 1, 1)
		c, err := s.pool.Take(t.Context(), &s.Meter)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Exec(t.Context(), "START TRANSACTION; UPDATE qsidecar_jobs SET losses = 7"); err != nil {
			t.Fatal(err)
		}
		// The sidecar abandons the connection, and the server does not notice.
		left := &session.Conn{Raw: c.Raw, Wire: c.Wire}
		defer left.Close()
		ours, theirs := net.Pipe()
		defer theirs.Close()
		c.Raw, c.Wire, c.Bad, c.Counter.Abandoned = deaf{}, ours, true, c.Name
		s.pool.Put(c)
		if r := write(t, s, backends.Nack{Leases: leasesOf(j)}); len(r.Lost) != 0 {
			t.Errorf("lost %v", r.Lost)
		}
	})
}

// deaf is a connection whose Close does not reach the server.
type deaf struct{ driver.Conn }

func (deaf) Close() error { return nil }

// TestIdsAfterARestart checks that ids of deleted jobs are not assigned again.
func TestIdsAfterARestart(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs this")
	}
	t.Parallel()
	for _, kind := range testserver.MySQLKinds() {
		t.Run(string(kind), func(t *testing.T) {
			m, err := testserver.StartMySQL(t.Context(), kind, testserver.Options{Durable: true})
			if errors.Is(err, testserver.ErrUnavailable) {
				t.Log(err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := m.Stop(); err != nil {
					t.Error(err)
				}
			}()
			name := fmt.Sprintf("restarted_%d", len(kind))
			if err := m.Exec(t.Context(), "CREATE DATABASE "+name); err != nil {
				t.Fatal(err)
			}
			s := open(t, Options{URL: m.URL(name)})
			join(t, s, 1)
			last := ""
			for _, end := range []func() error{m.Kill9, m.Halt} {
				fillBy(t, s, 5, 5)
				for _, st := range write(t, s, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}, {Queue: "q"}}}).Stored {
					if len(st.ID) < len(last) || len(st.ID) == len(last) && st.ID <= last {
						t.Fatalf("%s after %s", st.ID, last)
					}
					last = st.ID
				}
				write(t, s, backends.Ack{Leases: leasesOf(claimJobs(t, s, 1, 100, 1))})
				if n := numberOf(t, m, name, "SELECT COUNT(*) FROM qsidecar_jobs"); n != 0 {
					t.Fatalf("%d jobs are left", n)
				}
				if err := errors.Join(end(), m.Restart(context.WithoutCancel(t.Context()))); err != nil {
					t.Fatal(err)
				}
			}
			st := write(t, s, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}}).Stored[0]
			if len(st.ID) < len(last) || len(st.ID) == len(last) && st.ID <= last {
				t.Errorf("after a restart %s, after %s", st.ID, last)
			}
		})
	}
}
