// Package hosts chooses among the hosts of a PostgreSQL address, and leaves a host that stops answering. It contains no SQL.
// Start reading at Hosts.
package hosts

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/qsidecar/qsidecar/backends/internal/dial"
)

// Hosts records to which host connections lead. Its zero value is ready to use. Its methods can be called concurrently.
type Hosts struct {
	mu     sync.Mutex
	open   map[*conn]struct{}
	good   string          // the address of the last connection that was accepted
	silent string          // the address of a host that stopped answering: the last one to try
	failed map[string]bool // the addresses at which no connection was accepted since the last one that was
	is     string          // the primary of the last connection that was accepted and names it
}

// conn is a connection to a host.
type conn struct {
	net.Conn
	hosts *Hosts
	to    string
	is    string // the primary, once the connection was accepted; empty if it is unknown

	accepted bool // guarded by hosts.mu
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.hosts.mu.Lock()
	delete(c.hosts.open, c)
	if !c.accepted {
		c.hosts.fail(c.to)
	}
	c.hosts.mu.Unlock()
	return c.Conn.Close()
}

// fail records that no connection to a host was accepted. h.mu is held.
func (h *Hosts) fail(address string) {
	if h.failed == nil {
		h.failed = map[string]bool{}
	}
	h.failed[address] = true
}

// Watch records the connections that a config opens from now on.
func (h *Hosts) Watch(config *pgconn.Config) {
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		nc, err := dial(ctx, network, address)
		h.mu.Lock()
		defer h.mu.Unlock()
		if err != nil {
			h.fail(address)
			return nil, err
		}
		c := &conn{Conn: nc, hosts: h, to: address}
		if h.open == nil {
			h.open = map[*conn]struct{}{}
		}
		h.open[c] = struct{}{}
		return c, nil
	}
}

// Accept records that a connection leads to the primary that is identified by is. It returns the address of the earlier
// primary if that was another one. It closes the connections that were accepted for another primary: an old one can still answer
// what was sent to it, and its successor lacks that.
func (h *Hosts) Accept(nc net.Conn, is string) (from, to string) {
	if encrypted, ok := nc.(interface{ NetConn() net.Conn }); ok {
		nc = encrypted.NetConn()
	}
	c, ok := nc.(*conn)
	if !ok {
		return "", ""
	}
	h.mu.Lock()
	from, h.good, c.accepted = h.good, c.to, true
	clear(h.failed)
	if h.silent == c.to {
		h.silent = ""
	}
	if c.is = is; is != "" {
		h.is = is
	}
	h.mu.Unlock()
	h.closeAll(func(c *conn) bool { return c.is != "" && c.is != h.is })
	if from == c.to {
		from = ""
	}
	return from, c.to
}

// Order puts the hosts of a config into the order of the tries: the last good one first, and those that failed since then last. A
// heartbeat can end before all hosts were tried, and the next one must not begin with the same hosts.
func (h *Hosts) Order(config *pgx.ConnConfig) {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := append([]*pgconn.FallbackConfig{{Host: config.Host, Port: config.Port, TLSConfig: config.TLSConfig}}, config.Fallbacks...)
	rank := func(f *pgconn.FallbackConfig) int {
		switch address := addressOf(f); {
		case address == h.silent:
			return 3
		case address == h.good:
			return 0
		case h.failed[address]:
			return 2
		}
		return 1
	}
	slices.SortStableFunc(all, func(x, y *pgconn.FallbackConfig) int { return rank(x) - rank(y) })
	config.Host, config.Port, config.TLSConfig, config.Fallbacks = all[0].Host, all[0].Port, all[0].TLSConfig, all[1:]
}

// Address returns the address of a config's first host.
func Address(c *pgx.ConnConfig) string {
	return addressOf(&pgconn.FallbackConfig{Host: c.Host, Port: c.Port})
}

func addressOf(f *pgconn.FallbackConfig) string {
	_, address := pgconn.NetworkAddress(f.Host, f.Port)
	return address
}

// Several reports whether a config has several hosts. One host can be there twice: with and without TLS.
func Several(config *pgx.ConnConfig) bool {
	first := Address(config)
	return slices.ContainsFunc(config.Fallbacks, func(f *pgconn.FallbackConfig) bool { return addressOf(f) != first })
}

// Each returns a config for each host of a config. It accepts every server, waits for HostTimeout, and doesn't influence Order.
func Each(config *pgx.ConnConfig) (all []*pgx.ConnConfig) {
	same := func(x, y *pgconn.FallbackConfig) bool { return addressOf(x) == addressOf(y) }
	for first := config.Copy(); ; {
		one := first.Copy()
		is := &pgconn.FallbackConfig{Host: one.Host, Port: one.Port}
		one.Fallbacks = slices.DeleteFunc(one.Fallbacks, func(f *pgconn.FallbackConfig) bool { return !same(f, is) })
		one.ConnectTimeout, one.ValidateConnect, one.AfterConnect, one.DialFunc = dial.HostTimeout, nil, nil, dial.Dialer().DialContext
		all = append(all, one)
		rest := slices.DeleteFunc(first.Fallbacks, func(f *pgconn.FallbackConfig) bool { return same(f, is) })
		if len(rest) == 0 {
			return all
		}
		first.Host, first.Port, first.TLSConfig, first.Fallbacks = rest[0].Host, rest[0].Port, rest[0].TLSConfig, rest[1:]
	}
}

// Present returns the address of the present primary. It is empty before the first connection.
func (h *Hosts) Present() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.good
}

// Probe logs in to the present primary. It returns its address if it doesn't answer in time.
func (h *Hosts) Probe(ctx context.Context, config *pgx.ConnConfig) (silent string) {
	ordered := config.Copy()
	h.Order(ordered)
	one := Each(ordered)[0]
	address := Address(one)
	if address != h.Present() {
		return ""
	}
	c, err := pgconn.ConnectConfig(ctx, &one.Config)
	switch {
	case err == nil:
		_ = c.Close(ctx) // the server answered
	case ctx.Err() == nil && (pgconn.Timeout(err) || errors.Is(err, context.DeadlineExceeded)):
		return address
	}
	return ""
}

// Cut closes the connections to a host that stopped answering, and makes it the last one to try.
func (h *Hosts) Cut(address string) {
	h.mu.Lock()
	h.silent = address
	h.mu.Unlock()
	h.closeAll(func(c *conn) bool { return c.to == address })
}

// closeAll closes the connections that match. It calls match with the lock.
func (h *Hosts) closeAll(match func(*conn) bool) {
	h.mu.Lock()
	var all []*conn
	for c := range h.open {
		if match(c) {
			all = append(all, c)
		}
	}
	h.mu.Unlock()
	for _, c := range all {
		_ = c.Close() // what waits for the host then fails
	}
}
