package config

import (
	"bytes"
	bin "encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testwait"
	"github.com/qsidecar/qsidecar/internal/unixsocket"
)

// attack is one piece of bad input and the expected effect on its sender.
type attack struct {
	name string
	send []byte
	code string // the error that the sender gets
	open bool   // whether the connection stays open
}

func attacks() []attack {
	deep := append(frameHead(1<<20), bytes.Repeat([]byte{0x91}, 1<<20)...)
	line := func(s string) []byte { return []byte(s + "\n") }
	return []attack{
		{"five bytes that ask for tens of GiB", frame([]byte("\xdd\xff\xff\xff\xff")), "bad_frame", false},
		{"a map of 2^32-1", frame([]byte("\xdf\xff\xff\xff\xff")), "bad_frame", false},
		{"a megabyte of nested arrays", deep, "bad_frame", false},
		{"a megabyte of nested JSON", append(append([]byte(`{"op":`), bytes.Repeat([]byte("["), 1<<20)...), '\n'), "bad_request", true},
		{"a cut message in a whole frame", frame([]byte("\x82\xa2op\xa4pi")), "bad_frame", false},
		{"bytes behind the message", frame([]byte("\x81\xa2op\xa4ping\x00\x00")), "bad_frame", false},
		{"a frame of 2^24 bytes", frameHead(1 << 24), "too_large", false},
		{"a length that cuts its message", []byte("\x00\x00\x00\x05\x81\xa2op\xa4ping"), "bad_frame", false},
		{"an HTTP request", []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "bad_frame", false},
		{"a frame of 2^32-1 bytes, which is no codec", []byte("\xff\xff\xff\xff"), "bad_frame", false},
		{"duplicate keys, msgpack", frame([]byte("\x82\xa2op\xa4ping\xa2op\xa4ping")), "bad_request", true},
		{"duplicate keys", line(`{"op":"ping","op":"ping"}`), "bad_request", true},
		{"a key in another case", line(`{"op":"ping","OP":"ping"}`), "bad_request", true},
		{"invalid UTF-8", line("{\"op\":\"claim\",\"queue\":\"\xff\"}"), "bad_request", true},
		{"a lone surrogate", line(`{"op":"claim","queue":"\ud800"}`), "bad_request", true},
		{"an unknown op", line(`{"op":"explode"}`), "unknown_op", true},
		{"no op", line(`{}`), "bad_request", true},
		{"a missing field", line(`{"op":"enqueue","payload":"x"}`), "bad_request", true},
		{"an unknown field", line(`{"op":"ping","extra":1}`), "bad_request", true},
		{"a negative max", line(`{"op":"claim","queue":"q","max":-1}`), "bad_request", true},
		{"a max of 2^60", line(`{"op":"claim","queue":"q","max":1152921504606846976}`), "bad_request", true},
		{"a 65 KiB queue name", line(`{"op":"claim","queue":"` + strings.Repeat("q", 65<<10) + `"}`), "bad_request", true},
		{"a garbage lease", line(`{"op":"ack","lease":"1.no-such-thing"}`), "lease_lost", true},
		{"a lease with a line end", line(`{"op":"ack","lease":"1.AAAAAAAAAAA.\nAAAAAAAAAA\r.1"}`), "lease_lost", true},
		{"a lease of another version", line(`{"op":"ack","lease":"9.x"}`), "lease_lost", true},
	}
}

func frameHead(n int) []byte { return bin.BigEndian.AppendUint32(nil, uint32(n)) }

func frame(body []byte) []byte { return append(frameHead(len(body)), body...) }

// TestBadInput checks that each attack gets the documented error or loses its connection. Other
// clients work and memory stays flat.
func TestBadInput(t *testing.T) {
	s := kit.NewSite(t)
	a := s.Start("a")
	stop := neighbours(a, 31)
	before, _ := a.RSS()
	for range kit.Size(100) {
		for _, x := range attacks() {
			x.run(t, a)
		}
	}
	t.Run("a-lease-of-another-database", func(t *testing.T) { foreignLease(t, a) })
	t.Run("a-tampered-lease", func(t *testing.T) { tamperedLease(t, a) })
	t.Run("a-100-MiB-line", func(t *testing.T) { endlessLine(t, a) })
	t.Run("hang-up-behind-1024-waiting-requests", func(t *testing.T) { manyWaiting(t, a) })
	t.Run("5000-connections", func(t *testing.T) { manyConnections(t, a) })
	rounds := stop()
	after, peak := a.RSS()
	kit.Figure(t, "memory of the sidecar: %d MiB before all bad input, %d MiB after, %d MiB at the most; its 31 neighbours worked %d jobs meanwhile",
		before>>20, after>>20, peak>>20, rounds)
	if peak > 256<<20 || after > 160<<20 {
		t.Errorf("memory grew to %d MiB and stays at %d MiB", peak>>20, after>>20)
	}
	if rounds < 31 {
		t.Errorf("the neighbours worked only %d jobs", rounds)
	}
}

