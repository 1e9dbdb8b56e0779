package memory_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/backendtest"
	"github.com/qsidecar/qsidecar/backends/memory"
)

func TestHooksFailCommits(t *testing.T) {
	t.Parallel()
	var fault, lost, refused error
	b := memory.New(
		memory.WithFault(func() error { return fault }),
		memory.WithAfterCommit(func(backends.CommitContent) error { return lost }),
		memory.WithRefuse(func(j backends.NewJob) error {
			if j.Queue == "no" {
				return refused
			}
			return nil
		}))
	ready := func() int64 {
		s, err := b.Stats(t.Context(), "q")
		if err != nil {
			t.Fatal(err)
		}
		return s[0].Ready
	}
	enqueue := func(queues ...string) error {
		var e backends.Enqueue
		for _, q := range queues {
			e.Jobs = append(e.Jobs, backends.NewJob{Queue: q, Key: "k", KeyTTL: time.Hour})
		}
		_, err := b.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{e}})
		return err
	}
	fault = backends.Unavailable(errors.New("down"))
	if err := enqueue("q"); !backends.Retryable(err) || ready() != 0 {
		t.Fatalf("with a fault: %v, %d ready", err, ready())
	}
	fault, refused = nil, errors.New("trigger")
	if err := enqueue("q", "no"); !backends.IsRefused(err) || ready() != 0 {
		t.Fatalf("with a refusal: %v, %d ready", err, ready())
	}
	refused, lost = nil, backends.ErrUnknownOutcome
	if err := enqueue("q"); !errors.Is(err, lost) || ready() != 1 {
		t.Fatalf("with a lost reply: %v, %d ready", err, ready())
	}
	lost = nil
	if err := enqueue("q"); err != nil || ready() != 1 {
		t.Fatalf("the same key again: %v, %d ready", err, ready())
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	backendtest.Run(t, func(t *testing.T) *backendtest.Database {
		var mu sync.Mutex
		now := time.Now()
		var before, after error
		refused := map[string]string{}
		b := memory.New(
			memory.WithClock(func() time.Time {
				mu.Lock()
				defer mu.Unlock()
				return now
			}),
			memory.WithFault(func() error { return take(&before) }),
			memory.WithAfterCommit(func(backends.CommitContent) error { return take(&after) }),
			memory.WithRefuse(func(j backends.NewJob) error {
				if why, ok := refused[j.Queue]; ok {
					return errors.New(why)
				}
				return nil
			}))
		return &backendtest.Database{
			Backend:     b,
			OpenAnother: func() backends.Backend { return b },
			AdvanceClock: func(d time.Duration) {
				mu.Lock()
				defer mu.Unlock()
				now = now.Add(d)
			},
			LoseCommit: func(first bool) {
				if first {
					before = backends.Unavailable(errors.New("lost"))
				} else {
					after = backends.ErrUnknownOutcome
				}
			},
			RefuseJobs: func(queue, reason string) { refused[queue] = reason },
		}
	})
}

// take returns the error and clears it, so that a hook fails once. It is not safe for concurrent
// use.
func take(err *error) error {
	if *err == nil {
		return nil
	}
	taken := *err
	*err = nil
	return taken
}
