package adopted

import (
	"database/sql"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/adopt"
)

// example is an example of the page on adopted tables.
type example struct {
	sql    []string // the own consumers' statements, without comments
	queue  string   // name of the queue in the config
	config string   // the queue's config
}

// pageExample reads the example below a heading.
func pageExample(t testing.TB, heading string) (e example) {
	t.Helper()
	page := kit.Path("backends/adopted/README.md")
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "\n### "+heading+"\n")
	rest, _, _ = strings.Cut(rest, "\n### ")
	block := func(kind string) string {
		_, from, there := strings.Cut(rest, "\n```"+kind+"\n")
		block, _, ended := strings.Cut(from, "```")
		if !found || !there || !ended {
			t.Fatalf("%s has no %s under %q", page, kind, heading)
		}
		return block
	}
	var lines []string
	for line := range strings.Lines(block("sql")) {
		if !strings.HasPrefix(line, "--") {
			lines = append(lines, line)
		}
	}
	for statement := range strings.SplitSeq(strings.Join(lines, ""), ";") {
		if statement = strings.TrimSpace(statement); statement != "" {
			e.sql = append(e.sql, statement)
		}
	}
	_, e.config, _ = strings.Cut(block("yaml"), "queues:\n")
	e.queue, _, _ = strings.Cut(strings.TrimSpace(e.config), ":")
	return e
}

// claimByNumber claims rows with the first two statements of the page, which mark rows with a number and
// find them.
func (e example) claimByNumber(t testing.TB, c *sql.Conn, number int) []string {
	t.Helper()
	if _, err := c.ExecContext(t.Context(), e.sql[0], number); err != nil {
		t.Fatal(err)
	}
	rows, err := c.QueryContext(t.Context(), e.sql[1], number)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var items []string
	for rows.Next() {
		var item string
		var payload sql.NullString
		if err := rows.Scan(&item, &payload); err != nil {
			t.Fatal(err)
		}
		items = append(items, item)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return items
}

// table runs the page's config on the system's table with n rows.
func (e example) table(t *testing.T, h adopt.Server, a adopt.Table, n int) *sharedTable {
	t.Helper()
	a.Name = e.queue
	_, a.Config, _ = strings.Cut(e.config, ":")
	return newSharedTable(a, t, h, n)
}

// others makes an own consumer use the sidecar's number, which check reports.
func (b *sharedTable) others(take func()) {
	b.t.Helper()
	take()
	if output := b.sc.Check(b.s.Dir, 1, "--json").Problems(b.t, "error")["token"]; !strings.Contains(output, "but no sidecar claimed them") {
		b.t.Errorf("check reports about a row with the sidecar's number: %q", output)
	}
}

// checkPageA runs the example of system A.
func checkPageA(t *testing.T, h adopt.Server) {
	e := pageExample(t, "A number of each consumer's own")
	b := e.table(t, h, systemA, 6)
	var left []string
	for pid := 1; pid <= 2; pid++ {
		own, job := e.claimByNumber(t, b.c, pid), b.claim(1)[0]
		left = append(left, fmt.Sprintf("%s 3 %d", own[0], pid), job.ID+" 3 900001")
		b.w.Must(kit.Msg{"op": "ack", "lease": job.Lease})
		if _, err := b.c.ExecContext(t.Context(), e.sql[2], own[0]); err != nil || len(own) != 1 {
			t.Fatal(own, err)
		}
	}
	b.same("the rows", b.db.Texts("SELECT CONCAT_WS(' ', id, status, pid) FROM things WHERE status <> 1 ORDER BY created_at, id"), left...)
	held := b.claim(1)[0]
	b.others(func() {
		// The same number: both see each other's rows.
		b.same("an own consumer with the sidecar's number", e.claimByNumber(t, b.c, 900001), held.ID, "6")
	})
	// The sidecar can't distinguish its own claim from a later one of such a consumer, so a late ack
	// succeeds.
	b.w.Must(kit.Msg{"op": "ack", "lease": held.Lease})
}

// checkPageC runs the example of system C.
func checkPageC(t *testing.T, h adopt.Server) {
	e := pageExample(t, "A random number for each take")
	b := e.table(t, h, systemC, 9)
	waiting := func() (n int) {
		t.Helper()
		if err := b.c.QueryRowContext(t.Context(), e.sql[4]).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	own, jobs := e.claimByNumber(t, b.c, 15_999_999), b.claim(4)
	b.same("the first", append(own, itemsOf(jobs)...), "1", "2", "3", "4", "5", "6", "7")
	for i, item := range own[:2] { // one is accepted, one rejected
		if _, err := b.c.ExecContext(t.Context(), e.sql[2+i], item); err != nil {
			t.Fatal(err)
		}
	}
	b.w.Must(kit.Msg{"op": "ack", "lease": jobs[0].Lease})
	b.w.Must(kit.Msg{"op": "nack", "lease": jobs[1].Lease, "delay_ms": 0})
	if stat := b.w.Stats(e.queue); waiting() != 4 || stat.Ready != 4 {
		t.Errorf("%d wait, %+v", waiting(), stat)
	}
	b.same("the rejected first", itemsOf(b.claim(1)), "2")
	b.same("the rejected first", e.claimByNumber(t, b.c, 7), "5", "8", "9")
	b.others(func() {
		number, err := strconv.Atoi(b.db.Texts("SELECT transaction_unique FROM queue_test WHERE id = 6")[0])
		if err != nil {
			t.Fatal(err)
		}
		b.w.Must(kit.Msg{"op": "enqueue", "queue": e.queue, "payload": "{}"})
		if items := e.claimByNumber(t, b.c, number); len(items) < 2 || !slices.Contains(items, "6") {
			t.Errorf("an own consumer with the sidecar's number gets %v", items)
		}
	})
}
