package measure

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

// Wire is one connection to the sidecar, with one request at a time. It uses no client library, so
// the figures are the sidecar's.
type Wire struct {
	Conn  net.Conn
	in    *protocol.Reader
	out   []byte
	Reply protocol.Reply
}

// Dial connects to a sidecar.
func Dial(socket string) (*Wire, error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return nil, err
	}
	return &Wire{Conn: conn, in: protocol.NewReader(conn, 8*protocol.MaxMaxFrame)}, nil
}

// Post sends one request.
func (w *Wire) Post(req *protocol.Request) error {
	w.out = protocol.Msgpack.AppendRequest(w.out[:0], req)
	_, err := w.Conn.Write(w.out)
	return err
}

// Silent returns an error if the server has sent something or has closed the connection.
func (w *Wire) Silent() error {
	if err := w.Conn.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
		return err
	}
	n, err := w.Conn.Read(make([]byte, 1))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return errors.Join(err, fmt.Errorf("%d bytes arrived", n))
}

// Call sends one request and waits for its reply, which is valid until the next call.
func (w *Wire) Call(req *protocol.Request) (*protocol.Reply, error) {
	if err := w.Post(req); err != nil {
		return nil, err
	}
	body, codec, err := w.in.Next()
	if err != nil {
		return nil, err
	}
	w.Reply = protocol.Reply{}
	if err := codec.DecodeReply(body, &w.Reply); err != nil {
		return nil, err
	}
	if w.Reply.Error != nil {
		return nil, fmt.Errorf("%s: %w", req.Op, w.Reply.Error)
	}
	return &w.Reply, nil
}
