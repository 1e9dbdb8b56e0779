package postgres

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/qsidecar/qsidecar/backends/backendtest/cost"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// TestCost checks how many round trips and statements the claim path takes, on one server without a cluster.
// No other test runs beside it, because beside open transactions that write claims scan more rows (package cursor).
func TestCost(t *testing.T) {
	inTurn(t, func(t *testing.T, p *testserver.Postgres) {
		url := filled(t, p)
		tap := newTap(t, url)
		s := open(t, Options{URL: tap.url})
		at := time.Now()
		s.LocalTime = func() time.Time { return at }
		cost.Check(t, s, tap.cost, map[string]cost.Cost{
			"enqueue of 1": {2, 4}, "claim of 1": {2, 5}, "ack of 1": {2, 5}, "nack of 1": {3, 7}, "ack and claim of 1": {2, 6},
			"enqueue of 100": {2, 4}, "claim of 100": {2, 5}, "ack of 100": {2, 5}, "nack of 100": {3, 7}, "ack and claim of 100": {2, 6},
			"enqueue with keys of 1": {2, 6}, "enqueue with keys of 100": {2, 6}, "idle claim": {2, 5},
		})
		c, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(context.Background())
		for _, index := range []string{"expiring", "blocked", "arrived", "admitted"} {
			var size int64
			if err := c.QueryRow(t.Context(), "SELECT pg_relation_size('qsidecar.qsidecar_"+index+"')").Scan(&size); err != nil {
				t.Fatal(err)
			}
			if size != 8192 { // the page that an empty index has
				t.Errorf("the index qsidecar_%s has %d bytes: jobs without the feature entered it", index, size)
			}
		}
		cost.Expiring(t, s, tap.cost, cost.Cost{2, 4})
	})
}

// tap is a proxy that counts what passes to the server.
type tap struct {
	url         string
	network, at string // the server's address
	mu          sync.Mutex
	sum         cost.Cost

	sent, received atomic.Int64 // bytes
}

// newTap starts a tap in front of a server.
func newTap(t testing.TB, server string) *tap {
	t.Helper()
	url, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	config, err := pgx.ParseConfig(server)
	if err != nil {
		t.Fatal(err)
	}
	x := &tap{}
	x.network, x.at = pgconn.NetworkAddress(config.Host, config.Port)
	dir := t.TempDir()
	q := url.Query()
	q.Set("host", dir)
	q.Set("port", "5432")
	q.Set("sslmode", "disable")
	url.RawQuery = q.Encode()
	x.url = url.String()
	l, err := net.Listen("unix", filepath.Join(dir, ".s.PGSQL.5432"))
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	t.Cleanup(func() { l.Close(); running.Wait() })
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed
			}
			running.Go(func() { x.serve(c) })
		}
	})
	return x
}

func (t *tap) cost() cost.Cost {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sum
}

// serve passes on one connection.
func (t *tap) serve(c net.Conn) {
	defer c.Close()
	server, err := net.Dial(t.network, t.at)
	if err != nil {
		return
	}
	defer server.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(io.MultiWriter(c, counter{&t.received}), server)
		c.Close()
	}()
	_ = t.requests(server, c)
	server.Close()
	<-done
}

// counter counts the bytes that are written to it.
type counter struct{ n *atomic.Int64 }

func (c counter) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return len(p), nil
}

// requests passes on the client's messages: a type, which the first message doesn't have, and a length.
func (t *tap) requests(to io.Writer, from io.Reader) error {
	for header := 4; ; header = 5 {
		message := make([]byte, header)
		if _, err := io.ReadFull(from, message); err != nil {
			return err
		}
		length := binary.BigEndian.Uint32(message[header-4:])
		message = append(message, make([]byte, length-4)...)
		if _, err := io.ReadFull(from, message[header:]); err != nil {
			return err
		}
		if header == 5 {
			t.count(message[0])
		}
		t.sent.Add(int64(len(message)))
		if _, err := to.Write(message); err != nil {
			return err
		}
	}
}

// count counts a message by its type.
func (t *tap) count(kind byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch kind {
	case 'Q': // Query
		t.sum[1]++
		t.sum[0]++
	case 'E': // Execute
		t.sum[1]++
	case 'S': // Sync
		t.sum[0]++
	}
}
