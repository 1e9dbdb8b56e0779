package dialtest

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// Conn is a connection through a proxy that can answer in place of the server.
type Conn struct {
	net.Conn
	mu       sync.Mutex
	answers  []byte // to the next request
	rest     []byte // of an answer that is being read
	deadline time.Time
	woken    bool // the deadline was changed to end a Read that waits for the server
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
	if len(c.answers) == 0 {
		c.mu.Unlock() // reads go on while the server doesn't
		return c.Conn.Write(b)
	}
	defer c.mu.Unlock()
	c.rest, c.answers, c.woken = c.answers, nil, true
	return len(b), c.Conn.SetReadDeadline(time.Unix(1, 0))
}

// Read implements net.Conn.
func (c *Conn) Read(b []byte) (int, error) {
	for {
		if n, err := c.readAnswer(b); n > 0 || err != nil {
			return n, err
		}
		n, err := c.Conn.Read(b)
		if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && c.wasWoken() {
			continue
		}
		return n, err
	}
}

// readAnswer reads an answer, if there is one.
func (c *Conn) readAnswer(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.woken {
		c.woken = false
		if err := c.Conn.SetReadDeadline(c.deadline); err != nil {
			return 0, err
		}
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

func (c *Conn) wasWoken() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.woken
}

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
	if c.woken {
		return nil // the next Read sets it
	}
	return c.Conn.SetReadDeadline(t)
}
