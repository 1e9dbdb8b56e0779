package backends

// FailedCount counts jobs of one queue whose claims ended in the same way, and not by an ack.
type FailedCount struct {
	Queue string
	Cause Cause // CauseNacked of a Nack, a Release's own, that of a sweep or a claim; whether or not the attempt is charged
	Dead  bool  // they are dead now
	Jobs  int
}

// FailedCounts are such counts. What is in the answer of a method has happened once, and is in
// no other answer.
type FailedCounts []FailedCount

// Add counts one job.
func (f *FailedCounts) Add(queue string, cause Cause, dead bool) {
	f.add(FailedCount{Queue: queue, Cause: cause, Dead: dead, Jobs: 1})
}

// AddAll adds other counts.
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
