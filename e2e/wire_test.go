package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// msg is a request as JSON carries it.
type msg map[string]any

// reply is any answer. Only what the tests look at has a field.
type reply struct {
	ID       any        `json:"id"`
	Event    string     `json:"event"`
	OK       *bool      `json:"ok"`
	Error    *wireError `json:"error"`
	Job      *wireJob   `json:"job"`
	Jobs     []wireJob  `json:"jobs"`
	Enqueued []wireJob  `json:"enqueued"`
	Acked    int        `json:"acked"`
	Nacked   int        `json:"nacked"`
	Extended int        `json:"extended"`
	Count    int        `json:"count"`
	Lost     []string   `json:"lost"`
	Leases   []string   `json:"leases"` // of the event lost
	Queues   []wireStat `json:"queues"`

	Generation  int          `json:"generation"`
	ConfigError string       `json:"config_error"`
	Databases   []databaseAt `json:"databases"`

	MaxFrame   int `json:"max_frame"`
	MaxPayload int `json:"max_payload"`
	MaxReply   int `json:"max_reply"`
}

// databaseAt is a database of a status.
type databaseAt struct {
	Name    string `json:"name"`
	Place   string `json:"place"`
	Error   string `json:"error"`
	Leaving bool   `json:"leaving"`
}

type wireError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Field   string `json:"field"`
	RetryMS int64  `json:"retry_ms"`
}

func (e *wireError) Error() string { return e.Code + ": " + e.Message }

// passing is what a producer may be told while servers die: it tries again.
func (e *wireError) passing() bool {
	return e.Code == "unavailable" || e.Code == "unknown_outcome" || e.Code == "busy"
}

// conflict reports whether the error tells of a deadlock between transactions, in
// the words of any engine: the sidecar's own business under whatever code.
func (e *wireError) conflict() bool {
	words := strings.ToLower(e.Message)
	return strings.Contains(words, "deadlock") || strings.Contains(words, "lock wait timeout")
}

// wireJob is a job as enqueue, claim and peek show it.
type wireJob struct {
	ID          string            `json:"id"`
	Queue       string            `json:"queue"`
	Lease       string            `json:"lease"`
	Payload     string            `json:"payload"`
	PayloadB64  []byte            `json:"payload_b64"`
	Attempt     int               `json:"attempt"`
	MaxAttempts int               `json:"max_attempts"`
	Fence       int64             `json:"fence"`
	Duplicate   bool              `json:"duplicate"`
	State       string            `json:"state"`
	LastError   string            `json:"last_error"`
	Errors      []wireFailure     `json:"errors"`
	Headers     map[string]string `json:"headers"`
	Result      string            `json:"result"`
	ResultB64   []byte            `json:"result_b64"`
}

type wireFailure struct {
	Attempt int    `json:"attempt"`
	Cause   string `json:"cause"`
	Message string `json:"message"`
}

type wireStat struct {
	Queue                                 string
	Ready, Scheduled, Claimed, Dead, Done int
}

func (s wireStat) total() int { return s.Ready + s.Scheduled + s.Claimed + s.Dead + s.Done }

// wire is a connection that speaks JSON lines. Its errors are the connection's;
// what the server refuses is in the reply.
type wire struct {
	net.Conn
	in *bufio.Reader
}

func dialWire(socket string) (*wire, error) {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return nil, err
	}
	return &wire{Conn: c, in: bufio.NewReader(c)}, nil
}

func (w *wire) send(reqs ...msg) error {
	var out []byte
	for _, req := range reqs {
		line, err := json.Marshal(req)
		if err != nil {
			return err
		}
		out = append(append(out, line...), '\n')
	}
	_, err := w.Write(out)
	return err
}

func (w *wire) receive() (*reply, error) {
	line, err := w.in.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	r := new(reply)
	if err := json.Unmarshal(line, r); err != nil {
		return nil, fmt.Errorf("the server sent %.200q: %w", line, err)
	}
	if r.OK == nil && r.Event == "" || r.OK != nil && *r.OK == (r.Error != nil) {
		return nil, fmt.Errorf("neither a reply nor an event: %.200q", line)
	}
	return r, nil
}

