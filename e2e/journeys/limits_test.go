package journeys

import (
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
)

// TestLimitCommand sets, lists and removes limits of queues.
func TestLimitCommand(t *testing.T) {
	t.Parallel()
	sc := kit.NewSite(t).Start("a")
	run := func(args ...string) kit.Output {
		t.Helper()
		return kit.RunCLI(t, t.TempDir(), nil, append([]string{"limit", "--socket", sc.Socket}, args...)...)
	}
	lists := func(args []string, want string) {
		t.Helper()
		if out := run(args...); out.Code != 0 || strings.Join(strings.Fields(out.Stdout), " ") != want {
			t.Errorf("limit %q: %+v, want %s", args, out, want)
		}
	}
	const head = "QUEUE MAX-CLAIMED RATE BURST GROUP-LIMIT GROUP-ON-FAILURE "
	lists(nil, "no queue has a limit")
	lists([]string{"api", "--max-claimed", "1", "--rate", "30/m"}, "limited api")
	lists([]string{"mail", "--rate", "5/s", "--burst", "9"}, "limited mail")
	lists(nil, head+"api 1 30/m 1 - - mail - 5/s 9 - -")
	lists([]string{"api", "--rate", "0"}, "limited api")
	lists([]string{"api"}, head+"api 1 - - - -")

	c := sc.Dial()
	c.Enqueue("api", 2)
	job := c.ClaimOne("api")
	if r := sc.Dial().Must(kit.Msg{"op": "claim", "queue": "api"}); len(r.Jobs) > 0 {
		t.Error("two jobs are claimed although the cap is 1")
	}
	c.Must(kit.Msg{"op": "ack", "lease": job.Lease})
	c.ClaimOne("api")

	lists([]string{"api", "--none"}, "limited api")
	lists([]string{"mail", "--none"}, "limited mail")
	lists(nil, "no queue has a limit")
	run("--rate", "1/s").WantError(t, 2, "which queue")
	run("api", "--rate", "fast").WantError(t, 2, "100/s")
	run("api", "--burst", "5").WantError(t, 2, "burst belongs to a rate")
	run("api", "--group-limit", "2").WantError(t, 1, "use PostgreSQL")
	run("api", "--max-claimed", "-1").WantError(t, 2, "max_claimed")
}
