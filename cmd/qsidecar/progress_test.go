package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

// TestProgress checks the progress of retry --all and purge on a terminal, and that it is nowhere else.
func TestProgress(t *testing.T) {
	h := newHost(t)
	h.progress, h.env["QSIDECAR_SOCKET"] = time.Millisecond, filepath.Join(h.dir, "s")
	var waiting *protocol.Request // the command that waits until the progress was asked for twice
	asked := 0
	fakeSidecar(t, h.env["QSIDECAR_SOCKET"], func(req *protocol.Request) []*protocol.Reply {
		done := &protocol.Reply{OK: true, Count: protocol.Some[int64](7)}
		switch {
		case req.Op != protocol.OpStats && !h.terminal:
			done.ID = req.ID
			return []*protocol.Reply{done}
		case req.Op != protocol.OpStats:
			waiting, asked = req, 0
			return nil
		}
		asked++
		stat := protocol.QueueStat{Queue: "mail", Dead: 40000 - int64(asked), Done: 12, Approx: waiting.Op == protocol.OpRetry}
		replies := []*protocol.Reply{{ID: req.ID, OK: true, Queues: []protocol.QueueStat{stat}}}
		if asked == 2 {
			done.ID = waiting.ID
			replies = append(replies, done)
		}
		return replies
	})
	for _, c := range []struct{ args, done, progress string }{
		{"retry mail --all", "retried 7 jobs\n", "retrying the dead jobs of mail … about 39999 left ("},
		{"purge mail --state done --yes", "purged 7 jobs\n", "deleting the done jobs of mail … 12 left ("},
	} {
		h.terminal = true
		r := h.run(strings.Fields(c.args)...)
		if r.code != exitOK || r.out != c.done || !strings.HasPrefix(r.err, c.progress) || !strings.HasSuffix(r.err, ")\x1b[K\r\x1b[K") {
			t.Errorf("%s: %d, %q, %q", c.args, r.code, r.out, r.err)
		}
		h.terminal = false
		if r := h.run(strings.Fields(c.args)...); r.code != exitOK || r.out != c.done || r.err != "" {
			t.Errorf("%s without a terminal: %d, %q, %q", c.args, r.code, r.out, r.err)
		}
	}
}
