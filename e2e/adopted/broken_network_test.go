package adopted

import (
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2/toxics"
	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/adopt"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
	"github.com/qsidecar/qsidecar/e2e/kit/proxy"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// TestAdoptedAckOnABrokenNetwork cuts the network before and after the commit of an ack of an adopted job, with and
// without a pooler in between. The sidecar finds that the ack is done, or repeats it. No worker
// gets lease_lost.
func TestAdoptedAckOnABrokenNetwork(t *testing.T) {
	toxics.Register("qsidecar_cut", new(proxy.CutToxic))
	s, p := kit.NewPostgresSite(t)
	s.SidecarTimeout = 20 * time.Second // a long timeout, so that few other statements run during the cuts
	s.Queues = "  e:" + adopt.SystemE.Config + "  gone:" + strings.ReplaceAll(adopt.SystemE.Config, "my_queue", "gone") + "    on_ack: delete\n"
	db := databases.Owners(t, p.URL)
	create, _, _ := strings.Cut(adopt.SystemE.DDL, "INSERT")
	db.Script(create + strings.ReplaceAll(create, "my_queue", "gone"))
	direct, through := p.Proxy()
	cutAcks(s, t, db, direct, through, "directly")

	pooler, err := testserver.StartPgBouncer(t.Context(), p.Postgres, 6)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := pooler.Stop(); err != nil {
			t.Error(err)
		}
	}()
	at, err := pooler.URL(p.URL)
	if err != nil {
		t.Fatal(err)
	}
	behind := *p
	behind.Addr = relay(t, at)
	pooled, through := behind.Proxy()
	cutAcks(s, t, db, pooled, through, "through a pooler")
}

// cutAcks cuts a sidecar's network at each of the last bytes of an ack, in each direction.
func cutAcks(s *kit.Site, t *testing.T, db databases.OwnersDB, n *proxy.Proxy, through, how string) {
	t.Helper()
	n.SetToxics(`{"type": "qsidecar_cut", "stream": "upstream", "attributes": {"stream": "upstream"}}`,
		`{"type": "qsidecar_cut", "stream": "downstream", "attributes": {"stream": "downstream"}}`)
	s.URL = through
	w := s.Start(strings.Fields(how)[0]).Dial()
	hits, points := 0, 0
	step := int64(28)
	if kit.Soak {
		step = 2
	}
	var slowest time.Duration
	for _, way := range []string{"upstream", "downstream"} {
		cutters := proxy.Cutters[way]
		for _, queue := range []string{"e", "gone"} {
			claim := func() kit.Job {
				t.Helper()
				w.Must(kit.Msg{"op": "enqueue", "queue": queue, "payload": "1"})
				return w.ClaimOne(queue)
			}
			var sizes []int64
			for range 7 { // the first acks prepare their statements
				job := claim()
				cutters.Open(-1)
				w.Must(kit.Msg{"op": "ack", "lease": job.Lease})
				sizes = append(sizes, cutters.Shut())
			}
			slices.Sort(sizes)
			usual := sizes[len(sizes)/2]
			for at := max(usual-112, 1); at <= usual; at += step {
				points++
				job := claim()
				cut, began := cutters.Open(at), kit.Monotonic()
				w.Must(kit.Msg{"op": "ack", "lease": job.Lease})
				cutters.Shut()
				slowest = max(slowest, kit.Since(began))
				select {
				case <-cut:
					hits++
				default: // it took fewer bytes this time
				}
				if job.Attempt != 1 {
					t.Errorf("%s: the job %s is at its attempt %d", how, job.ID, job.Attempt)
				}
			}
		}
	}
	kit.Figure(t, "%s: of %d acks of adopted jobs %d were cut around their commit, and all were made; the slowest took %v", how, points, hits, slowest.Round(time.Millisecond))
	if hits == 0 {
		t.Errorf("%s: none of %d cuts met an ack", how, points)
	}
	if left := db.Texts(`SELECT concat_ws(' ', 'e', queue_item_id, state) FROM my_queue WHERE state <> 'done'
		UNION ALL SELECT concat_ws(' ', 'gone', queue_item_id, state) FROM gone UNION ALL SELECT item FROM qsidecar.qsidecar_leases`); len(left) > 0 {
		t.Errorf("%s: left: %v", how, left)
	}
}

// relay returns a TCP address that forwards to the socket of a server's URL.
func relay(t *testing.T, at string) string {
	t.Helper()
	c, err := pgx.ParseConfig(at)
	if err != nil {
		t.Fatal(err)
	}
	return forward(t, "unix", fmt.Sprintf("%s/.s.PGSQL.%d", c.Host, c.Port))
}

// forward returns a TCP address that forwards to another address.
func forward(t *testing.T, network, to string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return // it is closed
			}
			server, err := net.Dial(network, to)
			if err != nil {
				client.Close()
				continue
			}
			for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
				go func() {
					_, _ = io.Copy(way[0], way[1]) // the end of one side ends both
					client.Close()
					server.Close()
				}()
			}
		}
	}()
	return l.Addr().String()
}
