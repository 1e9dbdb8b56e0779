package crash

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/crash"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// nextProgram builds a program with one more schema version of PostgreSQL: see
// backends/postgres/migrate/latest_next.go.
func nextProgram(t *testing.T, dir string) string {
	t.Helper()
	to := filepath.Join(dir, "qsidecar-next")
	build := exec.Command("go", "build", "-trimpath", "-tags", "qsidecar_next_schema", "-o", to, kit.Path("cmd/qsidecar"))
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the program of the next version: %v\n%s", err, out)
	}
	return to
}

// version returns the schema version.
func version(p *databases.Postgres) string {
	p.T.Helper()
	return strings.Join(p.Query(p.URL, "SELECT version::text FROM qsidecar.qsidecar_meta"), " ")
}

// TestPostgresRollingUpgrade runs a sidecar of this schema version alone, then beside one of
// the next, which migrates the tables in use, and upgrades it at the end. Workers and sidecars
// are killed all the time.
func TestPostgresRollingUpgrade(t *testing.T) {
	s, p := kit.NewPostgresSite(t)
	next := nextProgram(t, s.Dir)
	old, young := s.Sidecar("old"), s.Sidecar("young")
	young.Program = next
	old.Start()
	before := version(p)
	jobs := kit.Size(50_000)
	acks, joined, upgraded := 0, 0, 0
	restart := func(r *crash.Run, sc *kit.Sidecar) {
		r.Killing(sc.Name, sc.Kill)
		sc.Start()
	}
	v := crash.Plan{
		Queue: "crash", Jobs: jobs, Workers: 16,
		Sidecars: []*kit.Sidecar{old, young}, // the workers of the second one wait until it runs
		Killers: []crash.Killer{
			{Every: 100, Kill: crash.KillWorker},
			{Every: jobs / 20, Kill: func(r *crash.Run) {
				switch acks += jobs / 20; {
				case acks <= jobs/5: // only the old one
					restart(r, old)
				case joined == 0:
					if v := version(p); v != before {
						t.Errorf("version %s before a program of the next version ran", v)
					}
					young.Start()
					joined = acks
				case acks <= jobs*4/5: // both
					restart(r, []*kit.Sidecar{old, young}[r.Rand.IntN(2)])
				case upgraded == 0:
					if known := p.Query(p.URL, "SELECT max_version::text FROM qsidecar.qsidecar_sidecars WHERE NOT dead GROUP BY 1"); len(known) != 2 {
						t.Errorf("sidecars that support the versions %v, want two kinds", known)
					}
					old.Program = next
					restart(r, old)
					upgraded = acks
				}
			}},
		},
		Left: p.Jobs,
	}.Run(t)
	crash.Judge(t, v)
	if joined == 0 || upgraded == 0 {
		t.Errorf("the next one joined after %d acks, the old one was upgraded after %d", joined, upgraded)
	}
	after := version(p)
	if before == after {
		t.Errorf("the tables stayed of version %s", before)
	}
	kit.Figure(t, "the tables were of version %s, and of %s after %d of %d acks; the old program worked until %d", before, after, joined, jobs, upgraded)
}

// TestPostgresWithoutDDL lets the tables' owner run the output of migrate --print, and runs serve
// as a role that can't create anything.
func TestPostgresWithoutDDL(t *testing.T) {
	s, p := kit.NewPostgresSite(t)
	s.SidecarTimeout = 20 * time.Second // longer than a busy machine delays a heartbeat
	ctx := t.Context()
	owner := strings.Replace(p.URL, "postgres@", "owner@", 1)
	for url, sql := range map[string]string{
		p.Admin(): "CREATE ROLE owner LOGIN; CREATE ROLE runner LOGIN; GRANT CREATE ON DATABASE e2e TO owner;",
		p.URL:     "REVOKE ALL ON SCHEMA public FROM PUBLIC;",
	} {
		if err := testserver.RunScript(ctx, url, sql); err != nil {
			t.Fatal(err)
		}
	}
	s.URL = strings.Replace(p.URL, "postgres@", "runner@", 1)
	sc := s.Sidecar("a")
	refuses := func(advice string) {
		t.Helper()
		sc.Launch()
		if code := sc.WaitExit(); code == 0 || code == 2 {
			t.Errorf("serve exits with %d", code)
		}
		if said := sc.Log(); !strings.Contains(said, "`"+advice+"`") {
			t.Errorf("serve does not report to run %s:\n%s", advice, said)
		}
	}
	byHand := func(program string, args ...string) {
		t.Helper()
		args = append([]string{"migrate", "--print", "--role", "runner", "--config", sc.ConfigFile}, args...)
		sql, err := exec.Command(program, args...).Output()
		if err != nil {
			t.Fatalf("%s %v: %v", program, args, err)
		}
		if err := testserver.RunScript(ctx, owner, string(sql)); err != nil {
			t.Fatal(err)
		}
	}
	refuses("qsidecar migrate --print")
	byHand(kit.Binary)
	before := version(p)
	sc.Program = nextProgram(t, s.Dir)
	refuses("qsidecar migrate --print --from " + before)
	byHand(sc.Program, "--from", before)
	sc.Start()

	c := sc.Dial()
	ids := c.Enqueue("mail", 4)
	c.Must(kit.Msg{"op": "ack", "lease": c.ClaimOne("mail").Lease})
	held := c.ClaimOne("mail")
	c.WaitDelivered(held)
	c.Must(kit.Msg{"op": "nack", "lease": c.ClaimOne("mail").Lease, "delay_ms": 1})
	sc.Kill() // its jobs are ready again within the timeout
	next := s.Start("b")
	w := next.Dial()
	var again []kit.Job
	for range len(ids) - 1 {
		again = append(again, w.ClaimOne("mail"))
	}
	for _, job := range again {
		if job.ID == held.ID && job.Attempt != 2 {
			t.Errorf("the job of the sidecar that was killed: attempt %d, want 2", job.Attempt)
		}
		w.Must(kit.Msg{"op": "ack", "lease": job.Lease})
	}
	for _, req := range []kit.Msg{
		{"op": "stats"}, {"op": "peek", "queue": "mail"}, {"op": "pause", "queue": "mail"}, {"op": "resume", "queue": "mail"},
		{"op": "purge", "queue": "mail", "state": "ready"}, {"op": "retry", "queue": "mail", "all": true},
	} {
		w.Must(req)
	}
	if left := p.Jobs(t); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if made := p.Query(p.URL, "SELECT DISTINCT tableowner::text FROM pg_tables WHERE schemaname = 'qsidecar'"); fmt.Sprint(made) != "[owner]" {
		t.Errorf("the tables belong to %v", made)
	}
}
