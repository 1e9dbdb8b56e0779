package databases

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/config"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// pair is a primary and its replica.
type pair struct {
	primary, replica string                                                // URLs
	table            string                                                // qsidecar_sidecars
	rename           string                                                // the SQL that gives the database another id
	later            string                                                // the SQL of a time that is %d hours from now
	caughtUp         func(ctx context.Context) error                       // waits until the replica has everything
	promote          func(ctx context.Context) error                       // ends the replication
	exec             func(ctx context.Context, statements ...string) error // at the replica
	halt             func() error
	restart          func(ctx context.Context) error
}

func startPostgres(t *testing.T) pair {
	p, err := testserver.StartPostgres(t.Context(), testserver.NewestPostgres, testserver.Options{Durable: true})
	if err != nil {
		t.Fatal(err)
	}
	stopAtEnd(t, p.Stop)
	s, err := p.Standby(testwait.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	stopAtEnd(t, s.Stop)
	return pair{p.Admin(), s.Admin(), "qsidecar.qsidecar_sidecars", "UPDATE qsidecar.qsidecar_meta SET database = 'x'", "now() + interval '%d h'",
		func(ctx context.Context) error { return s.CaughtUp(ctx, p) }, s.Promote, s.Exec, s.Halt, s.Restart}
}

func startMySQL(t *testing.T, kind testserver.Kind) pair {
	m, err := testserver.StartMySQL(t.Context(), kind, testserver.Options{Durable: true, Settings: testserver.SourceSettings()})
	if errors.Is(err, testserver.ErrUnavailable) {
		t.Log(err)
		return pair{}
	} else if err != nil {
		t.Fatal(err)
	}
	stopAtEnd(t, m.Stop)
	r, err := m.Replica(testwait.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	stopAtEnd(t, r.Stop)
	if err := m.Exec(t.Context(), "CREATE DATABASE q"); err != nil {
		t.Fatal(err)
	}
	return pair{m.URL("q"), r.URL("q"), "q.qsidecar_sidecars", "UPDATE q.qsidecar_meta SET `database` = 'x'", "UTC_TIMESTAMP(6) + INTERVAL %d HOUR",
		func(ctx context.Context) error { return r.CaughtUp(ctx, m) }, r.Promote, r.Exec, r.Halt, r.Restart}
}

func stopAtEnd(t *testing.T, stop func() error) {
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestReplica reads from a replica that follows its primary, that doesn't any more, that is too far behind, and that is down.
func TestReplica(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs this: it starts six servers")
	}
	for name, start := range map[string]func(t *testing.T) pair{
		"postgres": startPostgres,
		"mysql":    func(t *testing.T) pair { return startMySQL(t, testserver.MySQL97) },
		"mariadb":  func(t *testing.T) pair { return startMySQL(t, testserver.MariaDB1011) },
	} {
		t.Run(name, func(t *testing.T) {
			if p := start(t); p.primary != "" {
				testReplica(t, p)
			}
		})
	}
}

func testReplica(t *testing.T, p pair) {
	c := config.Default("", p.primary)
	d := c.Databases["main"]
	d.ReplicaURL = p.replica
	c.Databases["main"] = d
	primary, err := Open(t.Context(), &c, "main", discard)
	if err != nil {
		t.Fatal(err)
	}
	stopAtEnd(t, primary.Close)
	r := NewReplica(&c, "main", discard).(*replica)
	r.pause = 0
	stopAtEnd(t, r.Close)
	id := primary.Info().Database
	enqueue := func() {
		t.Helper()
		if _, err := primary.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}}}}); err != nil {
			t.Fatal(err)
		}
	}
	expire := func(hours int) {
		t.Helper()
		if err := p.exec(t.Context(), "UPDATE "+p.table+" SET expires_at = "+fmt.Sprintf(p.later, hours)); err != nil {
			t.Fatal(err)
		}
	}
	// A replica that doesn't answer in time is tried again.
	answers := func(what string, want error) {
		t.Helper()
		testwait.Until(t, what, func() bool {
			stats, err := r.Stats(t.Context(), id, "q")
			if want == nil {
				return err == nil && len(stats) == 1 && stats[0].Ready == 1 && r.Err() == nil
			}
			return errors.Is(err, want) && errors.Is(r.Err(), want)
		})
	}
	if _, err := primary.Heartbeat(t.Context(), backends.Heartbeat{Sidecar: 1, Kind: backends.HeartbeatJoin, Timeout: time.Hour}); err != nil {
		t.Fatal(err)
	}
	enqueue()
	if err := p.caughtUp(testwait.Context(t)); err != nil {
		t.Fatal(err)
	}
	answers("the replica answers", nil)
	examined := func(what string, severity backends.Severity, text string) {
		t.Helper()
		testwait.Until(t, what, func() bool {
			e, err := OpenEngine(t.Context(), &c, "main", true, discard)
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			if _, err := e.Examine(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			found := ExamineReplica(t.Context(), &c, "main", e, discard)
			t.Log(found)
			return len(found) == 1 && found[0].Severity == severity && strings.Contains(found[0].Text, text)
		})
	}
	examined("check sees the replica and its lag", backends.SeverityInfo, "is a replica of this primary, 0s behind")
	if err := p.promote(testwait.Context(t)); err != nil {
		t.Fatal(err)
	}
	enqueue() // the replica doesn't get this job
	answers("the detached replica answers", nil)
	examined("check sees a detached replica", backends.SeverityWarning, "isn't a replica")
	expire(-1)
	answers("the replica is too far behind", errLate)
	expire(1)
	answers("the replica answers after it has caught up", nil)
	testwait.Until(t, "the replica is of another database", func() bool {
		_, err := r.Stats(t.Context(), "another", "q")
		return errors.Is(err, errOther)
	})
	if err := p.halt(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Stats(t.Context(), id, "q"); err == nil || r.Err() == nil {
		t.Errorf("a replica that is down: %v, %v", err, r.Err())
	}
	examined("check sees that the replica is down", backends.SeverityWarning, "isn't usable")
	if err := p.restart(testwait.Context(t)); err != nil {
		t.Fatal(err)
	}
	answers("the replica answers after its restart", nil)
	if err := p.exec(t.Context(), p.rename); err != nil {
		t.Fatal(err)
	}
	examined("check sees another database", backends.SeverityError, errOther.Error())
}

// TestReplicaErrorsShowNoPassword checks the error of a replica that can't be reached.
func TestReplicaErrorsShowNoPassword(t *testing.T) {
	for _, engine := range []string{"postgres", "mysql"} {
		c := config.Default("", engine+"://app@127.0.0.1:1/app")
		d := c.Databases["main"]
		d.ReplicaURL = engine + "://app:hunter2@127.0.0.1:1/app"
		c.Databases["main"] = d
		r := NewReplica(&c, "main", discard)
		if _, err := r.Stats(t.Context(), "id", ""); err == nil || strings.Contains(err.Error()+r.Err().Error(), "hunter2") {
			t.Errorf("%s: %v, %v", engine, err, r.Err())
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if _, err := r.Stats(t.Context(), "id", ""); !errors.Is(err, errReplicaEnded) {
			t.Errorf("%s: a closed replica: %v", engine, err)
		}
	}
	c := config.Default("", "postgres://app@127.0.0.1:1/app")
	if r := NewReplica(&c, "main", discard); r != nil {
		t.Errorf("without a replica_url: %v", r)
	}
}
