package bridge

import (
	"cmp"
	"context"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/protocol"
)

// queue is what the configuration says of a name.
func (b *Bridge) queue(name string) (Queue, bool) {
	if q, ok := b.opts.Queues[name]; ok && name != "*" {
		return q, true
	}
	q, ok := b.opts.Queues["*"]
	return q, ok
}

// policy is what a claim of the queue writes into its rows.
func (b *Bridge) policy(name string) (backends.Policy, bool) {
	q, ok := b.queue(name)
	return backends.Policy{
		Queue:       name,
		MaxAttempts: q.MaxAttempts,
		Timeout:     q.Timeout,
		Backoff:     q.Backoff,
		BackoffMax:  q.BackoffMax,
		Keep:        q.Keep,
		KeepDead:    q.KeepDead,
		LIFO:        q.LIFO,
	}, ok
}

func (b *Bridge) maxAttempts(name string) int {
	q, ok := b.queue(name)
	if !ok {
		return DefaultMaxAttempts
	}
	return q.MaxAttempts
}

// bankOfQueue finds the database of the field "queue".
func (b *Bridge) bankOfQueue(name string) (*bank, *protocol.Error) {
	q, ok := b.queue(name)
	if !ok {
		return nil, unknownQueue(name)
	}
	return b.bankBy[q.Database], nil
}

// bankOf finds the one database of the field "queues".
func (b *Bridge) bankOf(queues []string) (*bank, *protocol.Error) {
	var bank *bank
	for i, name := range queues {
		q, ok := b.queue(name)
		if !ok {
			e := unknownQueue(name)
			e.Field, e.Index = "queues", protocol.Some(int64(i))
			return nil, e
		}
		if of := b.bankBy[q.Database]; bank == nil {
			bank = of
		} else if bank != of {
			return nil, protocol.BadField("queues", "queue %s is in database %s, queue %s in %s: one request takes queues of one database",
				queues[0], bank.name, name, of.name)
		}
	}
	return bank, nil
}

func unknownQueue(name string) *protocol.Error {
	e := protocol.Errorf(protocol.CodeUnknownQueue, "no queue %q is configured, and there is no \"*\" queue for other names", name)
	e.Field = "queue"
	return e
}

// inspectable is bankOf for one queue whose database can be looked into.
func (b *Bridge) inspectable(queue string) (*bank, *protocol.Error) {
	bank, wire := b.bankOfQueue(queue)
	if wire == nil && bank.inspector == nil {
		wire = protocol.Errorf(protocol.CodeUnsupported, "database %s cannot be looked into", bank.name)
	}
	return bank, wire
}

// newJobs turns jobs of the wire into jobs of one database. field names the
// list they came in.
func (b *Bridge) newJobs(jobs []protocol.NewJob, field string, single bool) (*bank, []backends.NewJob, *protocol.Error) {
	at := func(e *protocol.Error, i int) *protocol.Error {
		if !single {
			e.Index = protocol.Some(int64(i))
		}
		return e
	}
	var bank *bank
	out := make([]backends.NewJob, len(jobs))
	for i := range jobs {
		q, ok := b.queue(jobs[i].Queue)
		if !ok {
			return nil, nil, at(unknownQueue(jobs[i].Queue), i)
		}
		if of := b.bankBy[q.Database]; bank == nil {
			bank = of
		} else if bank != of {
			return nil, nil, at(protocol.BadField(field, "queue %s is in another database than queue %s: one request is one transaction",
				jobs[i].Queue, jobs[0].Queue), i)
		}
		out[i] = storedJob(&jobs[i], q.KeyTTL)
	}
	return bank, out, nil
}

// stats asks the queue's database, or all of them; then queues that are
// configured by name show even when they have no job.
func (b *Bridge) stats(ctx context.Context, queue string) ([]protocol.QueueStat, error) {
	if queue != "" {
		bank, wire := b.inspectable(queue)
		if wire != nil {
			return nil, wire
		}
		return b.statsOf(ctx, bank, queue)
	}
	out := []protocol.QueueStat{}
	seen := make(map[string]bool)
	for _, bank := range b.banks {
		if bank.inspector == nil {
			continue
		}
		part, err := b.statsOf(ctx, bank, "")
		if err != nil {
			return nil, err
		}
		for i := range part {
			q, ok := b.queue(part[i].Queue)
			if !ok || b.bankBy[q.Database] != bank {
				continue // jobs of a queue that is not served here (any more)
			}
			seen[part[i].Queue] = true
			out = append(out, part[i])
		}
	}
	for name := range b.opts.Queues {
		if name != "*" && !seen[name] {
			out = append(out, protocol.QueueStat{Queue: name})
		}
	}
	slices.SortFunc(out, func(a, b protocol.QueueStat) int { return cmp.Compare(a.Queue, b.Queue) })
	return out, nil
}

func (b *Bridge) statsOf(ctx context.Context, bank *bank, queue string) ([]protocol.QueueStat, error) {
	stats, err := bank.inspector.Stats(ctx, queue)
	if err != nil {
		return nil, err
	}
	out := make([]protocol.QueueStat, len(stats))
	for i := range stats {
		out[i] = wireStats(&stats[i])
	}
	if len(out) == 0 && queue != "" {
		out = append(out, protocol.QueueStat{Queue: queue})
	}
	return out, nil
}
