package config

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// unread is the limit of the tests below for all messages. mostRSS is the resident memory that a
// sidecar with few connections can then use, as deploy/qsidecar.example.yaml describes.
const (
	unread  = 32 << 20
	mostRSS = 4*unread + 64<<20
)

func newLimitedSite(t *testing.T) *kit.Sidecar {
	s := kit.NewSite(t)
	s.Extra = fmt.Sprintf("limits: {buffer_memory: %dMiB}\n", unread>>20)
	s.Queues += "  work: {}\n"
	return s.Start("a")
}

// judgeMemory checks that other clients work beside clients that do not read, and the sidecar's
// memory.
func judgeMemory(t *testing.T, a *kit.Sidecar, what string) {
	t.Helper()
	crew := newCrew(t, a, 8)
	crew.work(400)
	now, peak := a.RSS()
	kit.Figure(t, "%s: %d MiB resident, %d MiB at the most (limits.buffer_memory is %d MiB)", what, now>>20, peak>>20, unread>>20)
	if peak > mostRSS {
		t.Errorf("%d MiB were resident, at most %d may be", peak>>20, mostRSS>>20)
	}
}

// TestMemoryOfUnreadJobs checks clients that claim large jobs of many queues and read none of them.
// They use no more memory than is allowed, and others work.
func TestMemoryOfUnreadJobs(t *testing.T) {
	const queues, each = 32, 4
	a := newLimitedSite(t)
	db := a.Dial()
	payload := strings.Repeat("x", 4_000_000)
	for i := range queues {
		db.Must(kit.Msg{"op": "enqueue", "queue": fmt.Sprint("big-", i), "payload": payload})
	}
	_, before := a.RSS()
	var deaf []*kit.Wire
	for range queues / each {
		w, err := kit.DialWire(a.Socket)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		deaf = append(deaf, w)
	}
	for i, w := range deaf {
		var claims []kit.Msg
		for n := range each {
			claims = append(claims, kit.Msg{"op": "claim", "id": n, "queue": fmt.Sprint("big-", i*each+n), "wait_ms": 60_000})
		}
		if err := w.Send(claims...); err != nil {
			t.Fatal(err)
		}
	}
	judgeMemory(t, a, fmt.Sprintf("%d unread claims of a large job each (%d MiB before)", queues, before>>20))
}

// TestMemoryOfUnreadReplies checks that unread replies of many clients use no more memory than is
// allowed, and that others work.
func TestMemoryOfUnreadReplies(t *testing.T) {
	const clients = 96
	a := newLimitedSite(t)
	for i := range clients {
		op := "ping" // ping is answered at once; other operations wait for the one before
		if i%2 == 1 {
			op = "peek"
		}
		line := fmt.Sprintf(`{"op":%q,"id":%q,"queue":"none"}`+"\n", op, strings.Repeat("i", 64))
		if op == "ping" {
			line = strings.Replace(line, `,"queue":"none"`, "", 1)
		}
		flood := bytes.Repeat([]byte(line), (3<<20)/len(line))
		w, err := kit.DialWire(a.Socket)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		if err := w.SetWriteDeadline(testwait.Deadline()); err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = w.Write(flood) }() // the server does not read all of it
	}
	judgeMemory(t, a, fmt.Sprintf("replies that %d clients do not read", clients))
}
