package kit

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// Proxy is what lies between one sidecar and the server. Toxics are put into it
// before it starts, wherever that does: toxiproxy 2.5 may lock up when it has to
// take one out of connections that end at that moment.
type Proxy struct {
	P     *Postgres
	addr  string // where the sidecar connects to
	Proxy *toxiproxy.Proxy
	Since int64 // when it was cut, of monotonic; 0: it is whole
}

// Proxy puts one before the server, on TCP, and returns the server's URL through it.
func (p *Postgres) Proxy() (*Proxy, string) {
	p.T.Helper()
	n := &Proxy{P: p, addr: "127.0.0.1:0"}
	n.Start()
	n.addr = n.Proxy.Listen
	p.T.Cleanup(func() { n.Proxy.Stop() })
	at := url.URL{Scheme: "postgres", User: url.User("postgres"), Host: n.addr, Path: "/" + p.Name, RawQuery: "sslmode=disable"}
	return n, at.String()
}

// Toxic is harm done to a stream: upstream is towards the server.
func Toxic(kind, stream, attribute string, value int) string {
	return fmt.Sprintf(`{"type": %q, "stream": %q, "attributes": {%q: %d}}`, kind, stream, attribute, value)
}

// Start starts the proxy with these toxics.
func (n *Proxy) Start(toxics ...string) {
	n.P.T.Helper()
	log := zerolog.Nop()
	n.Proxy = toxiproxy.NewProxy(toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), log), "db", n.addr, n.P.Addr)
	n.AddToxics(toxics...)
	if err := n.Proxy.Start(); err != nil {
		n.P.T.Fatal(err)
	}
}

// AddToxics harms the connections that exist and those to come.
func (n *Proxy) AddToxics(toxics ...string) {
	n.P.T.Helper()
	for _, text := range toxics {
		if _, err := n.Proxy.Toxics.AddToxicJson(strings.NewReader(text)); err != nil {
			n.P.T.Fatalf("%s: %v", text, err)
		}
	}
}

// SetToxics ends all connections, wherever they are, and does such harm to the next.
func (n *Proxy) SetToxics(toxics ...string) {
	n.P.T.Helper()
	n.Proxy.Stop()
	n.Start(toxics...)
}
