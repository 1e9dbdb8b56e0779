package session

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/go-sql-driver/mysql"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/dial"
)

// cutHosts returns the address with its first host only, and the other hosts. net/url accepts one host.
func cutHosts(address string) (first string, more []string) {
	scheme, rest, ok := strings.Cut(address, "://")
	if !ok {
		return address, nil
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	at := strings.LastIndex(rest[:end], "@") + 1
	hosts := strings.Split(rest[at:end], ",")
	return scheme + "://" + rest[:at] + hosts[0] + rest[end:], hosts[1:]
}

// hosts records which of several hosts to try first.
type hosts struct {
	mu      sync.Mutex
	good    string          // the last one that connections led to
	suspect string          // a host that stopped answering: the last one to try
	tried   map[string]bool // the hosts that failed since the last connection that succeeded
	moves   int             // how often good changed
}

// inOrder returns the hosts in the order of the tries: the last good one first, and those that failed since then last. A heartbeat can
// end before all hosts were tried, and the next one must not begin with the same hosts. moves is for found.
func (h *hosts) inOrder(c *mysql.Config) (all []string, moves int) {
	if c.Net == "unix" {
		return []string{c.Addr}, 0
	}
	all = strings.Split(c.Addr, ",")
	h.mu.Lock()
	defer h.mu.Unlock()
	rank := func(host string) int {
		switch {
		case host == h.suspect:
			return 3
		case host == h.good:
			return 0
		case h.tried[host]:
			return 2
		}
		return 1
	}
	slices.SortStableFunc(all, func(x, y string) int { return rank(x) - rank(y) })
	return all, h.moves
}

// found records the host of a new connection, whose dial began at moves. It returns the earlier host if that was another one. late means
// that other connections left the host during the dial: it hung and continued, and possibly another host replaced it. The connection
// must not be used then.
func (h *hosts) found(host string, moves int) (from string, late bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if moves != h.moves && host != h.good {
		return "", true
	}
	from, h.good = h.good, host
	clear(h.tried)
	if h.suspect == host {
		h.suspect = ""
	}
	if from == host {
		return "", false
	}
	h.moves++
	return from, false
}

// failed records that a connection to a host failed.
func (h *hosts) failed(host string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.tried == nil {
		h.tried = map[string]bool{}
	}
	h.tried[host] = true
}

// Probe logs in to the host of the present connections. It returns that host if it doesn't answer in time.
func (d *Dialer) Probe(ctx context.Context) (silent string) {
	d.hosts.mu.Lock()
	host := d.hosts.good
	d.hosts.mu.Unlock()
	if host == "" {
		return ""
	}
	c, err := d.dialHost(ctx, nil, host, min(d.Timeout, dial.HostTimeout))
	if err == nil {
		c.Close()
		return ""
	}
	if ctx.Err() != nil || FromServer(err) || backends.IsUnreachable(err) { // it answered
		return ""
	}
	return host
}

// Each calls f for each host: with a connection to it, or with the reason why there is none.
func (d *Dialer) Each(ctx context.Context, f func(host string, c *Conn, err error)) {
	for host := range strings.SplitSeq(d.Config.Addr, ",") {
		c, err := d.dialHost(ctx, nil, host, min(d.Timeout, dial.HostTimeout))
		f(host, c, err)
		if err == nil {
			c.Close()
		}
	}
}

// Suspect makes a host that stopped answering the last one to try.
func (d *Dialer) Suspect(host string) {
	d.hosts.mu.Lock()
	defer d.hosts.mu.Unlock()
	d.hosts.suspect = host
}

// Several reports whether the address has several hosts.
func (d *Dialer) Several() bool {
	return d.Config.Net != "unix" && strings.Contains(d.Config.Addr, ",")
}
