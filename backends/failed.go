package backends

// FailedCount counts the jobs of one queue whose claims ended in the same way, except by an ack.
type FailedCount struct {
	Queue string
	Cause Cause // CauseNacked for a Nack; the cause of the Release, of the reap or of the claim; whether or not the attempt counts
	Dead  bool  // the jobs are dead now
	Jobs  int
}

// FailedCounts lists such counts. Each event is counted in the result of exactly one call.
type FailedCounts []FailedCount

// Add counts one job.
func (f *FailedCounts) Add(queue string, cause Cause, dead bool) {
	f.add(FailedCount{Queue: queue, Cause: cause, Dead: dead, Jobs: 1})
}

// AddAll adds others to the counts.
func (f *FailedCounts) AddAll(others FailedCounts) {
	for _, o := range others {
		f.add(o)
	}
}

func (f *FailedCounts) add(o FailedCount) {
	for i := range *f {
		if x := &(*f)[i]; x.Queue == o.Queue && x.Cause == o.Cause && x.Dead == o.Dead {
			x.Jobs += o.Jobs
			return
		}
	}
	*f = append(*f, o)
}

// Dead returns how many jobs died.
func (f FailedCounts) Dead() (n int) {
	for _, c := range f {
		if c.Dead {
			n += c.Jobs
		}
	}
	return n
}
