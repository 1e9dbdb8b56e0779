package mysql

import (
	"database/sql"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// galeraCommits is how many commits of claims and acks TestGaleraConflicts makes.
func galeraCommits() int {
	if os.Getenv("QSIDECAR_SOAK") != "" {
		return 200_000
	}
	return 4_000
}

// TestGaleraConflicts claims and acks the same jobs through two nodes at once. Neither node sees the
// other's locks, so the cluster aborts many transactions. Each claim and ack that was answered must be in
// the table, and no job is held twice. Before, it prints what the server does to transactions without the
// checks of addGaleraCommit.
func TestGaleraConflicts(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs this")
	}
	t.Parallel()
	g := startGalera(t)
	name := g.Nodes[0].Database(t)
	plainPackets(t, g, name)
	workConflicts(t, name, g.Nodes[:2], g.Nodes[2], galeraCommits(), func() {
		// MariaDB 10.11 sometimes crashes when transactions conflict.
		if slices.ContainsFunc(g.Nodes, (*testserver.MySQL).Ended) {
			started, err := g.Revive(testwait.Context(t))
			t.Logf("started %v, which had ended: %v", started, err)
		}
	})
}

// startGalera starts a cluster of three nodes, which ends with the test.
func startGalera(t *testing.T) *testserver.Galera {
	t.Helper()
	g, err := testserver.StartGalera(testwait.Context(t), 3, testserver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Stop(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// workConflicts works off jobs through several nodes at once, with this number of commits. The jobs are counted at another node. repair
// is called after an error, because a server can be gone.
func workConflicts(t *testing.T, name string, nodes []*testserver.MySQL, last *testserver.MySQL, commits int, repair func()) {
	t.Helper()
	var stores []*Store
	for _, node := range nodes {
		own := strings.TrimSuffix(node.URL(name), "/"+name) // the first host
		s := open(t, Options{URL: own + "," + net.JoinHostPort(last.Host, last.Port) + "/" + name})
		if s.Cursors.Share != cursor.OftenShare {
			t.Errorf("claims search for late jobs in 1/%d of the time, want 1/%d in a cluster with several writers", s.Cursors.Share, cursor.OftenShare)
		}
		stores = append(stores, s)
	}
	held := ledger{holder: map[string]string{}, commits: commits, repair: repair}
	for from := 0; from < held.jobs(); from += 1000 {
		write(t, stores[0], backends.Enqueue{Jobs: slices.Repeat([]backends.NewJob{{Queue: "q"}}, min(1000, held.jobs()-from))})
	}
	var wg sync.WaitGroup
	for n, s := range stores {
		sidecar := backends.Identity(n + 1)
		join(t, s, sidecar)
		for w := range 4 {
			wg.Go(func() {
				for i := 0; held.open(); i++ {
					held.work(t, s, sidecar, fmt.Sprintf("worker %d of node %d", w, n), uint64(w*1_000_000+i*10))
				}
			})
		}
	}
	wg.Wait()
	if held.wrong {
		return
	}
	repair()
	t.Logf("%d jobs were claimed and acked in %d commits; %d claims and acks were answered as unavailable", held.ended, held.made, held.unavailable)
	testwait.Until(t, "no job is left, because all were acked", func() bool {
		return numberOf(t, last, name, "SELECT COUNT(*) FROM qsidecar_jobs") == 0
	})
}

// ledger records who holds which job by the Store's answers.
type ledger struct {
	commits     int // how many to make
	repair      func()
	repairing   sync.Mutex
	mu          sync.Mutex
	holder      map[string]string
	ended, made int
	unavailable int
	wrong       bool
}

func (l *ledger) open() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended < l.jobs() && !l.wrong
}

// claimAtOnce is how many jobs a claim takes at most, and an ack ends.
const claimAtOnce = 3

// jobs returns the number of jobs that need all commits: one for each claim, one for each ack.
func (l *ledger) jobs() int { return l.commits / 2 * claimAtOnce }

// work claims some jobs and acks them until that is answered.
func (l *ledger) work(t *testing.T, s *Store, sidecar backends.Identity, worker string, number uint64) {
	r, err := s.Commit(t.Context(), claimOf(sidecar, claimAtOnce, number))
	if !l.answered(t, err) {
		return
	}
	jobs := r.Claims[0].Jobs
	l.mu.Lock()
	for _, j := range jobs {
		if other := l.holder[j.ID]; other != "" {
			t.Errorf("%s got job %s, which %s has or acked", worker, j.ID, other)
			l.wrong = true
		}
		l.holder[j.ID] = worker
	}
	l.mu.Unlock()
	for len(jobs) > 0 {
		r, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Ack{Leases: leasesOf(jobs)}}})
		if !l.answered(t, err) {
			if !l.open() {
				return
			}
			continue
		}
		l.mu.Lock()
		if lost := r.Writes[0].Lost; len(lost) > 0 {
			t.Errorf("%s: an ack lost %v", worker, lost)
			l.wrong = true
		}
		l.ended += len(jobs)
		l.mu.Unlock()
		return
	}
}

// answered reports whether there was no error. No other error than Unavailable is allowed, and none about a conflict.
func (l *ledger) answered(t *testing.T, err error) bool {
	if err != nil {
		l.repairing.Lock()
		l.repair()
		l.repairing.Unlock()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.made++
		return true
	}
	if l.unavailable++; !backends.Retryable(err) || session.IsCode(err, codeDeadlock, codeRollback) {
		t.Errorf("%v", err)
		l.wrong = true
	}
	return false
}

// plainPackets prints how many transactions were answered ok and are not in the table as a whole, when two nodes
// change the same rows and each transaction is one packet (MDEV-35446).
func plainPackets(t *testing.T, g *testserver.Galera, name string) {
	const workers, each = 4, 250 // for each node
	must(t, g.Nodes[0], name, "CREATE TABLE counters (id INT PRIMARY KEY, n INT NOT NULL)")
	must(t, g.Nodes[0], name, "CREATE TABLE entries (worker INT, number INT, part INT, PRIMARY KEY (worker, number, part))")
	must(t, g.Nodes[0], name, "INSERT INTO counters VALUES (0, 0), (1, 0)")
	var wg sync.WaitGroup
	var mu sync.Mutex
	answered := map[string]bool{}
	for w := range 2 * workers {
		c := g.Nodes[w%2].Config(name)
		c.MultiStatements = true
		db, err := sql.Open("mysql", c.FormatDSN())
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			defer db.Close()
			for i := range each {
				_, err := db.ExecContext(t.Context(), fmt.Sprintf(`START TRANSACTION; INSERT INTO entries VALUES (%[1]d, %[2]d, 1);
					UPDATE counters SET n = n + 1 WHERE id = %[2]d %% 2; INSERT INTO entries VALUES (%[1]d, %[2]d, 2); COMMIT`, w, i))
				if err == nil {
					mu.Lock()
					answered[fmt.Sprint(w, "/", i)] = true
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	whole := map[string]bool{}
	db, err := g.Nodes[2].Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rows, err := db.QueryContext(t.Context(), "SELECT CONCAT(worker, '/', number) FROM entries GROUP BY worker, number HAVING COUNT(*) = 2")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		whole[id] = true
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	partial := 0
	for id := range answered {
		if !whole[id] {
			partial++
		}
	}
	t.Logf("without checks: %d of %d packets were answered ok and are not whole", partial, len(answered))
}
