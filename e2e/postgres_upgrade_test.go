package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/internal/testserver"
)

// previousProgram is one that knows all but the newest version of PostgreSQL's
// tables: see backends/postgres/latest_previous.go.
func previousProgram(t *testing.T, dir string) string {
	t.Helper()
	to := filepath.Join(dir, "qsidecar-previous")
	build := exec.Command("go", "build", "-trimpath", "-tags", "qsidecar_previous_schema", "-o", to, "../cmd/qsidecar")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the program of the version before: %v\n%s", err, out)
	}
	return to
}

// version is that of the tables.
func (p *server) version() string {
	p.t.Helper()
	return strings.Join(p.query(p.url, "SELECT version::text FROM qsidecar.qsidecar_meta"), " ")
}

// TestPostgresRollingUpgrade: a sidecar of an older schema version works alone,
// then beside one of the newest, which migrates under its hands, and is upgraded
// at last; all the while workers and sidecars are killed.
func TestPostgresRollingUpgrade(t *testing.T) {
	s, p := newPostgresSite(t)
	s.hostLease = 3 * time.Second
	previous := previousProgram(t, s.dir)
	old, young := s.sidecar("old"), s.sidecar("young")
	old.program = previous
	old.start()
	before := p.version()
	jobs := size(50_000)
	acks, joined, upgraded := 0, 0, 0
	restart := func(r *crashRuntime, sc *sidecar) {
		r.killing(sc.name, sc.kill)
		sc.start()
	}
	v := crashRun{
		Queue: "crash", Jobs: jobs, Workers: 16,
		Sidecars: []*sidecar{old, young}, // the workers of the second wait until it is there
		Killers: []killer{
			{Every: 100, Strike: killWorker},
			{Every: jobs / 20, Strike: func(r *crashRuntime) {
				switch acks += jobs / 20; {
				case acks <= jobs/5: // the old one alone
					restart(r, old)
				case joined == 0:
					if v := p.version(); v != before {
						t.Errorf("version %s before anybody of the newest came", v)
					}
					young.start()
					joined = acks
				case acks <= jobs*4/5: // both
					restart(r, []*sidecar{old, young}[r.rand.IntN(2)])
				case upgraded == 0:
					if known := p.query(p.url, "SELECT coalesce(knows, 1)::text FROM qsidecar.qsidecar_hosts WHERE NOT dead GROUP BY 1"); len(known) != 2 {
						t.Errorf("sidecars that know the versions %v, want two kinds", known)
					}
					old.program = ""
					restart(r, old)
					upgraded = acks
				}
			}},
		},
		Left: p.jobs,
	}.run(t)
	judgeCrash(t, v)
	if joined == 0 || upgraded == 0 {
		t.Errorf("the newest joined after %d acks, the old one was upgraded after %d", joined, upgraded)
	}
	after := p.version()
	if before == after {
		t.Errorf("the tables stayed of version %s", before)
	}
	figure(t, "the tables were of version %s, and of %s after %d of %d acks; the old program worked until %d", before, after, joined, jobs, upgraded)
}

// TestPostgresWithoutDDL: the tables' owner runs by hand what migrate --print
// shows, and serve runs under a role that may make nothing.
func TestPostgresWithoutDDL(t *testing.T) {
	s, p := newPostgresSite(t)
	s.hostLease = 2 * time.Second
	ctx := t.Context()
	owner := strings.Replace(p.url, "postgres@", "owner@", 1)
	for url, sql := range map[string]string{
		p.Admin(): "CREATE ROLE owner LOGIN; CREATE ROLE runner LOGIN; GRANT CREATE ON DATABASE e2e TO owner;",
		p.url:     "REVOKE ALL ON SCHEMA public FROM PUBLIC;",
	} {
		if err := testserver.RunScript(ctx, url, sql); err != nil {
			t.Fatal(err)
		}
	}
	s.url = strings.Replace(p.url, "postgres@", "runner@", 1)
	sc := s.sidecar("a")
	refuses := func(advice string) {
		t.Helper()
		sc.launch()
		if code := sc.exit(patience); code == 0 || code == 2 {
			t.Errorf("serve exits with %d", code)
		}
		if said := sc.readLog(); !strings.Contains(said, "`"+advice+"`") {
			t.Errorf("serve does not say to run %s:\n%s", advice, said)
		}
	}
	byHand := func(program string, args ...string) {
		t.Helper()
		args = append([]string{"migrate", "--print", "--role", "runner", "--config", sc.config}, args...)
		sql, err := exec.Command(program, args...).Output()
		if err != nil {
			t.Fatalf("%s %v: %v", program, args, err)
		}
		if err := testserver.RunScript(ctx, owner, string(sql)); err != nil {
			t.Fatal(err)
		}
	}
	refuses("qsidecar migrate --print")
	byHand(previousProgram(t, s.dir))
	before := p.version()
	refuses("qsidecar migrate --print --from " + before)
	byHand(binary, "--from", before)
	sc.start()

	c := sc.dial()
	ids := c.enqueueN("mail", 4)
	c.must(msg{"op": "ack", "lease": c.claimOne("mail").Lease})
	held := c.claimOne("mail")
	c.must(msg{"op": "nack", "lease": c.claimOne("mail").Lease, "delay_ms": 1})
	sc.kill() // its jobs are free again within the lease period
	next := s.started("b")
	w := next.dial()
	var again []wireJob
	for range len(ids) - 1 {
		again = append(again, w.claimOne("mail"))
	}
	for _, job := range again {
		if job.ID == held.ID && job.Attempt != 2 {
			t.Errorf("the job of the sidecar that was killed: attempt %d, want 2", job.Attempt)
		}
		w.must(msg{"op": "ack", "lease": job.Lease})
	}
	for _, req := range []msg{
		{"op": "stats"}, {"op": "peek", "queue": "mail"}, {"op": "pause", "queue": "mail"}, {"op": "resume", "queue": "mail"},
		{"op": "purge", "queue": "mail", "state": "ready"}, {"op": "retry", "queue": "mail", "all": true},
	} {
		w.must(req)
	}
	if left := p.jobs(t); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if made := p.query(p.url, "SELECT DISTINCT tableowner::text FROM pg_tables WHERE schemaname = 'qsidecar'"); fmt.Sprint(made) != "[owner]" {
		t.Errorf("the tables belong to %v", made)
	}
}
