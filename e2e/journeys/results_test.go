package journeys

import (
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
)

// TestResultsOfOtherHosts waits for jobs on one host that a worker settles on another one, also while the first host's sidecar
// restarts.
func TestResultsOfOtherHosts(t *testing.T) {
	t.Parallel()
	s, _ := kit.NewPostgresSite(t)
	s.Queues = "  kept: {retention: {done: 1h}}\n  \"*\": {}\n"
	a, b := s.Start("a"), s.Start("b")
	c := a.Dial()
	ids := []string{c.Enqueue("kept", 1)[0], c.Enqueue("kept", 1)[0], c.Enqueue("gone", 1)[0]}
	worker := b.Dial()
	waiting := func(queue string, ids ...string) <-chan kit.Output {
		done := make(chan kit.Output, 1)
		go func() {
			done <- kit.RunCLI(t, t.TempDir(), nil, append([]string{"wait", "--socket", a.Socket, "--wait", "3m", queue}, ids...)...)
		}()
		return done
	}
	both, gone := waiting("kept", ids[:2]...), waiting("gone", ids[2])
	worker.Must(kit.Msg{"op": "ack", "lease": worker.ClaimOne("kept").Lease, "result": "first"})
	worker.Must(kit.Msg{"op": "ack", "lease": worker.ClaimOne("gone").Lease, "result": "not kept"})
	if out := <-gone; out.Code != 1 || strings.TrimSpace(out.Stdout) != `{"id":"`+ids[2]+`","state":"deleted"}` {
		t.Errorf("the job that is not kept: %+v", out)
	}
	a.Kill()
	a.Start()
	worker.Must(kit.Msg{"op": "nack", "lease": worker.ClaimOne("kept").Lease, "error": "no such address", "dead": true})
	out := <-both
	for _, want := range []string{`{"id":"` + ids[0] + `","state":"done","result":"first"}`, `{"id":"` + ids[1] + `","state":"dead","last_error":"no such address"}`} {
		if out.Code != 1 || !strings.Contains(out.Stdout, want) {
			t.Errorf("it printed %+v, want %s", out, want)
		}
	}
}