func (x attack) run(t *testing.T, a *kit.Sidecar) {
	t.Helper()
	c := a.Dial()
	defer c.Close()
	if _, err := c.Write(x.send); err != nil && !kit.IsReset(err) {
		t.Fatalf("%s: %v", x.name, err)
	}
	c.WantError(x.code, x.name, x.answer(t, c))
	if !x.open {
		c.WantClosed()
	} else if x.send[0] == '{' {
		c.Must(kit.Msg{"op": "ping"})
	}
}

// answer reads the reply in the codec of the attack.
func (x attack) answer(t *testing.T, c *kit.Conn) *kit.Reply {
	t.Helper()
	if bytes.HasPrefix(x.send, []byte("GET ")) {
		c.SetLimit()
		for head := ""; head != "\r\n"; { // of the response
			var err error
			if head, err = c.In.ReadString('\n'); err != nil {
				t.Fatalf("%s: %v", x.name, err)
			}
		}
	}
	if x.send[0] > 4 {
		return c.Next()
	}
	c.SetLimit()
	var head [4]byte
	if _, err := io.ReadFull(c.In, head[:]); err != nil {
		t.Fatalf("%s: %v", x.name, err)
	}
	body := make([]byte, bin.BigEndian.Uint32(head[:]))
	if _, err := io.ReadFull(c.In, body); err != nil {
		t.Fatalf("%s: %v", x.name, err)
	}
	// It finds the code among the strings of the msgpack.
	for _, code := range []string{"bad_frame", "bad_request", "too_large"} {
		if bytes.Contains(body, []byte("code\xa9"+code)) || bytes.Contains(body, []byte("code\xab"+code)) {
			no := false
			return &kit.Reply{OK: &no, Error: &kit.Error{Code: code, Message: string(body)}}
		}
	}
	t.Fatalf("%s: answered %q", x.name, body)
	return nil
}

// neighbours runs n well-behaved connections that enqueue, claim and ack until stop is called. stop
// returns how many jobs they processed.
func neighbours(sc *kit.Sidecar, n int) (stop func() int) {
	sc.T.Helper()
	type result struct {
		jobs int
		err  error
	}
	done := make(chan struct{})
	results := make(chan result, n)
	for i := range n {
		go func() {
			jobs, err := neighbour(sc.Socket, fmt.Sprint("neighbour-", i), done)
			results <- result{jobs, err}
		}()
	}
	return func() int {
		close(done)
		total := 0
		for range n {
			r := <-results
			if total += r.jobs; r.err != nil {
				sc.T.Errorf("a neighbour was harmed: %v", r.err)
			}
		}
		return total
	}
}

func neighbour(socket, queue string, done <-chan struct{}) (jobs int, err error) {
	w, err := kit.DialWire(socket)
	if err != nil {
		return 0, err
	}
	defer w.Close()
	for {
		lease := ""
		for _, req := range []kit.Msg{
			{"op": "enqueue", "queue": queue, "payload": "x"},
			{"op": "claim", "queue": queue},
			{"op": "ack"},
		} {
			if req["op"] == "ack" {
				req["lease"] = lease
			}
			if err := w.SetDeadline(testwait.Deadline()); err != nil {
				return jobs, err
			}
			r, err := w.Call(req)
			if err != nil {
				return jobs, err
			}
			if r.Error != nil {
				return jobs, fmt.Errorf("%v: %w", req["op"], r.Error)
			}
			if len(r.Jobs) == 1 {
				lease = r.Jobs[0].Lease
			}
		}
		jobs++
		select {
		case <-done:
			return jobs, nil
		default:
			kit.Pace() // they need not be fast
		}
	}
}

func foreignLease(t *testing.T, a *kit.Sidecar) {
	other := kit.NewSite(t).Start("other").Dial()
	other.Enqueue("q", 1)
	c := a.Dial()
	c.Enqueue("q", 1)
	mine := c.ClaimOne("q") // the same job id as in the other database
	c.MustFail("lease_lost", kit.Msg{"op": "ack", "lease": other.ClaimOne("q").Lease})
	c.Must(kit.Msg{"op": "ack", "lease": mine.Lease})
}

