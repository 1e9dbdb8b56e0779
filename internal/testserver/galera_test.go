package testserver_test

import (
	"testing"

	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestGaleraRejoins checks that a node that crashed joins its cluster again, with the data that it
// missed.
func TestGaleraRejoins(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs this")
	}
	ctx := testwait.Context(t)
	g, err := testserver.StartGalera(ctx, 3, testserver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := g.Nodes[0].Exec(ctx, "CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY)", "INSERT INTO d.t VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	if err := g.Nodes[2].Kill9(); err != nil {
		t.Fatal(err)
	}
	if err := g.Nodes[1].Exec(ctx, "INSERT INTO d.t VALUES (2)"); err != nil {
		t.Fatal(err)
	}
	if err := g.Nodes[2].Restart(ctx); err != nil {
		t.Fatal(err)
	}
	if err := g.Whole(ctx); err != nil {
		t.Fatal(err)
	}
	db, err := g.Nodes[2].Open("d")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var n int
	if err := db.QueryRowContext(ctx, "SELECT count(*) FROM t").Scan(&n); err != nil || n != 2 {
		t.Errorf("the node has %d rows (%v), want 2", n, err)
	}
}
