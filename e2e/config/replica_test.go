package config

import (
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestReplicaIsDown names a replica that is down. The primary answers, and status shows why, without the password. A reload
// names another one, which is the primary itself.
func TestReplicaIsDown(t *testing.T) {
	s, _ := kit.NewPostgresSite(t)
	down := "postgres://app:" + marker + "@127.0.0.1:1/app"
	s.DatabaseOptions = ", replica_url: '" + down + "'"
	sc := s.Start("a")
	c := sc.Dial()
	c.Enqueue("q", 1)
	status := func() string {
		t.Helper()
		if n := c.Stats("q").Ready; n != 1 {
			t.Fatalf("stats count %d ready jobs", n)
		}
		out := kit.RunCLI(t, s.Dir, nil, "status", "--socket", sc.Socket)
		if out.Code != 0 || strings.Contains(out.Stdout+out.Stderr+sc.Log(), marker) {
			t.Fatalf("status exits with %d: %s%s\n%s", out.Code, out.Stdout, out.Stderr, sc.Log())
		}
		return out.Stdout
	}
	const fallback = "statistics come from the primary: "
	if text := status(); !strings.Contains(text, fallback) {
		t.Errorf("status of a replica that is down: %s", text)
	}
	sc.WriteConfig(strings.ReplaceAll(sc.ReadConfig(), down, s.URL))
	c.Must(kit.Msg{"op": "reload"}) // is answered when the change is logged
	testwait.Until(t, "the other replica answers", func() bool { return !strings.Contains(status(), fallback) })
	if log := sc.Log(); !strings.Contains(log, "databases.main.replica_url changed") {
		t.Errorf("the log is %s", log)
	}
}
