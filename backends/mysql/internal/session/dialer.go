package session

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/dial"
	"github.com/qsidecar/qsidecar/backends/mysql/migrate"
)

// Dialer opens connections to one server, to the servers that share its address, or to the first of several hosts that
// is ready.
type Dialer struct {
	Config   *mysql.Config
	Server   Server                  // see ReadServer
	Timeout  time.Duration           // limit for a connection with its login
	Idle     time.Duration           // after which the server ends an idle session; 0: idleEnds
	ReadOnly bool                    // read-only servers are accepted too
	Wrap     func(net.Conn) net.Conn // nil: none
	Packet   int64                   // tests: a lower limit than the server's max_allowed_packet

	// Moved is called when connections lead to another host than before, with both. nil: it is not called.
	Moved func(from, to string)

	// PacketChanged is called when a server's max_allowed_packet has changed since a session began. nil: it is not called.
	PacketChanged func()

	// Packets is called with the limit of each new session. nil: it is not called.
	Packets func(limit int64)

	// Refused is called when an old source is refused. nil: it is not called.
	Refused func(host string)

	hosts   hosts
	sources sources
}

// Place returns the address without secrets.
func (d *Dialer) Place() string { return Place(d.Config) }

// Dial opens a connection for a Counter, or for none. It does not end the Counter's abandoned session: see
// Open. Of several hosts it tries the last good one first: see hosts.inOrder.
func (d *Dialer) Dial(ctx context.Context, l *Counter) (*Conn, error) {
	all, moves := d.hosts.inOrder(d.Config)
	if len(all) == 1 {
		return d.dialHost(ctx, l, all[0], d.Timeout)
	}
	var failed error
	for _, host := range all {
		c, err := d.dialHost(ctx, l, host, min(d.Timeout, dial.HostTimeout))
		if err == nil {
			from, late := d.hosts.found(host, moves)
			if late {
				c.Close()
				return d.Dial(ctx, l)
			}
			if from != "" && d.Moved != nil {
				d.Moved(from, host)
			}
			c.opened = time.Now() // after Moved, which retires older connections
			return c, nil
		}
		d.hosts.failed(host)
		if ctx.Err() != nil {
			return nil, err
		}
		failed = errors.Join(failed, fmt.Errorf("%s: %w", host, err))
	}
	return nil, failed
}

// dialHost opens a connection to one host.
func (d *Dialer) dialHost(ctx context.Context, l *Counter, host string, limit time.Duration) (*Conn, error) {
	now := time.Now()
	c := &Conn{Counter: l, Name: "qsidecar-" + strconv.FormatUint(rand.Uint64(), 36), Host: host, opened: now, used: now, Wait: LockWait}
	config := d.Config.Clone()
	config.MaxAllowedPacket = int(d.Packet) // 0: the driver reads the server's
	config.Addr = host
	if name, _, err := net.SplitHostPort(host); err == nil && config.TLS != nil {
		config.TLS.ServerName = name // Clone copied it
	}
	config.DialFunc = func(ctx context.Context, network, addr string) (_ net.Conn, err error) {
		c.Wire, err = dial.Dialer().DialContext(ctx, network, addr)
		if err == nil && d.Wrap != nil {
			c.Wire = d.Wrap(c.Wire)
		}
		return c.Wire, err
	}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, err
	}
	// The driver's own timeout covers dialing only. Without this limit, a server that accepts the
	// connection and sends nothing would block until ctx ends.
	within, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer to the login within %v", limit))
	defer cancel()
	if c.Raw, err = connector.Connect(within); err != nil {
		if ctx.Err() == nil && within.Err() != nil {
			err = context.Cause(within)
		}
		return nil, &ConnectError{err}
	}
	err = d.CheckWritable(within, c)
	if err == nil {
		err = d.checkServer(within, c)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Open opens a connection for a Counter. If a session can still be at work for the Counter, Open ends it
// first, because its locks would be in the way.
func (d *Dialer) Open(ctx context.Context, l *Counter) (*Conn, error) {
	c, err := d.Dial(ctx, l)
	if err != nil {
		return nil, err
	}
	if l.Abandoned != "" {
		if err = c.Kill(ctx, l.Abandoned); err == nil {
			l.Abandoned = ""
		}
	}
	if err == nil {
		if err = c.Exec(ctx, "DO GET_LOCK(?, 0)", c.Name); migrate.NoUserLocks(err) {
			c.Name, err = "", nil // no other session can end this one: see Kill
		}
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	c.Since = time.Now()
	return c, nil
}

// CheckWritable returns an error if the server is a replica, or an old source. A service address can lead to a replica until
// another server takes over. An account that is exempt from read_only could write to it, and a replica
// that has not replayed everything can't show whether a commit happened. It also reads max_allowed_packet, which can be another one on
// each server and after each change of the global setting.
func (d *Dialer) CheckWritable(ctx context.Context, c *Conn) error {
	readOnly, name, transactions, global := false, "", "", int64(0)
	err := c.Each(ctx, func(r *Result) {
		readOnly, c.Server, c.Packet, global, name, transactions = r.Int(0) != 0, r.Text(1), r.Int(2), r.Int(3), r.Text(4), r.Text(5)
	}, "SELECT CAST(@@GLOBAL.read_only AS CHAR) NOT IN ('0', 'OFF') OR @@GLOBAL.innodb_read_only, CONCAT_WS('/', @@hostname, @@port, @@server_id, @@datadir), "+
		"@@SESSION.max_allowed_packet, @@GLOBAL.max_allowed_packet, "+d.sourceSQL())
	switch {
	case err != nil:
		return err
	case readOnly && !d.ReadOnly:
		return backends.Unavailable(fmt.Errorf("%s: the server is read-only, as replicas are", d.Place()))
	}
	if d.Packet > 0 {
		c.Packet = min(c.Packet, d.Packet)
	}
	switch {
	case c.packets == 0:
		if c.packets = global; d.Packets != nil {
			d.Packets(c.Packet)
		}
	case c.packets != global && !c.Old:
		if c.Old = true; d.PacketChanged != nil {
			d.PacketChanged()
		}
	}
	if d.ReadOnly {
		return nil
	}
	return d.sources.check(d, c.Host, name, transactions)
}
