package kit

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/qsidecar/qsidecar/internal/testserver"
)

// Proxy is between clients and a server. Add toxics before it starts if possible: toxiproxy
// 2.5 can deadlock when it removes a toxic from connections that end at the same time.
type Proxy struct {
	T     testing.TB
	Addr  string // to which the clients connect
	to    string
	Proxy *toxiproxy.Proxy
	CutAt int64 // when it was disconnected, by Monotonic; 0: it is connected
}

// NewProxy starts a proxy in front of the server at an address. It ends with the test.
func NewProxy(t testing.TB, to string) *Proxy {
	t.Helper()
	port, err := testserver.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	n := &Proxy{T: t, Addr: "127.0.0.1:" + port, to: to}
	n.Start()
	t.Cleanup(func() { n.Proxy.Stop() })
	return n
}

// Proxy puts a proxy in front of the server, on TCP, and returns the server's URL through it.
func (p *Postgres) Proxy() (*Proxy, string) {
	p.T.Helper()
	n := NewProxy(p.T, p.Addr)
	at := url.URL{Scheme: "postgres", User: url.User("postgres"), Host: n.Addr, Path: "/" + p.Name, RawQuery: "sslmode=disable"}
	return n, at.String()
}

// Toxic returns a toxic for a stream. Upstream is the direction to the server.
func Toxic(kind, stream, attribute string, value int) string {
	return fmt.Sprintf(`{"type": %q, "stream": %q, "attributes": {%q: %d}}`, kind, stream, attribute, value)
}

// Start starts the proxy with these toxics.
func (n *Proxy) Start(toxics ...string) {
	n.T.Helper()
	log := zerolog.Nop()
	n.Proxy = toxiproxy.NewProxy(toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), log), "db", n.Addr, n.to)
	n.AddToxics(toxics...)
	if err := n.Proxy.Start(); err != nil {
		n.T.Fatal(err)
	}
}

// AddToxics adds toxics to existing and later connections.
func (n *Proxy) AddToxics(toxics ...string) {
	n.T.Helper()
	for _, text := range toxics {
		if _, err := n.Proxy.Toxics.AddToxicJson(strings.NewReader(text)); err != nil {
			n.T.Fatalf("%s: %v", text, err)
		}
	}
}

// Cut drops all bytes from now on, as a cut network does. SetToxics without toxics mends it.
func (n *Proxy) Cut() {
	n.T.Helper()
	n.AddToxics(Toxic("timeout", "upstream", "timeout", 0), Toxic("timeout", "downstream", "timeout", 0))
}

// SetToxics ends all connections and adds the toxics to later ones.
func (n *Proxy) SetToxics(toxics ...string) {
	n.T.Helper()
	n.Proxy.Stop()
	n.Start(toxics...)
}
