package crash

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestSQLiteAnswersAreOnDisk: what is answered as done was synced first (design.md
// §2.1). Nothing here can cut the power, so the system calls of a sidecar are looked
// at: between the request and its answer it writes to the log of the database and has
// the kernel bring that log to the disk.
func TestSQLiteAnswersAreOnDisk(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	s.HostLease = time.Minute // beats, which are not synced, are rare
	s.Queues = "  \"*\": {}\n  kept: {keep: 1h}\n"
	trace := filepath.Join(s.Dir, "trace")
	sc := s.Sidecar("one")
	sc.Wrap = []string{"strace", "-D", "-f", "-q", "-y", "-s", "0", "-e", "trace=write,pwrite64,fsync,fdatasync", "-e", "signal=kill", "-o", trace}
	sc.Start()
	c := sc.Dial()
	c.Put("q", "1", "2", "3", "4", "5")
	c.Put("kept", "1")
	jobs := c.Must(kit.Msg{"op": "claim", "queue": "q", "max": 5}).Jobs
	kept := c.ClaimOne("kept")
	asked := []kit.Msg{
		{"op": "ping"}, // for which nothing is synced, or this test looks at the wrong lines
		{"op": "enqueue", "queue": "q", "payload": "x"},
		{"op": "ack", "lease": jobs[0].Lease},
		{"op": "ack", "lease": kept.Lease},
		{"op": "nack", "lease": jobs[1].Lease, "delay_ms": 3_600_000},
		{"op": "nack", "lease": jobs[2].Lease, "dead": true},
		{"op": "extend", "lease": jobs[3].Lease, "lease_ms": 3_600_000},
		{"op": "release", "queue": "q", "ids": []string{jobs[4].ID}},
		{"op": "retry", "queue": "q", "all": true},
		{"op": "delete", "queue": "q", "ids": []string{jobs[4].ID}},
		{"op": "pause", "queue": "q"},
		{"op": "purge", "queue": "q", "state": "scheduled"},
	}
	for _, request := range asked {
		c.Must(request)
	}
	sc.Signal(syscall.SIGKILL) // so that the last line is that of the last answer
	sc.WaitExit()
	var lines []string
	testwait.Until(t, "the trace is whole", func() bool {
		b, err := os.ReadFile(trace)
		if err != nil {
			t.Fatal(err)
		}
		lines = strings.Split(strings.TrimSpace(string(b)), "\n")
		return strings.Contains(lines[len(lines)-1], "+++ killed")
	})
	answers := syncedAnswers(lines)
	if len(answers) < len(asked) {
		t.Fatalf("%d answers are in the trace, want %d and more:\n%s", len(answers), len(asked), strings.Join(lines, "\n"))
	}
	for i, synced := range answers[len(answers)-len(asked):] {
		if want := asked[i]["op"] != "ping"; synced != want {
			t.Errorf("%v: something was written and synced before the answer: %v, want %v", kit.Brief(asked[i]), synced, want)
		}
	}
}

var (
	tracedCall = regexp.MustCompile(`^(\d+) +(write|pwrite64|fsync|fdatasync)\(\d+<(.*?)>[,) ]`)
	resumed    = regexp.MustCompile(`^(\d+) +<\.\.\. (?:fsync|fdatasync) resumed>`)
)

// syncedAnswers tells of each write to a socket whether a database's log was written
// since the one before, and synced after that.
func syncedAnswers(lines []string) (answers []bool) {
	wrote, synced := false, false
	var syncing []string // threads whose sync began after the write and goes on
	for _, line := range lines {
		if m := resumed.FindStringSubmatch(line); m != nil {
			synced = synced || slices.Contains(syncing, m[1])
			continue
		}
		m := tracedCall.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		switch thread, call, file := m[1], m[2], m[3]; {
		case call == "write" && strings.HasPrefix(file, "socket:") || strings.HasPrefix(file, "UNIX"):
			answers = append(answers, synced)
			wrote, synced, syncing = false, false, nil
		case !strings.HasSuffix(file, "-wal"):
		case call == "pwrite64":
			wrote = true
		case !wrote:
		case strings.HasSuffix(line, "<unfinished ...>"):
			syncing = append(syncing, thread)
		default:
			synced = true
		}
	}
	return answers
}
