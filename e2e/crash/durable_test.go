package crash

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testwait"
	"github.com/qsidecar/qsidecar/protocol"
)

// TestSQLiteAnswersAreOnDisk checks that a write is synced before the reply. The test can't cut the
// power, so it traces the sidecar's system calls: between a request and its reply, the sidecar
// writes to the database's log and syncs it.
func TestSQLiteAnswersAreOnDisk(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	s.SidecarTimeout = time.Minute // few heartbeats, which are not synced
	s.Queues = "  \"*\": {}\n  kept: {retention: {done: 1h}}\n"
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
		// Nothing is synced for it, which shows that the test reads the right lines. Its reply is longer than the others.
		{"op": "ping", "id": strings.Repeat("i", protocol.MaxRequestID)},
		{"op": "enqueue", "queue": "q", "payload": "x"},
		{"op": "ack", "lease": jobs[0].Lease},
		{"op": "ack", "lease": kept.Lease},
		{"op": "nack", "lease": jobs[1].Lease, "delay_ms": 3_600_000},
		{"op": "nack", "lease": jobs[2].Lease, "dead": true},
		{"op": "extend", "lease": jobs[3].Lease, "lease_ms": 3_600_000},
		{"op": "reclaim", "queue": "q", "ids": []string{jobs[4].ID}},
		{"op": "retry", "queue": "q", "all": true},
		{"op": "delete", "queue": "q", "ids": []string{jobs[4].ID}},
		{"op": "pause", "queue": "q"},
		{"op": "purge", "queue": "q", "state": "scheduled"},
	}
	for _, request := range asked {
		c.Must(request)
	}
	pingBytes := strconv.Itoa(len(`{"id":"","ok":true}`+"\n") + protocol.MaxRequestID)
	sc.Signal(syscall.SIGKILL)
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
	// For a process that was killed, strace can print its last call twice. So the test counts from the first answer.
	answers := syncedAnswers(lines)
	for len(answers) > 0 && answers[0].bytes != pingBytes {
		answers = answers[1:]
	}
	if len(answers) < len(asked) {
		t.Fatalf("%d answers are in the trace, want %d and more:\n%s", len(answers), len(asked), strings.Join(lines, "\n"))
	}
	for i, request := range asked {
		synced := answers[i].synced
		if want := request["op"] != "ping"; synced != want {
			t.Errorf("%v: something was written and synced before the answer: %v, want %v", kit.Brief(request), synced, want)
		}
	}
}

var (
	tracedCall = regexp.MustCompile(`^(\d+) +(write|pwrite64|fsync|fdatasync)\(\d+<(.*?)>(?:, "".*?, (\d+))?[,) ]`)
	resumed    = regexp.MustCompile(`^(\d+) +<\.\.\. (?:fsync|fdatasync) resumed>`)
)

// answer is a write to a socket.
type answer struct {
	bytes  string // its size
	synced bool   // a database's log was written since the previous answer, and synced afterwards
}

func syncedAnswers(lines []string) (answers []answer) {
	wrote, synced := false, false
	var syncing []string // threads with a sync that began after the write and has not ended
	for _, line := range lines {
		if m := resumed.FindStringSubmatch(line); m != nil {
			synced = synced || slices.Contains(syncing, m[1])
			continue
		}
		m := tracedCall.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		switch thread, call, file, size := m[1], m[2], m[3], m[4]; {
		case call == "write" && strings.HasPrefix(file, "socket:") || strings.HasPrefix(file, "UNIX"):
			answers = append(answers, answer{size, synced})
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
