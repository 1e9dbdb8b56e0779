package pipeline

// Snapshot counts the contents of a pipeline at one moment.
type Snapshot struct {
	Claims       int  // waiting claims
	IdleClaims   int  // those of them that found no job in the last commit that included them
	WaitQueues   int  // lists of queues that are known, with waiting claims or without
	Prefetched   int  // jobs that are prefetched, or wait to be alone in a session
	QueuedWrites int  // that no commit has taken yet
	Stopped      bool // every claim is refused
}

// Snapshot counts what the pipeline holds.
func (b *Pipeline) Snapshot() Snapshot {
	s := b.dispatcher.snapshot()
	s.QueuedWrites = b.committer.queued()
	return s
}

// snapshot counts the waiting claims and the prefetched jobs.
func (b *dispatcher) snapshot() (s Snapshot) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.WaitQueues, s.Stopped, s.Prefetched = len(b.queues), b.stopped != nil, b.keptAlone()
	for _, wq := range b.queues {
		s.Claims += wq.len()
		s.Prefetched += len(wq.prefetch.jobs)
		if wq.expected == 0 && !wq.prefetch.inCommit {
			s.IdleClaims += wq.idle.Len()
		}
	}
	return s
}
