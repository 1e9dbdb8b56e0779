package postgres

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/internal/dial"
	"github.com/qsidecar/qsidecar/backends/postgres/internal/queueset"
)

// notifier notifies other sidecars, by NOTIFY, of queues that became ready. NOTIFY
// takes a lock that the whole database shares, so it isn't part of a commit. It
// follows later, at most once per queue in notifyEvery. If the sidecars send too many, the notifier waits for a
// random time. If they still do, it sends nothing: waiting workers find the jobs in the next scan of their sidecar.
type notifier struct {
	s    *Store
	name string // identifies this Store, so that it ignores its own notifications
	gone sync.WaitGroup

	pending *queueset.Set // nil: it doesn't notify
	budget  queueset.Budget

	mu   sync.Mutex
	held map[string]bool // the queues that wait for the budget
}

const (
	notifyEvery = 25 * time.Millisecond
	listenPing  = time.Minute
	holdFor     = time.Second // as long as it takes to find a job without a notification
)

func (s *Store) channel() string { return "qsidecar_" + s.o.Schema }

func (n *notifier) start(s *Store) {
	n.s = s
	if !s.o.Notify {
		return
	}
	n.name, n.pending = random(), queueset.New()
	n.gone.Go(n.run)
}

// stop waits until run has returned. The Store's context must have ended.
func (n *notifier) stop() { n.gone.Wait() }

// madeReady records queues in which a commit made jobs ready, and wakes run.
func (n *notifier) madeReady(queues []string) {
	if n.pending != nil {
		n.pending.Add(queues...)
	}
}

func (n *notifier) run() {
	ctx := n.s.Life()
	for {
		queues := n.pending.Wait(ctx)
		if !n.budget.Allows(time.Now()) {
			queues = n.hold(ctx, queues)
		}
		if ctx.Err() != nil {
			return
		}
		if err := n.say(ctx, queues); err != nil && ctx.Err() == nil {
			n.s.log.Debug("can't announce new jobs", "event", "notify_failed", "address", n.s.place, "error", err) // they find the jobs by polling
		}
		if !core.Pause(ctx, notifyEvery) {
			return
		}
	}
}

// hold waits for the budget. It returns the queues of which no other sidecar sent a notification since; none if the
// budget is still used up.
func (n *notifier) hold(ctx context.Context, queues []string) []string {
	n.setHeld(queues)
	core.Pause(ctx, rand.N(holdFor))
	queues = n.setHeld(nil)
	if !n.budget.Allows(time.Now()) {
		return nil
	}
	return queues
}

// setHeld replaces the queues that are held, and returns the former ones.
func (n *notifier) setHeld(queues []string) (former []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	former = slices.Collect(maps.Keys(n.held))
	n.held = make(map[string]bool, len(queues))
	for _, q := range queues {
		n.held[q] = true
	}
	return former
}

// heard records the notification of another sidecar.
func (n *notifier) heard(queue string) {
	n.budget.Spend(time.Now(), 1)
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.held, queue)
}

func (n *notifier) say(ctx context.Context, queues []string) error {
	if len(queues) == 0 {
		return nil
	}
	n.budget.Spend(time.Now(), len(queues))
	words := make([]string, len(queues))
	for i, q := range queues {
		words[i] = n.name + " " + q
	}
	c, err := n.s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer c.Release()
	t := &tx{s: n.s, c: c.Conn(), batch: &pgx.Batch{}}
	t.start(n.s.sql.begin)
	t.add(n.s.sql.unsynced, nil)
	t.add("SELECT pg_notify($1::text, x) FROM unnest($2::text[]) AS x", nil, n.s.channel(), words)
	t.add("COMMIT", nil)
	if err := t.send(ctx); err != nil {
		t.leave(ctx)
		return err
	}
	return nil
}

// Notifications implements backends.Notifier. It returns false behind a pooler:
// the server could send the notifications to another client.
func (s *Store) Notifications(ctx context.Context) (<-chan string, bool) { return s.Listen(ctx, nil) }

// maxName is the longest channel name, in bytes. LISTEN silently truncates longer names.
const maxName = 63

// CanListen implements backends.ChannelListener.
func (s *Store) CanListen(channel string) error {
	if len(channel) > maxName {
		return fmt.Errorf("the channel's name is %d bytes long, and PostgreSQL's are %d at most", len(channel), maxName)
	}
	return nil
}

// Listen implements backends.ChannelListener.
func (s *Store) Listen(ctx context.Context, channels map[string][]string) (<-chan string, bool) {
	if !s.o.Notify || s.pooled {
		return nil, false
	}
	h := &queueListener{s: s, channels: channels, queues: make(chan string), pending: queueset.New()}
	go h.run(ctx)
	return h.queues, true
}

// queueListener forwards the queues of notifications. It forwards the first one at once, and
// then each queue at most once in wakeEvery, however many notifications arrive.
type queueListener struct {
	s        *Store
	channels map[string][]string // maps the channels of other programs to their queues
	queues   chan string
	pending  *queueset.Set
}

const wakeEvery = 10 * time.Millisecond

func (h *queueListener) run(ctx context.Context) {
	defer close(h.queues)
	ctx, done := h.s.Bound(ctx)
	defer done()
	var passing sync.WaitGroup
	defer passing.Wait()
	passing.Go(func() { h.pass(ctx) })
	for ctx.Err() == nil {
		if err := h.listen(ctx); err != nil && ctx.Err() == nil {
			h.s.log.Debug("can't receive notifications", "event", "listen_failed", "address", h.s.place, "error", err)
		}
		core.Pause(ctx, time.Second)
	}
}

// pass forwards queues until ctx ends.
func (h *queueListener) pass(ctx context.Context) {
	for ctx.Err() == nil {
		for _, q := range h.pending.Wait(ctx) {
			select {
			case h.queues <- q:
			case <-ctx.Done():
				return
			}
		}
		core.Pause(ctx, wakeEvery)
	}
}

// listen receives notifications until the connection or ctx ends.
func (h *queueListener) listen(ctx context.Context) error {
	config := h.s.heartbeat.config.Copy()
	h.s.primaries.hosts.Order(config)
	c, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer discard(ctx, c)
	if _, err := c.Exec(ctx, h.s.setting(false)); err != nil {
		return h.s.unset(err)
	}
	own := h.s.channel()
	for _, name := range append(slices.Sorted(maps.Keys(h.channels)), own) {
		if _, err := c.Exec(ctx, "LISTEN "+quoteName(name)); err != nil {
			return err
		}
	}
	h.pending.Add("") // notifications before LISTEN are lost
	for ctx.Err() == nil {
		n, err := next(ctx, c)
		if err != nil {
			return err
		}
		h.pending.Add(h.channels[n.Channel]...)
		if who, queue, ok := strings.Cut(n.Payload, " "); ok && n.Channel == own && who != h.s.notifier.name {
			h.s.notifier.heard(queue)
			h.pending.Add(queue)
		}
	}
	return nil
}

// next waits for a notification. Every listenPing it pings the server, to detect a dead connection.
func next(ctx context.Context, c *pgx.Conn) (*pgconn.Notification, error) {
	for {
		wait, cancel := context.WithTimeout(ctx, listenPing)
		n, err := c.WaitForNotification(wait)
		late := wait.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil {
			return n, nil
		}
		if !late {
			return nil, err
		}
		check, cancel := context.WithTimeout(ctx, dial.Timeout)
		err = c.Ping(check)
		cancel()
		if err != nil {
			return nil, fmt.Errorf("the connection that listens: %w", err)
		}
	}
}
