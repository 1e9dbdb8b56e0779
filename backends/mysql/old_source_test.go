package mysql

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// newReplication starts a source and a replica with the database q. It returns the address that names both.
func newReplication(t *testing.T, kind testserver.Kind, semiSync bool) (r *testserver.Replication, address string) {
	t.Helper()
	r, err := testserver.StartReplication(testwait.Context(t), kind, 2, semiSync)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := r.Source.Exec(t.Context(), "CREATE DATABASE q"); err != nil {
		t.Fatal(err)
	}
	var hosts []string
	for _, node := range r.Nodes {
		hosts = append(hosts, net.JoinHostPort(node.Host, node.Port))
	}
	return r, "mysql://" + url.UserPassword(r.Source.User, r.Source.Password).String() + "@" + strings.Join(hosts, ",") + "/q"
}

// lines counts lines of a log.
type lines struct {
	with string
	seen chan struct{}
}

func (l lines) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(l.with)) {
		select {
		case l.seen <- struct{}{}:
		default:
		}
	}
	return len(b), nil
}

// TestOldSourceIsRefused: a source that was replaced returns and accepts writes. A Store that has seen the new source does
// not use the old one, not even if the new one is gone.
func TestOldSourceIsRefused(t *testing.T) {
	ownServers(t, func(t *testing.T, kind testserver.Kind) {
		ctx := testwait.Context(t)
		r, address := newReplication(t, kind, false)
		old := r.Source
		refused := lines{"old_primary_refused", make(chan struct{}, 1)}
		s := open(t, Options{URL: address, Log: slog.New(slog.NewTextHandler(refused, nil))})
		stored := func() {
			t.Helper()
			testwait.Until(t, "a job is stored", func() bool { return enqueue(t, s) == nil })
		}
		stored()
		if err := errors.Join(r.Whole(ctx), old.Kill9(), r.Failover(ctx)); err != nil {
			t.Fatal(err)
		}
		stored()
		testwait.Until(t, "the Store has seen a transaction of the new source", func() bool {
			c, err := s.dialer.Dial(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			c.Close()
			return numberOf(t, r.Source, "q", "SELECT COUNT(*) FROM qsidecar_jobs") == 2
		})
		if err := errors.Join(old.Restart(ctx), old.Exec(ctx, "SET GLOBAL read_only = OFF"), r.Source.Kill9()); err != nil {
			t.Fatal(err)
		}
		before := numberOf(t, old, "q", "SELECT COUNT(*) FROM qsidecar_jobs")
		testwait.Until(t, "the old source is refused", func() bool {
			if err := enqueue(t, s); !backends.Retryable(err) {
				t.Fatalf("an enqueue while there is only the old source: %v, want unavailable", err)
			}
			return len(refused.seen) > 0
		})
		if n := numberOf(t, old, "q", "SELECT COUNT(*) FROM qsidecar_jobs"); n != before {
			t.Errorf("the old source has %d jobs more", n-before)
		}
		if n, text := s.Usage().OldPrimaries, s.Info().Cluster; n == 0 || !strings.Contains(text, "; refused connections to an old primary: ") {
			t.Errorf("%d refused connections were counted, and the cluster is described as %q", n, text)
		}
		if err := errors.Join(r.Source.Restart(ctx), r.Source.Exec(ctx, "SET GLOBAL read_only = OFF")); err != nil {
			t.Fatal(err)
		}
		stored()
	})
}
