// Package tail follows what happens to jobs, for `qsidecar tail`: it sends the op watch to one sidecar again and again, and
// prints a line for each event.
//
// Run is the whole interface. lines.go formats the lines.
package tail

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/textfmt"
	"github.com/qsidecar/qsidecar/protocol"
)

// Options configure Run.
type Options struct {
	Socket string // of a sidecar that listens
	Worker string // the name of the connection, for people
	Queue  string // empty: every queue for which the user may watch
	JSON   bool   // one JSON object for each event, instead of a table
	Out    io.Writer
	Width  func() int // the width of the terminal that Out is; nil or 0: it isn't one
	Notes  io.Writer  // receives lines about the connection and missed events
}

// Run prints events until ctx ends, and returns its cause. If the sidecar restarts, Run connects again.
func Run(ctx context.Context, o Options) error {
	d := dialer{socket: o.Socket, note: func(format string, args ...any) { fmt.Fprintf(o.Notes, "qsidecar: "+format+"\n", args...) }}
	c, err := qsidecar.Dial(ctx, qsidecar.Options{Socket: o.Socket, Worker: o.Worker, Retry: -1, Dial: d.dial})
	if err != nil {
		return err
	}
	defer c.Close()
	p := printer{Options: o}
	req := protocol.Request{Op: protocol.OpWatch, Queue: o.Queue}
	for {
		rep, err := c.Call(ctx, &req)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		if req.WaitMS == 0 { // the first reply: from now on nothing is left out
			p.head()
			req.WaitMS = protocol.MaxWaitMS
		}
		if err := p.print(rep); err != nil {
			return err
		}
		if n := rep.Missed.Or(0); n > 0 && !o.JSON {
			d.note("%s missed: this command reads too slowly", textfmt.Plural(n, "event"))
		}
	}
}

// dialer connects to the sidecar, and reports outages. Only the goroutine of the client that connects uses it.
type dialer struct {
	socket    string
	note      func(format string, args ...any)
	connected bool // there was a connection
	down      bool // the last try failed
}

func (d *dialer) dial(ctx context.Context) (net.Conn, error) {
	var nd net.Dialer
	conn, err := nd.DialContext(ctx, "unix", d.socket)
	switch {
	case err != nil && d.connected && !d.down && ctx.Err() == nil:
		d.note("the sidecar is gone (%v), trying again", textfmt.RootCause(err))
	case err == nil && d.connected:
		d.note("connected again: events from before are missing")
	}
	d.down, d.connected = err != nil, d.connected || err == nil
	return conn, err
}

// print prints the events of a reply.
func (p *printer) print(rep *protocol.Reply) error {
	var text []byte
	if !p.JSON {
		text = p.lines(rep.JobEvents)
	} else {
		var fields struct{ Events []json.RawMessage }
		if err := json.Unmarshal(protocol.JSON.AppendReply(nil, &protocol.Reply{OK: true, JobEvents: rep.JobEvents}), &fields); err != nil {
			return fmt.Errorf("writing events as JSON: %w", err)
		}
		for _, e := range fields.Events {
			text = append(append(text, e...), '\n')
		}
		if n := rep.Missed.Or(0); n > 0 {
			text = fmt.Appendf(text, "{\"missed\":%d}\n", n)
		}
	}
	if len(text) == 0 {
		return nil
	}
	_, err := p.Out.Write(text)
	return err
}
