package kit

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// Msg is a request in JSON's form.
type Msg map[string]any

// Reply is any reply. It has only the fields that the tests check.
type Reply struct {
	ID       any          `json:"id"`
	Event    string       `json:"event"`
	OK       *bool        `json:"ok"`
	Error    *Error       `json:"error"`
	Job      *Job         `json:"job"`
	Jobs     []Job        `json:"jobs"`
	Enqueued []Job        `json:"enqueued"`
	Acked    int          `json:"acked"`
	Nacked   int          `json:"nacked"`
	Extended int          `json:"extended"`
	Count    int          `json:"count"`
	Lost     []string     `json:"lost"`
	Leases   []string     `json:"leases"` // of the event lost
	Queues   []QueueStats `json:"queues"`

	Schedules []struct {
		Version int64 `json:"version"`
		EveryMS int64 `json:"every_ms"`
		NextAt  int64 `json:"next_at"`
	} `json:"schedules"`

	Batch struct {
		ID string `json:"id"`
	} `json:"batch"`

	Generation  int              `json:"generation"`
	ConfigError string           `json:"config_error"`
	Databases   []DatabaseStatus `json:"databases"`

	MaxFrame   int `json:"max_frame"`
	MaxPayload int `json:"max_payload"`
	MaxReply   int `json:"max_reply"`
}

// DatabaseStatus is a database of a status.
type DatabaseStatus struct {
	Name     string `json:"name"`
	Address  string `json:"address"`
	Error    string `json:"error"`
	Draining bool   `json:"draining"`

	HeartbeatAgeMS int64 `json:"heartbeat_age_ms"` // -1: none reached it

	Obstacles []struct {
		Queue string `json:"queue"`
		Job   string `json:"job"`
		Error string `json:"error"`
	} `json:"obstacles"`
}

// Error is the error of a reply.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Field   string `json:"field"`
	RetryMS int64  `json:"retry_ms"`
}

func (e *Error) Error() string { return e.Code + ": " + e.Message }

// Transient reports whether a producer can get the error while servers die and must try again.
func (e *Error) Transient() bool {
	return e.Code == "unavailable" || e.Code == "unknown_outcome" || e.Code == "busy"
}

// Conflict reports whether the error is about a deadlock between transactions, by the texts of all
// engines. The sidecar must handle deadlocks itself. A wait for a lock that ended is such an error
// unless locks can last that long for another reason (lockWaits).
func (e *Error) Conflict(lockWaits bool) bool {
	words := strings.ToLower(e.Message)
	return strings.Contains(words, "deadlock") || !lockWaits && strings.Contains(words, "lock wait timeout")
}

// Job is a job as in the replies to enqueue, claim and peek.
type Job struct {
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
	Errors      []Failure         `json:"errors"`
	Headers     map[string]string `json:"headers"`
	Result      string            `json:"result"`
	ResultB64   []byte            `json:"result_b64"`
	EnqueuedAt  *int64            `json:"enqueued_at"`
	Outcome     string            `json:"outcome"` // of an enqueue with on_conflict
}

// Failure is a failed attempt of a job.
type Failure struct {
	Attempt int    `json:"attempt"`
	Cause   string `json:"cause"`
	Message string `json:"message"`
}

// QueueStats are the counts of a queue, by state.
type QueueStats struct {
	Queue                                 string
	Ready, Scheduled, Claimed, Dead, Done int
}

// Total counts the jobs in any state.
func (q QueueStats) Total() int { return q.Ready + q.Scheduled + q.Claimed + q.Dead + q.Done }

// Wire is a connection with JSON lines. Its errors are errors of the connection. An error of the
// server is in the reply.
type Wire struct {
	net.Conn
	In *bufio.Reader
}

// DialWire connects to a sidecar's socket.
func DialWire(socket string) (*Wire, error) {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return nil, err
	}
	return &Wire{Conn: c, In: bufio.NewReader(c)}, nil
}

