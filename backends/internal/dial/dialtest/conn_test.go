package dialtest

import (
	"io"
	"net"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// entered is a connection that reports when a Read begins.
type entered struct {
	net.Conn
	reads chan struct{}
}

func (e entered) Read(b []byte) (int, error) {
	e.reads <- struct{}{}
	return e.Conn.Read(b)
}

// TestAnswerReachesAReadThatWaits: pgx reads in the background if a write takes long, so a Read can wait at the server before the request that the
// proxy answers. What the server sends later arrives, too.
func TestAnswerReachesAReadThatWaits(t *testing.T) {
	near, server := net.Pipe()
	defer near.Close()
	defer server.Close()
	inner := entered{near, make(chan struct{}, 10)}
	c := Through(inner).(*Conn)
	got := make(chan string, 2)
	read := func() {
		b := make([]byte, 100)
		n, err := c.Read(b)
		if err != nil {
			t.Error(err)
		}
		got <- string(b[:n])
	}
	go read()
	testwait.Receive(t, "the Read", inner.reads)
	c.Answer([]byte("answer"))
	if _, err := c.Write([]byte("request")); err != nil {
		t.Fatal(err)
	}
	if text := testwait.Receive(t, "the answer", got); text != "answer" {
		t.Errorf("read %q", text)
	}
	go read()
	if _, err := io.WriteString(server, "more"); err != nil {
		t.Fatal(err)
	}
	if text := testwait.Receive(t, "more", got); text != "more" {
		t.Errorf("read %q", text)
	}
}
