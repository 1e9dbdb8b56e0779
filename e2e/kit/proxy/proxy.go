// Package proxy puts a toxiproxy between clients and a server. Its toxics delay, limit and cut connections. A Cutter cuts one
// after a number of bytes.
package proxy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/qsidecar/qsidecar/internal/testserver/local"
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

// New starts a proxy in front of the server at an address. It ends with the test.
func New(t testing.TB, to string) *Proxy {
	t.Helper()
	port, err := local.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	n := &Proxy{T: t, Addr: "127.0.0.1:" + port, to: to}
	n.Start()
	t.Cleanup(func() { n.Proxy.Stop() })
	return n
}

// Toxic returns a toxic for a stream. Upstream is the direction to the server.
func Toxic(kind, stream, attribute string, value int) string {
	return fmt.Sprintf(`{"type": %q, "stream": %q, "attributes": {%q: %d}}`, kind, stream, attribute, value)
}

// Start starts the proxy with these toxics.
func (p *Proxy) Start(toxics ...string) {
	p.T.Helper()
	log := zerolog.Nop()
	p.Proxy = toxiproxy.NewProxy(toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), log), "db", p.Addr, p.to)
	p.AddToxics(toxics...)
	if err := p.Proxy.Start(); err != nil {
		p.T.Fatal(err)
	}
}

// AddToxics adds toxics to existing and later connections.
func (p *Proxy) AddToxics(toxics ...string) {
	p.T.Helper()
	for _, text := range toxics {
		if _, err := p.Proxy.Toxics.AddToxicJson(strings.NewReader(text)); err != nil {
			p.T.Fatalf("%s: %v", text, err)
		}
	}
}

// Cut drops all bytes from now on, as a cut network does. SetToxics without toxics mends it.
func (p *Proxy) Cut() {
	p.T.Helper()
	p.AddToxics(Toxic("timeout", "upstream", "timeout", 0), Toxic("timeout", "downstream", "timeout", 0))
}

// SetToxics ends all connections and adds the toxics to later ones.
func (p *Proxy) SetToxics(toxics ...string) {
	p.T.Helper()
	p.Proxy.Stop()
	p.Start(toxics...)
}
