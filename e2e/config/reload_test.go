package config

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/admin"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// reloadRun is a sidecar on PostgreSQL whose config changes while workers use it.
type reloadRun struct {
	t      *testing.T
	s      *kit.Site
	srv    *databases.Postgres
	a      *kit.Sidecar
	admin  *kit.Conn
	page   *admin.Listener
	secret string // path of the password file

	// what the current config contains
	queues   map[string]bool
	second   bool // a second socket
	byTCP    bool
	pool     int
	attempts int
	password int
	generation, changes,
	refusals int
}

// TestReloadUnderLoad changes the config in every permitted way while 32 workers enqueue, claim and
// ack. No request fails, no job is lost or delivered twice, and nothing is left over.
func TestReloadUnderLoad(t *testing.T) {
	s, srv := kit.NewPostgresSite(t)
	r := &reloadRun{t: t, s: s, srv: srv, queues: map[string]bool{}, pool: 8, attempts: 20, secret: filepath.Join(s.Dir, "secret")}
	r.passwords()
	r.a = s.Sidecar("a")
	r.write(r.text())
	r.a.Start()
	r.admin = r.a.Dial()
	r.generation = r.status().Generation

	r.page = admin.At(t, r.adminSocket())
	alone, files := r.goroutines(), r.files()
	workers := newReloadWorkers(t, r.a.Socket, 32)
	workers.waitDone(200)
	for n := range kit.Size(200) {
		r.step(n)
		workers.waitDone(workers.acked() + 20) // each config works
	}
	workers.stop()
	r.settleDown(files, alone)
	workers.checkCounts(r.admin.Stats("work"))
	kit.Figure(t, "the config changed %d times (%d refused) under 32 workers: %d jobs, each delivered once; %d descriptors (before: %d), %d goroutines (before: %d) and %d connections at the end",
		r.changes, r.refusals, workers.acked(), r.files(), files, r.goroutines(), alone, len(srv.ConnectionIDs()))
}

// passwords makes the role app log in over TCP with the current password.
func (r *reloadRun) passwords() {
	r.exec("CREATE ROLE app LOGIN SUPERUSER")
	r.rotate()
	file := r.srv.Query(r.srv.Admin(), "SHOW hba_file")[0]
	old, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, append([]byte("host all app 127.0.0.1/32 scram-sha-256\n"), old...), 0o600)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	r.srv.Query(r.srv.Admin(), "SELECT pg_reload_conf()::text")
}

func (r *reloadRun) exec(sql string) {
	r.t.Helper()
	if err := r.srv.Exec(r.t.Context(), sql); err != nil {
		r.t.Fatal(err)
	}
}

// rotate changes the password on the server and in the file.
func (r *reloadRun) rotate() {
	r.t.Helper()
	r.password++
	word := fmt.Sprintf("secret-%d", r.password)
	r.exec("ALTER ROLE app PASSWORD '" + word + "'")
	next := r.secret + ".new"
	if err := errors.Join(os.WriteFile(next, []byte(word+"\n"), 0o600), os.Rename(next, r.secret)); err != nil {
		r.t.Fatal(err)
	}
}

// text returns the current config.
func (r *reloadRun) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "admin: {listen: %s}\nlisten:\n  - socket: %s\n", r.adminSocket(), r.a.Socket)
	if r.second {
		fmt.Fprintf(&b, "  - {socket: %s, mode: \"0600\", allow: [{users: [0], ops: [ping]}]}\n", r.socket2())
	}
	url := strings.Replace(r.s.URL, "postgres@", "app@", 1)
	if r.byTCP {
		url = "postgres://app@" + r.srv.Addr + "/" + r.srv.Name
	}
	fmt.Fprintf(&b, "databases:\n  main: {url: %q, password_file: %s, max_connections: %d, sidecar_timeout: %s}\n", url, r.secret, r.pool, kit.Duration(r.s.SidecarTimeout))
	fmt.Fprintf(&b, "queues:\n  work: {max_attempts: %d}\n", r.attempts)
	for q := range r.queues {
		fmt.Fprintf(&b, "  %s: {}\n", q)
	}
	return b.String()
}

func (r *reloadRun) socket2() string { return filepath.Join(r.s.Dir, "second.sock") }

