package testserver_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestReplicationFailsOver checks that a source that crashed returns as a replica, also if it has a transaction that no
// replica received, and that a planned change of the source keeps all rows.
func TestReplicationFailsOver(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs this")
	}
	for _, kind := range []testserver.Kind{testserver.MySQL97, testserver.MariaDB1011} {
		t.Run(string(kind), func(t *testing.T) { replicationFailsOver(t, kind) })
	}
}

func replicationFailsOver(t *testing.T, kind testserver.Kind) {
	ctx := testwait.Context(t)
	r, err := testserver.StartReplication(ctx, kind, 3, false)
	if errors.Is(err, testserver.ErrUnavailable) {
		t.Log(err)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Stop(); err != nil {
			t.Error(err)
		}
	})
	want := 0
	insert := func() {
		t.Helper()
		want++
		if err := r.Source.Exec(ctx, fmt.Sprintf("INSERT INTO d.t VALUES (%d)", want)); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Source.Exec(ctx, "CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY)"); err != nil {
		t.Fatal(err)
	}
	for _, diverged := range []bool{false, true} {
		insert()
		if err := r.Whole(ctx); err != nil {
			t.Fatal(err)
		}
		old := r.Source
		if err := errors.Join(old.Kill9(), r.Failover(ctx)); err != nil {
			t.Fatal(err)
		}
		insert()
		if diverged {
			if err := errors.Join(old.Restart(ctx), old.Exec(ctx, "INSERT INTO d.t VALUES (1000)")); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Return(ctx, old); err != nil {
			t.Fatalf("%v\n%s", err, old.Log())
		}
		if err := r.Switch(ctx, old); err != nil {
			t.Fatal(err)
		}
		insert()
	}
	if err := r.Whole(ctx); err != nil {
		t.Fatal(err)
	}
	for i, node := range r.Nodes {
		db, err := node.Open("d")
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		n := 0
		if err := db.QueryRowContext(ctx, "SELECT COUNT(*) FROM t").Scan(&n); err != nil || n != want {
			t.Errorf("server %d has %d rows (%v), want %d", i+1, n, err, want)
		}
	}
}
