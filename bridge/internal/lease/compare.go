package lease

import (
	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// Lost are claims that are no longer this sidecar's in the database, by the session that holds them.
type Lost map[*quota.Session][]Held

// DropAll removes all claims after the identity was declared dead. It returns the claims that each session lost.
func (l *Table) DropAll() Lost {
	l.mu.Lock()
	defer l.mu.Unlock()
	lost := make(Lost, len(l.sessions))
	for sess := range l.sessions {
		for h := range l.heldBy(sess) {
			lost[sess] = append(lost[sess], h.held())
			l.detach(h)
		}
	}
	clear(l.entries)
	l.handOuts = nil
	return lost
}

// Confirmed returns the tokens that the database must also have: those neither in flight nor being settled.
func (l *Table) Confirmed() map[backends.Token]struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[backends.Token]struct{}, len(l.entries))
	for token, h := range l.entries {
		if !h.inFlight && h.settling == 0 {
			out[token] = struct{}{}
		}
	}
	return out
}

// Unknown returns the rows that the table does not have. It completes the queues of the entries that it has.
func (l *Table) Unknown(rows []backends.ClaimedJob) []backends.ClaimedJob {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []backends.ClaimedJob
	for i := range rows {
		h := l.entries[rows[i].Lease.Token]
		if h == nil {
			out = append(out, rows[i])
		} else if h.counters == nil && !h.inFlight { // bound here: another sidecar claimed it
			h.queue, h.counters = rows[i].Queue, l.countersOf(rows[i].Queue)
		}
	}
	return out
}

// DropMissing removes those of the tokens that are still confirmed. The database no longer has them under this
// identity. DropMissing returns the claims that each session lost.
func (l *Table) DropMissing(tokens map[backends.Token]struct{}) Lost {
	l.mu.Lock()
	defer l.mu.Unlock()
	var lost Lost
	for token := range tokens {
		h := l.entries[token]
		if h == nil || h.inFlight || h.settling > 0 {
			continue
		}
		if h.session != nil {
			if lost == nil {
				lost = make(Lost)
			}
			lost[h.session] = append(lost[h.session], h.held())
		}
		l.detach(h)
		delete(l.entries, token)
	}
	return lost
}
