package tail

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/qsidecar/qsidecar/protocol"
)

// TestLinesInATerminal checks that each event is one line that fits, with its columns below the heads.
func TestLinesInATerminal(t *testing.T) {
	events := []protocol.JobEvent{
		{Event: "enqueued", At: 1, Queue: "mail", ID: "1", Worker: "web-1"},
		{Event: "failed", At: 2, Queue: "a-queue-with-a-long-name", ID: "123456", Worker: "a-worker-with-a-long-name", Attempt: 10, MaxAttempts: 20, ClaimedAt: protocol.Some[int64](1),
			Cause: "nacked", Error: "Traceback (most recent call last):\n  File \"mail.py\", line 4\tin send\nConnectionRefusedError: [Errno 111] Connection refused"},
		{Event: "claimed", At: 3, Queue: "übung", ID: "1", Worker: "web-1", Attempt: 1, MaxAttempts: 20, EnqueuedAt: protocol.Some[int64](1)},
		{Event: "dead", At: 90_000_000, Queue: "mail", ID: "123456", Attempt: 100, MaxAttempts: 1000, ClaimedAt: protocol.Some[int64](1), Cause: "timeout"},
	}
	for _, width := range []int{80, 100, 139, 140, 200} {
		var head bytes.Buffer
		p := printer{Options: Options{Out: &head, Width: func() int { return width }}}
		p.head()
		lines := strings.Split(strings.TrimSuffix(string(p.lines(events)), "\n"), "\n")
		if len(lines) != len(events) {
			t.Errorf("width %d: %d lines of %d events", width, len(lines), len(events))
		}
		before, _, _ := strings.Cut(head.String(), "EVENT")
		at := utf8.RuneCountInString(before)
		for i, line := range lines {
			if n := utf8.RuneCountInString(line); n > width {
				t.Errorf("width %d: a line has %d characters: %s", width, n, line)
			}
			if width < wideTerminal && !strings.HasPrefix(string([]rune(line)[at:]), events[i].Event) {
				t.Errorf("width %d: the event isn't below its head:\n%s%s", width, head.String(), line)
			}
		}
		if width == 80 {
			t.Logf("\n%s%s", head.String(), strings.Join(lines, "\n"))
		}
	}
	id := protocol.JobEvent{Event: "acked", ID: "0192d3a0-7b1c-7def-8123-456789abcdef", Queue: "mail"}
	p := printer{Options: Options{Out: &bytes.Buffer{}}}
	if line := string(p.lines([]protocol.JobEvent{id})); !strings.Contains(line, id.ID) {
		t.Errorf("a file doesn't have the whole id: %s", line)
	}
}
