package kit

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/qsidecar/qsidecar/internal/testserver"
)

// Proxy is between one sidecar and the server. Add toxics before it starts if possible: toxiproxy
// 2.5 can deadlock when it removes a toxic from connections that end at the same time.
type Proxy struct {
	P     *Postgres
	addr  string // address to which the sidecar connects
	Proxy *toxiproxy.Proxy
	CutAt int64 // when it was disconnected, by Monotonic; 0: it is connected
}

// Proxy puts a proxy in front of the server, on TCP, and returns the server's URL through it.
func (p *Postgres) Proxy() (*Proxy, string) {
	p.T.Helper()
	port, err := testserver.FreePort()
	if err != nil {
		p.T.Fatal(err)
	}
	n := &Proxy{P: p, addr: "127.0.0.1:" + port}
	n.Start()
	p.T.Cleanup(func() { n.Proxy.Stop() })
	at := url.URL{Scheme: "postgres", User: url.User("postgres"), Host: n.addr, Path: "/" + p.Name, RawQuery: "sslmode=disable"}
	return n, at.String()
}

// Toxic returns a toxic for a stream. Upstream is the direction to the server.
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

// AddToxics adds toxics to existing and later connections.
func (n *Proxy) AddToxics(toxics ...string) {
	n.P.T.Helper()
	for _, text := range toxics {
		if _, err := n.Proxy.Toxics.AddToxicJson(strings.NewReader(text)); err != nil {
			n.P.T.Fatalf("%s: %v", text, err)
		}
	}
}

// SetToxics ends all connections and adds the toxics to later ones.
func (n *Proxy) SetToxics(toxics ...string) {
	n.P.T.Helper()
	n.Proxy.Stop()
	n.Start(toxics...)
}
