package testserver_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestGroupRejoins checks that a primary that crashed, and one that was excluded while it stood still,
// enter their group again with the data that they missed.
func TestGroupRejoins(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs this")
	}
	ctx := testwait.Context(t)
	g, err := testserver.StartGroup(ctx, 3, false, testserver.Options{})
	if errors.Is(err, testserver.ErrUnavailable) {
		t.Log(err)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Stop(); err != nil {
			t.Error(err)
		}
	})
	primary, err := g.Primary(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if primary != g.Nodes[0] {
		t.Error("the first member isn't the primary")
	}
	if err := primary.Exec(ctx, "CREATE DATABASE d", "CREATE TABLE d.t (id INT AUTO_INCREMENT PRIMARY KEY)"); err != nil {
		t.Fatal(err)
	}
	for _, harm := range []func(*testserver.MySQL) error{
		(*testserver.MySQL).Kill9,
		func(m *testserver.MySQL) error { return syscall.Kill(m.PID(), syscall.SIGSTOP) },
	} {
		old := primary
		if err := harm(old); err != nil {
			t.Fatal(err)
		}
		if primary, err = g.Primary(ctx, old); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(g.Without(ctx, old), primary.Exec(ctx, "INSERT INTO d.t VALUES ()")); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(old.PID(), syscall.SIGCONT); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Fatal(err)
		}
		if err := g.Revive(ctx); err != nil {
			t.Fatalf("%v\n%s", err, old.Log())
		}
	}
	for i, node := range g.Nodes {
		db, err := node.Open("d")
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		testwait.Until(t, "all rows are there", func() bool {
			n := 0
			if err := db.QueryRowContext(ctx, "SELECT count(*) FROM t").Scan(&n); err != nil || n > 2 {
				t.Fatalf("member %d has %d rows (%v), want 2", i+1, n, err)
			}
			return n == 2
		})
	}
}