// Send sends requests and does not wait for replies.
func (w *Wire) Send(reqs ...Msg) error {
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

// Receive returns the next reply or event.
func (w *Wire) Receive() (*Reply, error) {
	line, err := w.In.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	r := new(Reply)
	if err := json.Unmarshal(line, r); err != nil {
		return nil, fmt.Errorf("the server sent %.200q: %w", line, err)
	}
	if r.OK == nil && r.Event == "" || r.OK != nil && *r.OK == (r.Error != nil) {
		return nil, fmt.Errorf("neither a reply nor an event: %.200q", line)
	}
	return r, nil
}

// Call sends a request and returns the next reply.
func (w *Wire) Call(req Msg) (*Reply, error) {
	if err := w.Send(req); err != nil {
		return nil, err
	}
	return w.Receive()
}

// Conn is a Wire whose errors fail the test.
type Conn struct {
	*Wire
	t testing.TB
}

// WaitMS is the wait_ms of a claim for a job that will come. It is shorter than the time limit of
// the reply.
func WaitMS() int64 { return testwait.Limit.Milliseconds() / 2 }

// Dial opens a connection, which is closed when the test ends.
func Dial(t testing.TB, socket string) *Conn {
	t.Helper()
	w, err := DialWire(socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return &Conn{Wire: w, t: t}
}

// SetLimit applies the tests' time limit to all replies from now on.
func (c *Conn) SetLimit() {
	c.t.Helper()
	if err := c.SetReadDeadline(testwait.Deadline()); err != nil {
		c.t.Fatal(err)
	}
}

// Post sends requests and does not wait for replies.
func (c *Conn) Post(reqs ...Msg) {
	c.t.Helper()
	if err := c.Send(reqs...); err != nil {
		c.t.Fatalf("sending %v: %v", reqs, err)
	}
}

// Next returns the next reply or event.
func (c *Conn) Next() *Reply {
	c.t.Helper()
	c.SetLimit()
	r, err := c.Receive()
	if err != nil {
		c.t.Fatalf("waiting for an answer: %v", err)
	}
	return r
}

// Exchange sends one request and returns its reply.
func (c *Conn) Exchange(req Msg) *Reply {
	c.t.Helper()
	c.Post(req)
	c.SetLimit()
	r, err := c.Receive()
	if err != nil {
		c.t.Fatalf("waiting for the answer to %v: %v", Brief(req), err)
	}
	return r
}

// Must sends one request that must succeed.
func (c *Conn) Must(req Msg) *Reply {
	c.t.Helper()
	r := c.Exchange(req)
	if r.Error != nil {
		c.t.Fatalf("%v: %v", Brief(req), r.Error)
	}
	return r
}

// MustFail sends one request that must fail with the code.
func (c *Conn) MustFail(code string, req Msg) *Error {
	c.t.Helper()
	return c.WantError(code, fmt.Sprint(Brief(req)), c.Exchange(req))
}

// WantError fails the test unless the reply is an error with that code and a message.
func (c *Conn) WantError(code, what string, r *Reply) *Error {
	c.t.Helper()
	if r.Error == nil || r.Error.Code != code || r.Error.Message == "" {
		c.t.Fatalf("%s: answered %+v, want the error %s with a message", what, r.Error, code)
	}
	return r.Error
}

// ClaimOne waits for a job.
func (c *Conn) ClaimOne(queue string) Job {
	c.t.Helper()
	var jobs []Job
	testwait.Until(c.t, "a job of "+queue, func() bool {
		jobs = c.Must(Msg{"op": "claim", "queue": queue, "wait_ms": 1000}).Jobs
		return len(jobs) > 0
	})
	if len(jobs) != 1 {
		c.t.Fatalf("claim %s: %d jobs, want 1", queue, len(jobs))
	}
	return jobs[0]
}

// WaitDelivered waits until the database has the deliveries of claimed jobs. The delivery of a
// prefetched job is recorded a moment after it. If the sidecar is killed before, it does not count.
func (c *Conn) WaitDelivered(jobs ...Job) {
	c.t.Helper()
	for _, j := range jobs {
		testwait.Until(c.t, "the delivery of job "+j.ID+" is recorded", func() bool { return c.Peek(j.Queue, j.ID).Attempt == j.Attempt })
	}
}

// Enqueue stores n jobs and returns their ids.
func (c *Conn) Enqueue(queue string, n int) []string {
	c.t.Helper()
	var ids []string
	for len(ids) < n {
		var jobs []Msg
		for i := len(ids); i < n && len(jobs) < 1000; i++ {
			jobs = append(jobs, Msg{"queue": queue, "payload": fmt.Sprint(i)})
		}
		for _, j := range c.Must(Msg{"op": "enqueue", "jobs": jobs}).Jobs {
			ids = append(ids, j.ID)
		}
	}
	return ids
}

// Stats returns the queue's counts.
func (c *Conn) Stats(queue string) QueueStats {
	c.t.Helper()
	for _, s := range c.Must(Msg{"op": "stats", "queue": queue}).Queues {
		if s.Queue == queue {
			return s
		}
	}
	return QueueStats{Queue: queue}
}

// WantClosed waits for the server to close the connection.
func (c *Conn) WantClosed() {
	c.t.Helper()
	c.SetLimit()
	if line, err := c.In.ReadBytes('\n'); !errors.Is(err, io.EOF) && !IsReset(err) {
		c.t.Fatalf("the connection should be closed; got %.200q, %v", line, err)
	}
}

// Brief shortens a request for a message.
func Brief(req Msg) string {
	s := fmt.Sprint(req)
	return s[:min(len(s), 200)]
}

// IsReset reports whether the error means that the other side closed the connection.
func IsReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// Put enqueues payloads and returns their ids.
func (c *Conn) Put(queue string, payloads ...string) (ids []string) {
	c.t.Helper()
	for _, p := range payloads {
		ids = append(ids, c.Must(Msg{"op": "enqueue", "queue": queue, "payload": p}).Job.ID)
	}
	return ids
}

// Peek returns one job.
func (c *Conn) Peek(queue, id string) Job {
	c.t.Helper()
	jobs := c.Must(Msg{"op": "peek", "queue": queue, "ids": []string{id}}).Jobs
	if len(jobs) != 1 {
		c.t.Fatalf("peek of job %s: %+v", id, jobs)
	}
	return jobs[0]
}
