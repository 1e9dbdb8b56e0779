package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

// wire is one connection to the sidecar, with one request at a time. It uses no client library, so
// the figures are the sidecar's.
type wire struct {
	conn  net.Conn
	in    *protocol.Reader
	out   []byte
	reply protocol.Reply
}

func dial(socket string) (*wire, error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return nil, err
	}
	return &wire{conn: conn, in: protocol.NewReader(conn, 8*protocol.MaxMaxFrame)}, nil
}

// post sends one request.
func (w *wire) post(req *protocol.Request) error {
	w.out = protocol.Msgpack.AppendRequest(w.out[:0], req)
	_, err := w.conn.Write(w.out)
	return err
}

// silent returns an error if the server has sent something or has closed the connection.
func (w *wire) silent() error {
	if err := w.conn.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
		return err
	}
	n, err := w.conn.Read(make([]byte, 1))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return errors.Join(err, fmt.Errorf("%d bytes arrived", n))
}

// call sends one request and waits for its reply, which is valid until the next call.
func (w *wire) call(req *protocol.Request) (*protocol.Reply, error) {
	if err := w.post(req); err != nil {
		return nil, err
	}
	body, codec, err := w.in.Next()
	if err != nil {
		return nil, err
	}
	w.reply = protocol.Reply{}
	if err := codec.DecodeReply(body, &w.reply); err != nil {
		return nil, err
	}
	if w.reply.Error != nil {
		return nil, fmt.Errorf("%s: %w", req.Op, w.reply.Error)
	}
	return &w.reply, nil
}
