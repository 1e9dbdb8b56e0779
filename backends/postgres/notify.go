package postgres

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
)

// teller tells other sidecars, by NOTIFY, of queues that became ready. NOTIFY
// takes a lock that the whole database shares, so it is no part of a commit: it
// follows at its leisure, each queue once in tellEvery at most.
type teller struct {
	s    *Store
	name string // of this Store, to leave its own words unheard
	wake chan struct{}
	gone sync.WaitGroup

	mu      sync.Mutex
	pending map[string]struct{}
}

const (
	tellEvery    = 25 * time.Millisecond
	maxPending   = 256 // queues; more are told as "some"
	hearPatience = time.Minute
)

func (s *Store) channel() string { return "qsidecar_" + s.o.Schema }

func (n *teller) start(s *Store) {
	n.s = s
	if !s.o.Notify {
		return
	}
	n.name, n.wake, n.pending = random(), make(chan struct{}, 1), map[string]struct{}{}
	n.gone.Go(n.run)
}

// stop waits for the teller, whose Store has ended.
func (n *teller) stop() { n.gone.Wait() }

// freed notes what a commit made ready.
func (n *teller) freed(res []backends.WriteResult) {
	if n.wake == nil {
		return
	}
	n.mu.Lock()
	for i := range res {
		for _, q := range res[i].Freed {
			if len(n.pending) < maxPending {
				n.pending[q] = struct{}{}
			} else {
				n.pending[""] = struct{}{}
			}
		}
	}
	any := len(n.pending) > 0
	n.mu.Unlock()
	if any {
		select {
		case n.wake <- struct{}{}:
		default: // it is awake already
		}
	}
}

func (n *teller) run() {
	ctx := n.s.life
	for {
		select {
		case <-n.wake:
		case <-ctx.Done():
			return
		}
		n.mu.Lock()
		var words []string
		for q := range n.pending {
			words = append(words, n.name+" "+q)
		}
		clear(n.pending)
		n.mu.Unlock()
		if err := n.say(ctx, words); err != nil && ctx.Err() == nil {
			n.s.log.Debug("telling other sidecars of new jobs", "place", n.s.place, "error", err) // they will ask by themselves
		}
		if !pause(ctx, tellEvery) {
			return
		}
	}
}

func (n *teller) say(ctx context.Context, words []string) error {
	c, err := n.s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer c.Release()
	t := &tx{s: n.s, c: c.Conn(), batch: &pgx.Batch{}}
	t.add(n.s.sql.begin, nil)
	t.add(n.s.sql.unsynced, nil)
	t.add("SELECT pg_notify($1::text, x) FROM unnest($2::text[]) AS x", nil, n.s.channel(), words)
	t.add("COMMIT", nil)
	if err := t.send(ctx); err != nil {
		t.rollback(ctx)
		return err
	}
	return nil
}

// Notifications implements backends.Notifier. Behind a pooler there are none:
// nobody can say to whom the server would send them.
func (s *Store) Notifications(ctx context.Context) (<-chan string, bool) {
	if !s.o.Notify || s.pooled {
		return nil, false
	}
	queues := make(chan string, maxPending) // what does not fit is dropped: it is a hint
	go func() {
		defer close(queues)
		ctx, done := s.bound(ctx)
		defer done()
		for ctx.Err() == nil {
			if err := s.hear(ctx, queues); err != nil && ctx.Err() == nil {
				s.log.Debug("hearing of new jobs", "place", s.place, "error", err)
			}
			pause(ctx, time.Second)
		}
	}()
	return queues, true
}

// hear listens until the connection or ctx ends.
func (s *Store) hear(ctx context.Context, queues chan<- string) error {
	c, err := pgx.ConnectConfig(ctx, s.beater.config)
	if err != nil {
		return err
	}
	defer discard(ctx, c)
	if _, err := c.Exec(ctx, "LISTEN "+quoteName(s.channel())); err != nil {
		return err
	}
	hint := func(queue string) {
		select {
		case queues <- queue:
		default:
		}
	}
	hint("") // what came before is unknown
	for ctx.Err() == nil {
		word, err := next(ctx, c)
		if err != nil {
			return err
		}
		if who, queue, ok := strings.Cut(word, " "); ok && who != s.tell.name {
			hint(queue)
		}
	}
	return nil
}

// next waits for a word. It asks now and then whether the connection still stands.
func next(ctx context.Context, c *pgx.Conn) (string, error) {
	for {
		wait, cancel := context.WithTimeout(ctx, hearPatience)
		n, err := c.WaitForNotification(wait)
		late := wait.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil {
			return n.Payload, nil
		}
		if !late {
			return "", err
		}
		check, cancel := context.WithTimeout(ctx, connectTimeout)
		err = c.Ping(check)
		cancel()
		if err != nil {
			return "", fmt.Errorf("the connection that listens: %w", err)
		}
	}
}