func (w *wire) call(req msg) (*reply, error) {
	if err := w.send(req); err != nil {
		return nil, err
	}
	return w.receive()
}

// conn is a wire whose failures end the test.
type conn struct {
	*wire
	t testing.TB
}

// patience bounds every wait for something that should happen soon. It is long:
// it only matters when the test fails.
const patience = 20 * time.Second

func dial(t testing.TB, socket string) *conn {
	t.Helper()
	w, err := dialWire(socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return &conn{wire: w, t: t}
}

// within sets how long the next receives may take.
func (c *conn) within(d time.Duration) *conn {
	if err := c.SetReadDeadline(time.Now().Add(d)); err != nil {
		c.t.Fatal(err)
	}
	return c
}

// post sends requests without waiting for their answers.
func (c *conn) post(reqs ...msg) {
	c.t.Helper()
	if err := c.send(reqs...); err != nil {
		c.t.Fatalf("sending %v: %v", reqs, err)
	}
}

// next is the next answer, whatever it says.
func (c *conn) next() *reply {
	c.t.Helper()
	c.within(patience)
	return c.nextSet()
}

// nextSet is next under a deadline that within has set.
func (c *conn) nextSet() *reply {
	c.t.Helper()
	r, err := c.receive()
	if err != nil {
		c.t.Fatalf("waiting for an answer: %v", err)
	}
	return r
}

// ask is one request and its answer, whatever it says.
func (c *conn) ask(req msg) *reply {
	c.t.Helper()
	c.post(req)
	c.within(patience)
	r, err := c.receive()
	if err != nil {
		c.t.Fatalf("waiting for the answer to %v: %v", brief(req), err)
	}
	return r
}

// must is one request that has to succeed.
func (c *conn) must(req msg) *reply {
	c.t.Helper()
	r := c.ask(req)
	if r.Error != nil {
		c.t.Fatalf("%v: %v", brief(req), r.Error)
	}
	return r
}

// refused is one request that has to fail with the code.
func (c *conn) refused(code string, req msg) *wireError {
	c.t.Helper()
	return c.wantError(code, fmt.Sprint(brief(req)), c.ask(req))
}

func (c *conn) wantError(code, what string, r *reply) *wireError {
	c.t.Helper()
	if r.Error == nil || r.Error.Code != code || r.Error.Message == "" {
		c.t.Fatalf("%s: answered %+v, want the error %s with a message", what, r.Error, code)
	}
	return r.Error
}

// claimOne waits for a job.
func (c *conn) claimOne(queue string) wireJob {
	c.t.Helper()
	r := c.must(msg{"op": "claim", "queue": queue, "wait_ms": patience.Milliseconds() / 2})
	if len(r.Jobs) != 1 {
		c.t.Fatalf("claim %s: %d jobs, want 1", queue, len(r.Jobs))
	}
	return r.Jobs[0]
}

// enqueueN stores n jobs and returns their ids.
func (c *conn) enqueueN(queue string, n int) []string {
	c.t.Helper()
	var ids []string
	for len(ids) < n {
		var jobs []msg
		for i := len(ids); i < n && len(jobs) < 1000; i++ {
			jobs = append(jobs, msg{"queue": queue, "payload": fmt.Sprint(i)})
		}
		for _, j := range c.must(msg{"op": "enqueue", "jobs": jobs}).Jobs {
			ids = append(ids, j.ID)
		}
	}
	return ids
}

// stat is the queue's counts.
func (c *conn) stat(queue string) wireStat {
	c.t.Helper()
	for _, s := range c.must(msg{"op": "stats", "queue": queue}).Queues {
		if s.Queue == queue {
			return s
		}
	}
	return wireStat{Queue: queue}
}

// closedByServer waits for the server to close the connection.
func (c *conn) closedByServer() {
	c.t.Helper()
	c.within(patience)
	if line, err := c.in.ReadBytes('\n'); !errors.Is(err, io.EOF) && !isReset(err) {
		c.t.Fatalf("the connection should be closed; got %.200q, %v", line, err)
	}
}

// brief cuts a request for a message.
func brief(req msg) string {
	s := fmt.Sprint(req)
	return s[:min(len(s), 200)]
}
