package lease

import (
	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// Lost are claims that are no longer this sidecar's in the database, by the session that holds them.
type Lost map[*quota.Session][]Held

// DropAll removes all claims after the identity was declared dead. It returns the claims that each session lost.
func (t *Table) DropAll() Lost {
	t.mu.Lock()
	defer t.mu.Unlock()
	lost := make(Lost, len(t.sessions))
	for sess := range t.sessions {
		for h := range t.heldBy(sess) {
			lost[sess] = append(lost[sess], h.held())
			t.detach(h)
		}
	}
	clear(t.entries)
	t.handOuts = nil
	return lost
}

// Confirmed returns the tokens that the database must also have: those neither in flight nor being settled.
func (t *Table) Confirmed() map[backends.Token]struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make(map[backends.Token]struct{}, len(t.entries))
	for token, h := range t.entries {
		if !h.inFlight && h.settling == 0 {
			out[token] = struct{}{}
		}
	}
	return out
}

// Unknown returns the rows that the table does not have. It completes the queues of the entries that it has.
func (t *Table) Unknown(rows []backends.ClaimedJob) []backends.ClaimedJob {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []backends.ClaimedJob
	for i := range rows {
		h := t.entries[rows[i].Lease.Token]
		if h == nil {
			out = append(out, rows[i])
		} else if h.counters == nil && !h.inFlight { // bound here: another sidecar claimed it
			h.queue, h.counters = rows[i].Queue, t.countersOf(rows[i].Queue)
		}
	}
	return out
}

// DropMissing removes those of the tokens that are still confirmed. The database no longer has them under this
// identity. DropMissing returns the claims that each session lost.
func (t *Table) DropMissing(tokens map[backends.Token]struct{}) Lost {
	t.mu.Lock()
	defer t.mu.Unlock()
	var lost Lost
	for token := range tokens {
		h := t.entries[token]
		if h == nil || h.inFlight || h.settling > 0 {
			continue
		}
		if h.session != nil {
			if lost == nil {
				lost = make(Lost)
			}
			lost[h.session] = append(lost[h.session], h.held())
		}
		t.detach(h)
		delete(t.entries, token)
	}
	return lost
}

// Cancel removes claims that an operator ended. It returns the claims that each session lost. handled are those that the table
// doesn't have any more. The others are in flight or being settled: the caller calls Cancel with them again later.
func (t *Table) Cancel(claims []backends.Token) (lost Lost, handled []backends.Token) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, token := range claims {
		h := t.entries[token]
		if h != nil && (h.inFlight || h.settling > 0) {
			continue
		}
		handled = append(handled, token)
		if h == nil {
			continue
		}
		if h.session != nil {
			if lost == nil {
				lost = make(Lost)
			}
			lost[h.session] = append(lost[h.session], h.held())
		}
		t.detach(h)
		delete(t.entries, token)
	}
	return lost, handled
}