func (r *reloadRun) adminSocket() string { return filepath.Join(r.s.Dir, "admin.sock") }

func (r *reloadRun) write(text string) {
	r.t.Helper()
	if err := os.WriteFile(r.a.ConfigFile, []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

// step makes the n-th change and checks it.
func (r *reloadRun) step(n int) {
	r.t.Helper()
	switch n % 10 {
	case 0:
		r.queues[fmt.Sprintf("q%d", n)] = true
		r.changed()
		r.admin.Must(kit.Msg{"op": "enqueue", "queue": fmt.Sprintf("q%d", n)})
	case 1:
		r.second = true
		r.changed()
		c := kit.Dial(r.t, r.socket2())
		c.Must(kit.Msg{"op": "ping"})
		c.MustFail("forbidden", kit.Msg{"op": "claim", "queue": "work"})
	case 2:
		r.pool = 5 + n%7
		r.changed()
	case 3:
		r.byTCP = !r.byTCP
		r.changed()
	case 4:
		r.write("queues: {work: {}\n") // the closing bracket is missing
		r.refused()
	case 5:
		r.attempts = 21 + n
		r.changed()
	case 6:
		r.byTCP = true
		r.rotate()
		r.changed()
	case 7:
		r.write(strings.Replace(r.text(), "max_connections", "schema: other, max_connections", 1) +
			"  elsewhere: {database: gone}\n")
		r.refused()
	case 8:
		r.write(strings.Replace(r.text(), r.serverAddress(), "127.0.0.1:1", 1)) // no server listens there
		r.refused()
	default:
		r.second = false
		clear(r.queues)
		r.changed()
		if _, err := net.Dial("unix", r.socket2()); err == nil {
			r.t.Error("a socket that is not configured any more answers")
		}
		r.admin.MustFail("unknown_queue", kit.Msg{"op": "stats", "queue": fmt.Sprintf("q%d", n-9)})
	}
}

// serverAddress returns the server's address in the URL.
func (r *reloadRun) serverAddress() string {
	if r.byTCP {
		return r.srv.Addr
	}
	_, host, _ := strings.Cut(r.s.URL, "host=")
	host, _, _ = strings.Cut(host, "&")
	return host
}

// changed writes the config and waits until it runs, because the sidecar watches it or because a
// command requests it.
func (r *reloadRun) changed() {
	r.t.Helper()
	r.changes++
	r.write(r.text())
	if r.changes%3 > 0 {
		r.admin.Must(kit.Msg{"op": "reload"})
	}
	testwait.Until(r.t, "the config is taken", func() bool {
		st := r.status()
		if st.ConfigError != "" || st.Generation <= r.generation {
			return false
		}
		r.generation = st.Generation
		return true
	})
}

// refused waits until the sidecar rejects the written config and keeps the previous one.
func (r *reloadRun) refused() {
	r.t.Helper()
	r.changes++
	r.refusals++
	r.admin.MustFail("bad_request", kit.Msg{"op": "reload"})
	if st := r.status(); st.ConfigError == "" || st.Generation != r.generation {
		r.t.Errorf("after a config that cannot be: %+v", st)
	}
}

// status returns the sidecar's status.
func (r *reloadRun) status() *kit.Reply {
	r.t.Helper()
	return r.admin.Must(kit.Msg{"op": "status"})
}

// files returns the number of the sidecar's descriptors.
func (r *reloadRun) files() int {
	r.t.Helper()
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", r.a.Cmd.Process.Pid))
	if err != nil {
		r.t.Fatal(err)
	}
	return len(all)
}

// goroutines returns the number of the sidecar's goroutines. Some are short-lived, so it is the
// most frequent number.
func (r *reloadRun) goroutines() (usual int) {
	r.t.Helper()
	seen := map[int]int{}
	for range 50 {
		n := int(r.page.Scrape().Series["go_goroutines"])
		if seen[n]++; seen[n] > seen[usual] {
			usual = n
		}
	}
	if usual == 0 {
		r.t.Fatal("/metrics does not count goroutines")
	}
	return usual
}

// settleDown waits until the configs have left nothing behind: the sidecar has as many descriptors
// and goroutines as before the workers.
func (r *reloadRun) settleDown(files, goroutines int) {
	r.t.Helper()
	const more = 6 // connections of the pool that open and close
	testwait.Until(r.t, "the connections of old pools are closed", func() bool {
		return len(r.srv.ConnectionIDs()) <= r.pool+3 // plus the listener's, the heartbeat's and one that is closing
	})
	testwait.Until(r.t, "no descriptors are left over", func() bool { return r.files() <= files+more })
	testwait.Until(r.t, "no goroutines are left over", func() bool { return r.goroutines() <= goroutines })
	log := r.a.Log()
	for _, word := range []string{"secret-", "panic", "DATA RACE"} {
		if strings.Contains(log, word) {
			r.t.Errorf("the log has %q:\n%s", word, log)
		}
	}
}

// reloadWorkers enqueue and process jobs repeatedly, each on its own connection.
type reloadWorkers struct {
	t     *testing.T
	sent  atomic.Int64 // enqueued jobs
	done  atomic.Int64
	end   atomic.Bool
	all   sync.WaitGroup
	conns []*kit.Wire
	mu    sync.Mutex
	seen  map[string]int
	wrong []string
}

func newReloadWorkers(t *testing.T, socket string, n int) *reloadWorkers {
	w := &reloadWorkers{t: t, seen: map[string]int{}}
	for i := range n {
		conn, err := kit.DialWire(socket)
		if err != nil {
			t.Fatal(err)
		}
		w.conns = append(w.conns, conn)
		w.all.Go(func() {
			if err := w.work(conn, i); err != nil {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.wrong = append(w.wrong, fmt.Sprintf("worker %d: %v", i, err))
			}
		})
	}
	t.Cleanup(w.stop)
	return w
}

func (w *reloadWorkers) work(c *kit.Wire, i int) error {
	for n := 0; !w.end.Load(); n++ {
		if err := c.SetDeadline(testwait.Deadline()); err != nil {
			return err
		}
		payload := fmt.Sprintf("%d-%d", i, n)
		if r, err := c.Call(kit.Msg{"op": "enqueue", "queue": "work", "payload": payload}); err != nil {
			return err
		} else if r.Error != nil {
			return fmt.Errorf("enqueue: %w", r.Error)
		}
		w.sent.Add(1)
		r, err := c.Call(kit.Msg{"op": "claim", "queue": "work", "wait_ms": rand.IntN(2) * 10_000, "max": 1})
		if err != nil {
			return err
		}
		if r.Error != nil {
			return fmt.Errorf("claim: %w", r.Error)
		}
		for _, j := range r.Jobs {
			w.mu.Lock()
			w.seen[j.Payload]++
			w.mu.Unlock()
			if r, err := c.Call(kit.Msg{"op": "ack", "lease": j.Lease}); err != nil {
				return err
			} else if r.Error != nil {
				return fmt.Errorf("ack: %w", r.Error)
			}
			w.done.Add(1)
		}
	}
	return nil
}

func (w *reloadWorkers) acked() int { return int(w.done.Load()) }

// waitDone waits until n jobs are done.
func (w *reloadWorkers) waitDone(n int) {
	w.t.Helper()
	testwait.Until(w.t, fmt.Sprintf("%d jobs are done", n), func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.wrong) > 0 {
			w.t.Fatalf("requests failed:\n%s", strings.Join(w.wrong, "\n"))
		}
		return w.acked() >= n
	})
}

// stop ends the workers and their connections. It can be called twice.
func (w *reloadWorkers) stop() {
	w.end.Store(true)
	w.all.Wait()
	for _, conn := range w.conns {
		conn.Close()
	}
}

// checkCounts checks that enqueued jobs are either left in the queue or were delivered once.
func (w *reloadWorkers) checkCounts(left kit.QueueStats) {
	w.t.Helper()
	if sent := int(w.sent.Load()); len(w.seen)+left.Ready != sent || left.Claimed+left.Scheduled+left.Dead > 0 {
		w.t.Errorf("%d jobs were enqueued and %d delivered, and the queue has %+v", sent, len(w.seen), left)
	}
	for _, x := range w.wrong {
		w.t.Error(x)
	}
	for payload, n := range w.seen {
		if n != 1 {
			w.t.Errorf("the job %s was delivered %d times", payload, n)
		}
	}
}