// tamperedLease changes each part of a valid lease.
func tamperedLease(t *testing.T, a *kit.Sidecar) {
	c := a.Dial()
	c.Enqueue("tampered", 20)
	jobs := c.Must(kit.Msg{"op": "claim", "queue": "tampered", "max": 10}).Jobs
	lease := jobs[4].Lease
	for i := range lease {
		for _, other := range []string{"", "A", "0", "_", ".", "\n", "é", lease[i:]} {
			forged := lease[:i] + other + lease[i+1:]
			if forged == lease || slices.ContainsFunc(jobs, func(j kit.Job) bool { return j.Lease == forged }) {
				continue
			}
			c.MustFail("lease_lost", kit.Msg{"op": "ack", "lease": forged})
		}
	}
	if got := c.Stats("tampered"); got.Claimed != len(jobs) || got.Ready != 10 {
		t.Errorf("forged leases changed the queue to %+v", got)
	}
	for _, j := range jobs {
		c.Must(kit.Msg{"op": "ack", "lease": j.Lease})
	}
}

// endlessLine sends 100 MiB without a newline.
func endlessLine(t *testing.T, a *kit.Sidecar) {
	c := a.Dial()
	c.SetLimit()
	chunk := bytes.Repeat([]byte("x"), 1<<20)
	copy(chunk, `{"op":"enqueue","queue":"q","payload":"`)
	sent := 0
	for range 100 {
		n, err := c.Write(chunk)
		sent += n
		if err != nil {
			break // the server can close in between
		}
		copy(chunk, bytes.Repeat([]byte("x"), 64))
	}
	if r, err := c.Receive(); err != nil && !kit.IsReset(err) && !errors.Is(err, io.EOF) {
		t.Errorf("after %d MiB: %v", sent>>20, err)
	} else if err == nil {
		c.WantError("too_large", "an endless line", r)
	} else {
		t.Errorf("it was closed after %d MiB without too_large: %v", sent>>20, err)
	}
	c.WantClosed()
}

// manyWaiting fills a session with the largest number of open requests, some of them waiting
// claims, and closes the connection.
func manyWaiting(t *testing.T, a *kit.Sidecar) {
	c, watcher := a.Dial(), a.Dial()
	busy := 0
	for i := range 1024 {
		c.Post(kit.Msg{"op": "claim", "id": i, "queue": "waited", "wait_ms": 600_000})
	}
	for range 1024 - 256 { // all but the claims that can wait are rejected at once
		if r := c.Next(); r.Error != nil && r.Error.Code == "busy" {
			busy++
		}
	}
	if busy != 1024-256 {
		t.Errorf("%d of 1,024 waiting claims got busy, want %d", busy, 1024-256)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	// No other worker takes the job, so it goes to the watcher. At most one delivery can have
	// crossed with the close.
	watcher.Must(kit.Msg{"op": "enqueue", "queue": "waited", "payload": "x"})
	job := watcher.ClaimOne("waited")
	if job.Attempt > 2 {
		t.Errorf("the job was delivered %d times to a session that had hung up", job.Attempt-1)
	}
	watcher.Must(kit.Msg{"op": "ack", "lease": job.Lease})
}

func manyConnections(t *testing.T, a *kit.Sidecar) {
	const n = 5000
	conns := make([]net.Conn, 0, n)
	defer func() {
		for _, c := range conns {
			_ = c.Close() // their replies do not matter
		}
	}()
	began := kit.Monotonic()
	for len(conns) < n {
		c, err := unixsocket.Dial(testwait.Context(t), a.Socket) // the socket's queue can be full
		if err != nil {
			t.Fatalf("connection %d: %v", len(conns), err)
		}
		conns = append(conns, c)
	}
	for i, c := range conns { // each is served
		if _, err := c.Write([]byte("{\"op\":\"ping\"}\n")); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
	}
	for i, c := range conns {
		if err := c.SetReadDeadline(testwait.Deadline()); err != nil {
			t.Fatal(err)
		}
		var r kit.Reply
		if err := json.NewDecoder(c).Decode(&r); err != nil || r.Error != nil {
			t.Fatalf("connection %d: %v %v", i, err, r.Error)
		}
	}
	rss, _ := a.RSS()
	kit.Figure(t, "5,000 connections were opened and answered in %v; the sidecar has %d MiB then", kit.Since(began).Round(time.Millisecond), rss>>20)
}
