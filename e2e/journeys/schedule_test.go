package journeys

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
)

// TestScheduleCommand declares, lists, changes and prunes schedules.
func TestScheduleCommand(t *testing.T) {
	t.Parallel()
	sc := kit.NewSite(t).Start("a")
	dir := t.TempDir()
	run := func(args ...string) kit.Output {
		t.Helper()
		return kit.RunCLI(t, dir, nil, append([]string{"schedule", "--socket", sc.Socket}, args...)...)
	}
	prints := func(code int, want string, args ...string) {
		t.Helper()
		if out := run(args...); out.Code != code || strings.Join(strings.Fields(out.Stdout), " ") != want {
			t.Errorf("schedule %q: %+v, want the code %d and %s", args, out, code, want)
		}
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "s.yaml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	prints(0, "there is no schedule", "list")
	write("source: app\nversion: 1\nschedules:\n  a: {queue: q, cron: '0 6 1 1 *', payload: {n: 1}}\n  b: {queue: q, every: 24h}\n")
	prints(3, "created a created b", "apply", "s.yaml", "--dry-run")
	prints(0, "there is no schedule", "list")
	prints(0, "created a created b", "apply", "s.yaml")
	prints(0, "unchanged a unchanged b", "apply", "s.yaml", "--dry-run")

	prints(0, "paused a", "pause", "a")
	run("run", "a")
	if j := sc.Dial().ClaimOne("q"); j.Payload != `{"n":1}` {
		t.Errorf("the job is %+v", j)
	}
	write("source: app\nversion: 2\nschedules:\n  a: {queue: q, cron: '0 7 1 1 *', payload: {n: 1}}\n")
	prints(3, `updated a cron: "0 6 1 1 *" -> "0 7 1 1 *" deleted b`, "apply", "s.yaml", "--prune", "--dry-run")
	prints(0, `updated a cron: "0 6 1 1 *" -> "0 7 1 1 *" deleted b`, "apply", "s.yaml", "--prune")
	if out := run("list"); !strings.Contains(out.Stdout, "paused") || strings.Contains(out.Stdout, "\nb ") {
		t.Errorf("the list is %s", out.Stdout)
	}
	if out := run("show", "a"); !strings.Contains(out.Stdout, "0 7 1 1 *") || !strings.Contains(out.Stdout, "paused") {
		t.Errorf("schedule a: %s", out.Stdout)
	}
	write("source: app\nversion: 1\nschedules:\n  c: {queue: q, every: 1h}\n")
	prints(0, "created c", "apply", "s.yaml", "--prune") // a is of a higher version
	prints(0, "resumed a", "resume", "a")
	prints(0, "deleted a", "delete", "a")

	var many strings.Builder // more than a reply to the op schedules can have
	for i := range 1001 {
		fmt.Fprintf(&many, "  m%04d: {queue: many, every: 24h}\n", i)
	}
	write("source: many\nschedules:\n" + many.String())
	if out := run("apply", "s.yaml"); out.Code != 0 {
		t.Errorf("many schedules: %+v", out)
	}
	if out := run("list", "many"); strings.Count(out.Stdout, "\n") != 1002 || !strings.Contains(out.Stdout, "\nm1000 ") {
		t.Errorf("the list has %d lines", strings.Count(out.Stdout, "\n"))
	}
	write("source: many\nschedules:\n  m0000: {queue: many, every: 24h}\n")
	if out := run("apply", "s.yaml", "--prune"); strings.Count(out.Stdout, "deleted ") != 1000 {
		t.Errorf("pruned %d schedules", strings.Count(out.Stdout, "deleted "))
	}

	write("schedules:\n  d: {queue: q, every: soon}\n")
	run("apply", "s.yaml").WantError(t, 2, `schedules.d.every: "soon" is not a duration`)
	write("schedules:\n  d: {queue: q, cron: '0 25 * * *'}\n")
	run("apply", "s.yaml").WantError(t, 2, `s.yaml:2:17: schedules.d.cron: the cron expression "0 25 * * *"`)
	write("schedules:\n  d: {queue: q, every: 1m}\n")
	run("apply", "s.yaml", "--prune").WantError(t, 2, "source")
	run("show", "x").WantError(t, 1, "there is no schedule x")
	run("hide").WantError(t, 2, "schedule hide")
}
