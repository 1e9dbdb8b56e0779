package dialtest

import (
	"net"
	"sync"
)

// Conn is a connection through a proxy that can answer in place of the server.
type Conn struct {
	net.Conn
	mu      sync.Mutex
	answers []byte // to the next request
	rest    []byte // of an answer that is being read
}

// Through puts a Conn around a connection.
func Through(c net.Conn) net.Conn { return &Conn{Conn: c} }

// Answer makes the proxy keep the next request back, and answer it. The connection stays open on both sides.
func (c *Conn) Answer(b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers = b
}

// Write implements net.Conn.
func (c *Conn) Write(b []byte) (int, error) {
	c.mu.Lock()
	if len(c.answers) > 0 {
		c.rest, c.answers = c.answers, nil
		c.mu.Unlock()
		return len(b), nil
	}
	c.mu.Unlock()
	return c.Conn.Write(b)
}

// Read implements net.Conn.
func (c *Conn) Read(b []byte) (int, error) {
	c.mu.Lock()
	if n := copy(b, c.rest); n > 0 {
		c.rest = c.rest[n:]
		c.mu.Unlock()
		return n, nil
	}
	c.mu.Unlock()
	return c.Conn.Read(b)
}
