package main

import (
	"database/sql"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "modernc.org/sqlite" // to create a table of another application, and to lock its file

	"github.com/qsidecar/qsidecar/internal/testwait"
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

// TestProgressOfMigrateAndAdopt checks that migrate and adopt show on a terminal that they work, and nowhere else. Another
// program locks the database until their progress is shown.
func TestProgressOfMigrateAndAdopt(t *testing.T) {
	h := newHost(t)
	h.progress = time.Millisecond
	for _, c := range []struct{ command, table, done, progress string }{
		{"migrate", "", "main: the tables in ", "creating or updating the tables … ("},
		{"adopt", "orders", "table: orders", "examining orders … ("},
	} {
		file := filepath.Join(h.dir, c.command+".db")
		db, err := sql.Open("sqlite", file)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		db.SetMaxOpenConns(1)
		exec := func(statement string) {
			t.Helper()
			if _, err := db.Exec(statement); err != nil {
				t.Fatal(err)
			}
		}
		exec("CREATE TABLE orders (id integer PRIMARY KEY, status text, body text)")
		exec("INSERT INTO orders VALUES (1, 'waiting', 'an order')")
		args := append([]string{c.command, "--database", "sqlite:" + file}, strings.Fields(c.table)...)
		exec("BEGIN EXCLUSIVE")
		h.terminal = true
		r := h.start(strings.NewReader(""), args...)
		testwait.Until(t, c.command+" shows its progress", func() bool { return strings.Contains(r.errOut.String(), c.progress) || r.ended() })
		exec("COMMIT")
		if code := r.wait(); code != exitOK || !strings.Contains(r.out.String(), c.done) || !strings.HasPrefix(r.errOut.String(), c.progress) || !strings.HasSuffix(r.errOut.String(), "\r\x1b[K") {
			t.Errorf("%s: %d, %q, %q", c.command, code, r.out, r.errOut)
		}
		h.terminal = false
		if r := h.run(args...); r.code != exitOK || !strings.Contains(r.out, c.done) || strings.Contains(r.err, "…") {
			t.Errorf("%s without a terminal: %d, %q, %q", c.command, r.code, r.out, r.err)
		}
	}
}
