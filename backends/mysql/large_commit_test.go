package mysql

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// TestManyChangesInOneCommit enqueues, extends and settles 1,000 jobs with keys, in one commit each. So each has several
// statements, whose rows have values of their own. The payload of a job is its number.
func TestManyChangesInOneCommit(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		const jobs = 1000
		const me = backends.Identity(0xF000000000000001) // negative in the table
		name := m.Database(t)
		s := open(t, Options{URL: m.URL(name)})
		join(t, s, me)
		const number = "CAST(CONVERT(payload USING utf8mb4) AS SIGNED)"
		count := func(what string, want int64, from string) {
			t.Helper()
			if n := numberOf(t, m, name, "SELECT COUNT(*) FROM qsidecar_jobs j "+strings.ReplaceAll(from, "{i}", number)); n != want {
				t.Errorf("%s: %d rows, want %d", what, n, want)
			}
		}
		commit := func(b backends.CommitContent) backends.Results {
			t.Helper()
			r, err := s.Commit(t.Context(), b)
			if err != nil {
				t.Fatal(err)
			}
			for i, w := range r.Writes {
				if len(w.Lost) > 0 {
					t.Fatalf("write %d lost its lease", i)
				}
			}
			return r
		}

		var e backends.Enqueue
		for i := range jobs {
			e.Jobs = append(e.Jobs, backends.NewJob{Queue: "q", Payload: fmt.Append(nil, i), Key: fmt.Sprintf("k\x00\xff%d", jobs-i), KeyTTL: time.Hour + time.Duration(i)*time.Second})
		}
		write(t, s, e)
		count("keys", jobs, "JOIN qsidecar_keys k ON k.job = j.id AND k.`key` = j.`key` AND k.state IS NULL WHERE TIMESTAMPDIFF(SECOND, j.enqueued_at, k.expires_at) = 3600 + {i}")

		b := claimOf(me, jobs, 1)
		b.Claims[0].Queues[0].RetainDone = time.Hour
		claimed := commit(b).Claims[0].Jobs
		if len(claimed) != jobs {
			t.Fatalf("%d jobs claimed", len(claimed))
		}
		commit(backends.CommitContent{Sidecar: me, Writes: manyExtends(claimed, me)})
		count("timed leases", 334, "WHERE {i} % 3 = 0 AND lease_ms = (1000 + {i}) * 1000 AND due_at IS NOT NULL")
		count("session leases", 666, "WHERE {i} % 3 > 0 AND lease_ms IS NULL AND due_at IS NULL AND owner = -1152921504606846975")
		count("workers", 333, "WHERE {i} % 3 = 1 AND worker <=> IF({i} % 2 = 0, NULL, CONCAT('ключ 🔑''?', {i}))")

		commit(backends.CommitContent{Sidecar: me, Writes: manySettles(claimed)})
		const keyed = "JOIN qsidecar_keys k ON k.job = j.id "
		const failed = keyed + "JOIN qsidecar_failures f ON f.job = j.id AND f.message = last_error "
		count("acks", 200, keyed+"WHERE {i} % 5 = 0 AND j.state = 'done' AND result IS NULL AND k.state = 'done'")
		count("acks with a result", 200, keyed+"WHERE {i} % 5 = 3 AND j.state = 'done' AND result = payload AND k.state = 'done'")
		count("dead jobs", 200, failed+"WHERE {i} % 5 = 2 AND j.state = 'dead' AND last_error = '' AND k.state = 'dead'")
		count("nacks", 200, failed+"WHERE {i} % 5 = 1 AND j.state = IF({i} % 7 = 0, 'ready', 'scheduled') AND last_error LIKE CONCAT({i}, ' %') AND k.state IS NULL")
		count("releases", 200, "WHERE {i} % 5 = 4 AND last_error <=> IF({i} % 2 = 0, NULL, CONCAT('m', {i}))")
		count("expiry times", 400, "JOIN qsidecar_prunable e ON e.job = j.id AND e.prune_at = j.prune_at")
	})
}

func manyExtends(jobs []backends.Job, bind backends.Identity) (all []backends.Write) {
	for i, j := range jobs {
		w := backends.Extend{Leases: leasesOf([]backends.Job{j}), Bind: bind}
		switch {
		case i%3 == 0:
			w.Bind, w.Lease = 0, time.Duration(1000+i)*time.Second
		case i%3 == 2:
			w.Worker = "w2"
		case i%2 == 1:
			w.Worker = fmt.Sprintf("ключ 🔑'?%d", i)
		}
		all = append(all, w)
	}
	return all
}

func manySettles(jobs []backends.Job) (all []backends.Write) {
	for i, j := range jobs {
		l := leasesOf([]backends.Job{j})
		all = append(all, []backends.Write{
			backends.Ack{Leases: l},
			backends.Nack{Leases: l, Error: fmt.Sprint(i, " ") + strings.Repeat("ж'\\", 2000), HasDelay: true, Delay: time.Duration(i%7) * time.Hour},
			backends.Nack{Leases: l, Dead: true},
			backends.Ack{Leases: l, Result: fmt.Append(nil, i)},
			backends.Release{Leases: l, Uncounted: i%2 == 0, Cause: backends.CauseDisconnected, Message: fmt.Sprint("m", i)},
		}[i%5])
	}
	return all
}
