// Command kitadapter connects the Go client to the conformance kit (clients/kit), which sends it
// one command a line.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/protocol"
)

// command is a line from the kit.
type command struct {
	Do            string  `json:"do"`
	Tag           string  `json:"tag"`
	Queue         string  `json:"queue"`
	Payload       []byte  `json:"payload_b64"`
	Key           string  `json:"key"`
	Group         string  `json:"group"`
	StartWithinMS int64   `json:"start_within_ms"`
	OnExpiry      string  `json:"on_expiry"`
	OnConflict    string  `json:"on_conflict"`
	Max           int     `json:"max"`
	WaitMS        int64   `json:"wait_ms"`
	ID            string  `json:"id"`
	Result        *[]byte `json:"result_b64"`
	Error         string  `json:"error"`
	DelayMS       *int64  `json:"delay_ms"`
	Dead          bool    `json:"dead"`
	LeaseMS       int64   `json:"lease_ms"`
	Done          *int64  `json:"done"`
	Total         *int64  `json:"total"`
	Data          []byte  `json:"data_b64"`
}

// answer is a line to the kit.
type answer struct {
	Tag       string   `json:"tag,omitempty"`
	OK        bool     `json:"ok"`
	Error     string   `json:"error,omitempty"`
	Message   string   `json:"message,omitempty"`
	ID        string   `json:"id,omitempty"`
	Duplicate bool     `json:"duplicate,omitempty"`
	Outcome   string   `json:"outcome,omitempty"`
	Jobs      []job    `json:"jobs,omitempty"`
	IDs       []string `json:"ids,omitempty"`
	Cancelled []string `json:"cancelled,omitempty"`
	PID       int      `json:"pid,omitempty"`
}

type job struct {
	ID      string `json:"id"`
	Payload []byte `json:"payload_b64"`
	Attempt int64  `json:"attempt"`
	Fence   int64  `json:"fence"`

	Progress *progress `json:"progress,omitempty"`
}

