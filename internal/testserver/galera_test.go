package testserver_test

import (
	"errors"
	"math"
	"testing"
	"time"

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
	if _, err := g.Revive(ctx); err != nil { // a node ends again if the others lose each other while they send it the data
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
	// Each node has its own clock, also after a restart.
	for _, ahead := range []time.Duration{-time.Hour, time.Hour} {
		err := errors.Join(g.Nodes[2].SetClock(ahead), g.Nodes[2].Halt())
		if err == nil {
			_, err = g.Revive(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
		testwait.Until(t, "the node's clock is set", func() bool {
			var hours float64
			if err := db.QueryRowContext(ctx, "SELECT TIMESTAMPDIFF(MINUTE, ?, UTC_TIMESTAMP()) / 60", time.Now().UTC()).Scan(&hours); err != nil {
				t.Log(err) // the node can still close connections after it answered the first one
				return false
			}
			return math.Round(hours) == ahead.Hours()
		})
	}
	endsWhileRevived(t, g)
}

// endsWhileRevived checks that Revive also starts a node that ends while it waits.
func endsWhileRevived(t *testing.T, g *testserver.Galera) {
	t.Helper()
	if err := g.Nodes[1].Freeze(); err != nil {
		t.Fatal(err)
	}
	ctx := testwait.Context(t)
	type result struct {
		started []string
		err     error
	}
	revived := make(chan result, 1)
	go func() {
		started, err := g.Revive(ctx)
		revived <- result{started, err}
	}()
	if err := errors.Join(g.Without(ctx, 1), g.Nodes[1].Kill9()); err != nil { // Revive has begun: the others excluded the node since
		t.Fatal(err)
	}
	if r := testwait.Receive(t, "the end of Revive", revived); r.err != nil || len(r.started) != 1 || r.started[0] != "node2" {
		t.Errorf("started %v, %v; want node2", r.started, r.err)
	}
}
