package backends

// Fall counts jobs of one queue whose claims ended in the same way, and not by an ack.
type Fall struct {
	Queue string
	Cause Cause // CauseNacked of a Nack, a Release's own, that of a sweep or a claim; whether or not the attempt is charged
	Dead  bool  // they are dead now
	Jobs  int
}

// Fallen are such counts. What is in the answer of a method has happened once, and is in
// no other answer.
type Fallen []Fall

// Add counts one job.
func (f *Fallen) Add(queue string, cause Cause, dead bool) {
	f.add(Fall{Queue: queue, Cause: cause, Dead: dead, Jobs: 1})
}

// AddAll adds other counts.
func (f *Fallen) AddAll(others Fallen) {
	for _, o := range others {
		f.add(o)
	}
}

func (f *Fallen) add(o Fall) {
	for i := range *f {
		if x := &(*f)[i]; x.Queue == o.Queue && x.Cause == o.Cause && x.Dead == o.Dead {
			x.Jobs += o.Jobs
			return
		}
	}
	*f = append(*f, o)
}