type progress struct {
	Done  *int64 `json:"done"`
	Total *int64 `json:"total"`
	Data  []byte `json:"data_b64"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "kitadapter:", err)
		os.Exit(1)
	}
}

// adapter is the client and the leases of its jobs.
type adapter struct {
	client *qsidecar.Client

	mu        sync.Mutex
	leases    map[string]string // by job
	ids       map[string]string // by lease
	lost      []string          // job ids
	cancelled []string          // of these
	out       *json.Encoder
}

func run() error {
	if codec := os.Getenv("QSIDECAR_CODEC"); codec != "" && codec != "msgpack" {
		return fmt.Errorf("the Go client speaks msgpack, not %s", codec)
	}
	a := &adapter{leases: make(map[string]string), ids: make(map[string]string), out: json.NewEncoder(os.Stdout)}
	ctx := context.Background()
	var err error
	a.client, err = qsidecar.Dial(ctx, qsidecar.Options{Worker: "kit", RequestTimeout: -1, OnLost: a.onLost, OnDraining: func() {}})
	if err != nil {
		return err
	}
	var open sync.WaitGroup
	defer open.Wait()
	defer a.client.Close()
	for in := bufio.NewReader(os.Stdin); ; {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return nil // the kit has closed the pipe
		}
		var c command
		if err := json.Unmarshal(line, &c); err != nil {
			return fmt.Errorf("%s: %w", line, err)
		}
		if c.Tag != "" { // runs beside the commands that follow
			open.Go(func() { a.answer(ctx, c) })
			continue
		}
		a.answer(ctx, c)
	}
}

func (a *adapter) onLost(leases []string, reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range leases {
		a.lost = append(a.lost, a.ids[l])
		if reason == protocol.ReasonCancelled {
			a.cancelled = append(a.cancelled, a.ids[l])
		}
	}
}

// answer carries out a command and returns its result.
func (a *adapter) answer(ctx context.Context, c command) {
	got, err := a.do(ctx, c)
	got.Tag, got.OK = c.Tag, err == nil
	if err != nil {
		got.Error, got.Message = errorWord(err), err.Error()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.out.Encode(got); err != nil {
		fmt.Fprintln(os.Stderr, "kitadapter:", err)
	}
}

// errorWord returns the kit's word for an error.
func errorWord(err error) string {
	var either *qsidecar.SettledOrLostError
	var wire *protocol.Error
	switch {
	case errors.As(err, &either):
		return "SETTLED_OR_LOST"
	case errors.As(err, &wire):
		return string(wire.Code)
	case errors.Is(err, qsidecar.ErrUnknownOutcome):
		return "UNKNOWN_OUTCOME"
	}
	return err.Error()
}

func (a *adapter) do(ctx context.Context, c command) (got answer, err error) {
	switch c.Do {
	case "enqueue":
		var stored protocol.EnqueuedJob
		job := protocol.NewJob{Queue: c.Queue, Payload: c.Payload, Key: c.Key, Group: c.Group, OnExpiry: c.OnExpiry, OnConflict: c.OnConflict}
		if c.StartWithinMS > 0 {
			job.StartWithinMS = protocol.Some(c.StartWithinMS)
		}
		stored, err = a.client.Enqueue(ctx, job)
		got.ID, got.Duplicate, got.Outcome = stored.ID, stored.Duplicate, string(stored.Outcome)
	case "claim":
		got.Jobs, err = a.claim(ctx, c)
	case "ack":
		var result []byte
		if c.Result != nil {
			result = append([]byte{}, *c.Result...)
		}
		_, err = a.client.AckWith(ctx, a.lease(c.ID), result)
	case "nack":
		n := qsidecar.Nack{Error: c.Error, Dead: c.Dead}
		if c.DelayMS != nil {
			d := time.Duration(*c.DelayMS) * time.Millisecond
			n.Delay = &d
		}
		err = a.client.Nack(ctx, a.lease(c.ID), n)
	case "extend":
		var lost []string
		lost, err = a.client.Extend(ctx, []string{a.lease(c.ID)}, qsidecar.Extend{Lease: time.Duration(c.LeaseMS) * time.Millisecond})
		if err == nil && len(lost) > 0 {
			err = protocol.Errorf(protocol.CodeLeaseLost, "the lease was lost")
		}
	case "progress":
		err = a.client.ReportProgress(ctx, a.lease(c.ID), protocol.Progress{Done: some(c.Done), Total: some(c.Total), Data: c.Data})
	case "lost":
		a.mu.Lock()
		defer a.mu.Unlock()
		got.IDs, got.Cancelled = slices.Clone(a.lost), slices.Clone(a.cancelled)
	case "exec":
		got.PID, err = child()
	case "close":
		err = a.client.Bye(ctx)
	default:
		err = fmt.Errorf("unknown command %q", c.Do)
	}
	return got, err
}

func (a *adapter) claim(ctx context.Context, c command) ([]job, error) {
	claimed, err := a.client.Claim(ctx, qsidecar.Claim{
		Queues: []string{c.Queue}, Max: c.Max, Wait: time.Duration(c.WaitMS) * time.Millisecond,
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	jobs := []job{}
	for _, j := range claimed {
		a.leases[j.ID], a.ids[j.Lease] = j.Lease, j.ID
		got := job{ID: j.ID, Payload: j.Payload, Attempt: j.Attempt, Fence: j.Fence}
		if p := j.Progress; p != nil {
			got.Progress = &progress{number(p.Done), number(p.Total), p.Data}
		}
		jobs = append(jobs, got)
	}
	return jobs, err
}

func some(n *int64) protocol.Opt[int64] {
	if n == nil {
		return protocol.Opt[int64]{}
	}
	return protocol.Some(*n)
}

func number(o protocol.Opt[int64]) *int64 {
	n, ok := o.Get()
	if !ok {
		return nil
	}
	return &n
}

func (a *adapter) lease(id string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.leases[id]
}

// child starts a process that inherits the open file descriptors of this one.
func child() (int, error) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	go func() { _ = cmd.Wait() }() // the kit kills it
	return cmd.Process.Pid, nil
}
