package protocol

import "slices"

// anyJob is an element of a reply's "jobs" before its kind is known: the union of EnqueuedJob, Job
// and JobView.
type anyJob struct {
	Job
	view      JobView // fields that Job does not have
	duplicate bool
	outcome   Outcome
}

var anyJobMessage = newMessage(append(
	embedFields(claimedMessage, func(j *anyJob) *Job { return &j.Job }),
	append(
		embedFields(viewMessage, func(j *anyJob) *JobView { return &j.view }, onlyIn(viewMessage, claimedMessage)...),
		isBool("duplicate", func(j *anyJob) *bool { return &j.duplicate }),
		isOptWord("outcome", func(j *anyJob) *Outcome { return &j.outcome }))...))

// onlyIn returns the names of the fields that a message has, and another one doesn't.
func onlyIn[M, E any](ms *message[M], other *message[E]) (names []string) {
	for n := range ms.index {
		if _, both := other.index[n]; !both {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	return names
}

// embedFields makes the named fields of a message (all if there are no names) fields of a message that
// contains it.
func embedFields[M, E any](ms *message[E], to func(*M) *E, names ...string) (fields []field[M]) {
	take := func(f field[E]) {
		fields = append(fields, nested(f, func(*M) bool { return true }, to))
	}
	for _, n := range names {
		take(ms.fields[ms.index[n].pos])
	}
	if len(names) == 0 {
		for _, f := range ms.fields {
			take(f)
		}
	}
	return fields
}

var (
	anyJobLease  = anyJobMessage.index["lease"].pos
	anyJobErrors = anyJobMessage.index["errors"].pos
)

// readJobs finds the kind by fields that only one kind always has: a claimed job has a lease, a job
// shown by peek has errors.
func readJobs(d *decoder, r *Reply) *Error {
	hint := 0
	err := d.list("jobs", 0, MaxList, func(n int) { hint = n }, func(int) *Error {
		if err := d.expectKind("jobs", kindMap); err != nil {
			return err
		}
		j := &d.job
		*j = anyJob{}
		p, err := anyJobMessage.read(d, j)
		if err != nil {
			return err
		}
		switch {
		case p.has(anyJobLease):
			r.Jobs = push(r.Jobs, j.Job, hint)
		case p.has(anyJobErrors):
			r.Views = push(r.Views, j.toView(), hint)
		default:
			r.EnqueuedAll = push(r.EnqueuedAll, EnqueuedJob{ID: j.ID, Duplicate: j.duplicate, State: j.view.State, Outcome: j.outcome}, hint)
		}
		return nil
	})
	if err == nil && r.Jobs == nil && r.Views == nil && r.EnqueuedAll == nil {
		r.Jobs, r.Views = []Job{}, []JobView{}
	}
	return err
}

func push[T any](list []T, v T, hint int) []T {
	if list == nil {
		list = make([]T, 0, hint)
	}
	return append(list, v)
}

// toView returns the view, completed with the fields that Job has too.
func (a *anyJob) toView() JobView {
	v := a.view
	v.ID, v.Queue, v.Payload, v.Priority = a.ID, a.Queue, a.Payload, a.Priority
	v.Attempt, v.MaxAttempts, v.EnqueuedAt = a.Attempt, a.MaxAttempts, a.EnqueuedAt
	v.Key, v.Headers, v.Progress = a.Key, a.Headers, a.Progress
	return v
}
