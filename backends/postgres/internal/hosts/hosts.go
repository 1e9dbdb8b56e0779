// Package hosts chooses among the hosts of a PostgreSQL address, and leaves a host that stops answering. It contains no SQL.
// Start reading at Hosts.
package hosts

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Timeout limits a connection to one of several hosts, so that a host that doesn't answer delays the next one by far less
// than a heartbeat.
const Timeout = 2 * time.Second

// Hosts records to which host connections lead. Its zero value is ready to use. Its methods can be called concurrently.
type Hosts struct {
	mu     sync.Mutex
	open   map[*conn]struct{}
	good   string // the address of the last connection that was accepted
	silent string // the address of a host that stopped answering: the last one to try
}

// conn is a connection to a host.
type conn struct {
	net.Conn
	hosts *Hosts
	to    string
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.hosts.mu.Lock()
	delete(c.hosts.open, c)
	c.hosts.mu.Unlock()
	return c.Conn.Close()
}

// Watch records the connections that a config opens from now on.
func (h *Hosts) Watch(config *pgconn.Config) {
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		nc, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: nc, hosts: h, to: address}
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.open == nil {
			h.open = map[*conn]struct{}{}
		}
		h.open[c] = struct{}{}
		return c, nil
	}
}

// Accept records that a connection leads to the primary. It returns the address of the earlier primary if that was another one.
func (h *Hosts) Accept(nc net.Conn) (from, to string) {
	if encrypted, ok := nc.(interface{ NetConn() net.Conn }); ok {
		nc = encrypted.NetConn()
	}
	c, ok := nc.(*conn)
	if !ok {
		return "", ""
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	from, h.good = h.good, c.to
	if h.silent == c.to {
		h.silent = ""
	}
	if from == c.to {
		from = ""
	}
	return from, c.to
}

// Order puts the hosts of a config into the order of the tries: the last good one first.
func (h *Hosts) Order(config *pgx.ConnConfig) {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := append([]*pgconn.FallbackConfig{{Host: config.Host, Port: config.Port, TLSConfig: config.TLSConfig}}, config.Fallbacks...)
	rank := func(f *pgconn.FallbackConfig) int {
		switch addressOf(f) {
		case h.silent:
			return 2
		case h.good:
			return 0
		}
		return 1
	}
	slices.SortStableFunc(all, func(x, y *pgconn.FallbackConfig) int { return rank(x) - rank(y) })
	config.Host, config.Port, config.TLSConfig, config.Fallbacks = all[0].Host, all[0].Port, all[0].TLSConfig, all[1:]
}

func addressOf(f *pgconn.FallbackConfig) string {
	_, address := pgconn.NetworkAddress(f.Host, f.Port)
	return address
}

// Several reports whether a config has several hosts. One host can be there twice: with and without TLS.
func Several(config *pgx.ConnConfig) bool {
	first := addressOf(&pgconn.FallbackConfig{Host: config.Host, Port: config.Port})
	return slices.ContainsFunc(config.Fallbacks, func(f *pgconn.FallbackConfig) bool { return addressOf(f) != first })
}

// Probe logs in to the present primary. It returns its address if it doesn't answer in time.
func (h *Hosts) Probe(ctx context.Context, config *pgx.ConnConfig) (silent string) {
	one := config.Copy()
	h.Order(one)
	address := addressOf(&pgconn.FallbackConfig{Host: one.Host, Port: one.Port})
	h.mu.Lock()
	present := h.good
	h.mu.Unlock()
	if address != present {
		return ""
	}
	one.Fallbacks = slices.DeleteFunc(one.Fallbacks, func(f *pgconn.FallbackConfig) bool { return addressOf(f) != address })
	one.ConnectTimeout, one.ValidateConnect, one.AfterConnect = Timeout, nil, nil
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
	var all []*conn
	for c := range h.open {
		if c.to == address {
			all = append(all, c)
		}
	}
	h.mu.Unlock()
	for _, c := range all {
		_ = c.Close() // what waits for the host then fails
	}
}
