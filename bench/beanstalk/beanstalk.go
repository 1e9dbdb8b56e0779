// Package beanstalk is a client of beanstalkd that is as fast as its protocol allows.
package beanstalk

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Conn is a connection to beanstalkd. It has at most one claimed job.
type Conn struct {
	conn net.Conn
	in   *bufio.Reader
	out  bytes.Buffer
	held string // the id of the claimed job, or empty
}

// Dial connects to a Unix socket.
func Dial(socket string) (*Conn, error) {
	conn, err := net.Dial("unix", socket)
	return &Conn{conn: conn, in: bufio.NewReader(conn)}, err
}

// send sends what is in out.
func (c *Conn) send() error {
	_, err := c.conn.Write(c.out.Bytes())
	c.out.Reset()
	return err
}

// reply reads a line and splits it. The first field must be one of these.
func (c *Conn) reply(want ...string) ([]string, error) {
	line, err := c.in.ReadString('\n')
	if err != nil {
		return nil, err
	}
	words := strings.Fields(line)
	if len(words) == 0 || !slices.Contains(want, words[0]) {
		return nil, fmt.Errorf("beanstalkd answered %q, not %s", line, want)
	}
	return words, nil
}

// body reads the data after a reply, whose last field is the length.
func (c *Conn) body(words []string) ([]byte, error) {
	n, err := strconv.Atoi(words[len(words)-1])
	if err != nil {
		return nil, err
	}
	data := make([]byte, n+2) // and the end of line
	_, err = io.ReadFull(c.in, data)
	return data, err
}

// Put stores jobs. It sends them all before it reads the replies.
func (c *Conn) Put(_ context.Context, payloads [][]byte) error {
	for _, p := range payloads {
		fmt.Fprintf(&c.out, "put 0 0 600 %d\r\n%s\r\n", len(p), p)
	}
	if err := c.send(); err != nil {
		return err
	}
	for range payloads {
		if _, err := c.reply("INSERTED"); err != nil {
			return err
		}
	}
	return nil
}

// Next deletes the claimed job and reserves the next one, in one write. If it waits, it waits for a
// second. It reserves none unless more, which gets the number of deleted jobs, returns true.
func (c *Conn) Next(_ context.Context, wait time.Duration, more func(int) bool, got func([]byte)) (int, error) {
	settles, claims := c.held != "", true
	if settles {
		fmt.Fprintf(&c.out, "delete %s\r\n", c.held)
		claims = more(1)
		c.held = ""
	}
	if claims {
		fmt.Fprintf(&c.out, "reserve-with-timeout %d\r\n", int(min(wait, 1)))
	}
	if err := c.send(); err != nil {
		return 0, err
	}
	if settles {
		if _, err := c.reply("DELETED"); err != nil {
			return 0, err
		}
	}
	if !claims {
		return 0, nil
	}
	words, err := c.reply("RESERVED", "TIMED_OUT")
	if err != nil || words[0] == "TIMED_OUT" {
		return 0, err
	}
	c.held = words[1]
	data, err := c.body(words)
	got(data)
	return 1, err
}

// Close closes the connection.
func (c *Conn) Close() error { return c.conn.Close() }

// Count returns the number of jobs in the server.
func (c *Conn) Count() (total int, err error) {
	c.out.WriteString("stats\r\n")
	if err := c.send(); err != nil {
		return 0, err
	}
	words, err := c.reply("OK")
	if err != nil {
		return 0, err
	}
	text, err := c.body(words)
	for line := range strings.Lines(string(text)) {
		var n int
		for _, state := range []string{"ready", "reserved", "delayed", "buried"} {
			if _, err := fmt.Sscanf(line, "current-jobs-"+state+": %d", &n); err == nil {
				total += n
			}
		}
	}
	return total, err
}
