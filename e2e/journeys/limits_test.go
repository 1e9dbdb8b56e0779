package journeys

import (
	"os"
	"path/filepath"
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
	const head = "QUEUE MAX-CLAIMED RATE BURST GROUP-LIMIT GROUP-ON-FAILURE GROUP-READY "
	lists(nil, "no queue has a limit")
	lists([]string{"api", "--max-claimed", "1", "--rate", "30/m"}, "limited api")
	lists([]string{"mail", "--rate", "5/s", "--burst", "9"}, "limited mail")
	lists(nil, head+"api 1 30/m 1 - - - mail - 5/s 9 - - -")
	lists([]string{"api", "--rate", "0"}, "limited api")
	lists([]string{"api"}, head+"api 1 - - - - -")

	c := sc.Dial()
	c.Enqueue("api", 2)
	job := c.ClaimOne("api")
	if r := sc.Dial().Must(kit.Msg{"op": "claim", "queue": "api"}); len(r.Jobs) > 0 {
		t.Error("two jobs are claimed although the cap is 1")
	}
	ready := c.Must(kit.Msg{"op": "peek", "queue": "api", "state": "ready"}).Jobs[0].ID
	if out := kit.RunCLI(t, t.TempDir(), nil, "show", ready, "--socket", sc.Socket); !strings.Contains(out.Stdout, "waits        the queue has reached its limit max_claimed: see `qsidecar limit api`") {
		t.Errorf("show does not print why the job waits: %+v", out)
	}
	if out := kit.RunCLI(t, t.TempDir(), nil, "stats", "api", "--socket", sc.Socket); !strings.Contains(out.Stdout, "open, max 1 claimed, reached") {
		t.Errorf("stats does not print that the limit is reached: %+v", out)
	}
	c.Must(kit.Msg{"op": "ack", "lease": job.Lease})
	c.ClaimOne("api")

	lists([]string{"api", "--none"}, "limited api")
	lists([]string{"mail", "--none"}, "limited mail")
	lists(nil, "no queue has a limit")
	run("--rate", "1/s").WantError(t, 2, "which queue")
	run("api", "--rate", "fast").WantError(t, 2, "100/s")
	run("api", "--burst", "5").WantError(t, 2, "burst belongs to a rate")
	lists([]string{"api", "--group-limit", "2"}, "limited api")
	lists([]string{"api", "--group-ready", "3"}, "limited api")
	lists([]string{"api"}, head+"api - - - 2 - 3")
	lists([]string{"api", "--group-ready", "0"}, "limited api")
	lists([]string{"api", "--group-limit", "0"}, "limited api")
	run("api", "--max-claimed", "-1").WantError(t, 2, "max_claimed")
}

// TestLimitApply checks that a file of limits changes what it names, once, and that the output lists it.
func TestLimitApply(t *testing.T) {
	t.Parallel()
	sc := kit.NewSite(t).Start("a")
	dir := t.TempDir()
	apply := func(text string, code int, want string, args ...string) {
		t.Helper()
		file := filepath.Join(dir, "limits.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		out := kit.RunCLI(t, dir, nil, append([]string{"limit", "apply", file, "--socket", sc.Socket}, args...)...)
		if out.Code != code || strings.TrimSpace(out.Stdout) != want {
			t.Errorf("%q %q: %+v, want %d and %s", text, args, out, code, want)
		}
	}
	const same = "the limits are as in the file: nothing to change"
	const both = "queues:\n  api: {max_claimed: 3, rate: 100/s, burst: 20}\n  mail: {max_claimed: 1}\n"
	apply(both, 3, "api: max_claimed none → 3, rate none → 100/s, burst none → 20 (dry run)\nmail: max_claimed none → 1 (dry run)", "--dry-run", "--exit-code")
	apply(both, 3, "api: max_claimed none → 3, rate none → 100/s, burst none → 20\nmail: max_claimed none → 1", "--exit-code")
	apply(both, 0, same, "--exit-code")
	apply("queues: {api: {rate: 100/s}}\n", 0, "api: max_claimed 3 → none, burst 20 → 100")
	apply("queues: {api: {rate: 100/s, burst: 100}}\n", 0, same, "--exit-code")
	apply("queues: {api: {rate: 100/s}}\n", 0, "mail: max_claimed 1 → none (dry run)", "--prune", "--dry-run")
	apply("queues: {api: {rate: 100/s}}\n", 3, `{"changed":true,"changes":["max_claimed 1 → none"],"queue":"mail"}`, "--prune", "--exit-code", "--json")
	apply("queues:\n  api: {max_claimd: 3}\n", 2, "")
	apply("", 2, "", "--prune")
	apply("queues:\n", 0, "api: rate 100/s → none, burst 100 → none", "--prune")
	kit.RunCLI(t, dir, nil, "limit", "apply", "--socket", sc.Socket).WantError(t, 2, "one file")
	kit.RunCLI(t, dir, nil, "limit", "apply", filepath.Join(dir, "missing.yaml"), "--socket", sc.Socket).WantError(t, 2, "the file of limits cannot be read")
}

// TestLimitApplyInPart checks that a queue that can't have limits stops no other one.
func TestLimitApplyInPart(t *testing.T) {
	t.Parallel()
	site := kit.NewSite(t)
	site.Queues = "  api: {}\n  mail: {}\n"
	sc := site.Start("a")
	file := filepath.Join(t.TempDir(), "limits.yaml")
	if err := os.WriteFile(file, []byte("queues: {api: {max_claimed: 3}, mial: {max_claimed: 1}, mail: {max_claimed: 2}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out := kit.RunCLI(t, t.TempDir(), nil, "limit", "apply", file, "--socket", sc.Socket)
	out.WantError(t, 1, "1 queue couldn't be changed:\nmial: ")
	if want := "api: max_claimed none → 3\nmail: max_claimed none → 2\n"; out.Stdout != want {
		t.Errorf("it prints %q, want %q", out.Stdout, want)
	}
}
