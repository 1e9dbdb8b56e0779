// Package search finds jobs of one queue by what they contain. It reads jobs in one state and compares them, so that
// every engine and every adopted table can be searched. The cost of one search is bounded.
package search

import (
	"bytes"
	"context"
	"strconv"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
)

const (
	// MaxJobs is how many jobs one search reads. It is also how far one can page into a state of an adopted table.
	MaxJobs = backends.StatsExact

	// PageBytes is how many bytes of payloads and results a search has in memory besides those that it found, or one
	// job's.
	PageBytes = 1 << 20

	// maxBytes is how many bytes of payloads and results one search reads.
	maxBytes = 64 << 20

	// pageJobs is how many jobs it reads at a time.
	pageJobs = 500
)

// Query describes jobs. A field that is empty matches all jobs.
type Query struct {
	Key     string
	Text    string            // a part of the key, the payload, the value of a header or the message of a failure
	Error   string            // a part of the message of a failure
	Headers map[string]string // the job has all of these
}

// Any reports whether the query matches all jobs.
func (q *Query) Any() bool {
	return q.Key == "" && q.Text == "" && q.Error == "" && len(q.Headers) == 0
}

// matches reports whether the query describes the job. It compares bytes.
func (q *Query) matches(v *backends.View) bool {
	if q.Key != "" && v.Key != q.Key {
		return false
	}
	for name, value := range q.Headers {
		if got, ok := v.Headers[name]; !ok || got != value {
			return false
		}
	}
	if q.Error != "" && !hasFailure(v, q.Error) {
		return false
	}
	if q.Text == "" || strings.Contains(v.Key, q.Text) || bytes.Contains(v.Payload, []byte(q.Text)) {
		return true
	}
	for _, value := range v.Headers {
		if strings.Contains(value, q.Text) {
			return true
		}
	}
	return hasFailure(v, q.Text)
}

// hasFailure reports whether the message of a failure contains a text, as it is or as lists of jobs show it: quoted, if it has line breaks for example.
func hasFailure(v *backends.View, text string) bool {
	for i := range v.Failures {
		if message := v.Failures[i].Message; strings.Contains(message, text) || strings.Contains(text, `\`) && strings.Contains(strconv.Quote(message), text) {
			return true
		}
	}
	return false
}

// Budget is how much a request reads at most.
type Budget struct {
	Jobs  int
	Bytes int64 // of payloads and results
}

// NewBudget returns that of one request.
func NewBudget() *Budget { return &Budget{Jobs: MaxJobs, Bytes: maxBytes} }

// Spent reports whether nothing is left.
func (b *Budget) Spent() bool { return b.Jobs <= 0 || b.Bytes <= 0 }

// Result is what a search found.
type Result struct {
	Views   []backends.View
	Scanned int    // the number of jobs that it read
	After   string // the last of them if there are more; a search that continues begins after it
}

// Jobs returns the jobs that p selects and q describes, in the order of p. It stops at the limits of p and of this
// package. p has a state and no ids. peek reads jobs of a database.
//
// It lists the ids first and reads the jobs by these. So it reads each job once, also if the jobs that it has read
// leave the state while it runs.
//
// It reads as much as left has, and subtracts that: one request can search several queues.
func Jobs(ctx context.Context, peek func(context.Context, backends.Peek) ([]backends.View, error), p backends.Peek, q *Query, left *Budget) (Result, error) {
	list := p
	list.Max, list.MaxBytes, list.OnlyIDs = left.Jobs+1, 0, true
	listed, err := peek(ctx, list)
	if err != nil {
		return Result{}, err
	}
	ids := make([]string, len(listed))
	for i := range listed {
		ids[i] = listed[i].ID
	}
	s := scan{peek: peek, p: p, q: q, most: left.Bytes}
	for s.at < min(len(ids), left.Jobs) && !s.full {
		if err := s.page(ctx, ids[s.at:min(s.at+pageJobs, len(ids), left.Jobs)]); err != nil {
			return Result{}, err
		}
	}
	s.Scanned = s.at
	left.Jobs, left.Bytes = left.Jobs-s.at, left.Bytes-s.read
	if s.at > 0 && s.at < len(ids) {
		s.After = ids[s.at-1]
	}
	return s.Result, nil
}

// scan is a search in progress.
type scan struct {
	Result
	peek        func(context.Context, backends.Peek) ([]backends.View, error)
	p           backends.Peek
	q           *Query
	at          int   // number of ids that it has read
	read, found int64 // bytes
	most        int64 // of read
	full        bool
}

// page reads the jobs of the next ids, as many as PageBytes allows. Jobs that are gone, or in another state, don't
// match.
func (s *scan) page(ctx context.Context, ids []string) error {
	views, err := s.peek(ctx, backends.Peek{Queue: s.p.Queue, IDs: ids, State: s.p.State, Max: len(ids), MaxBytes: PageBytes})
	if err != nil {
		return err
	}
	next := 0
	for i := range views {
		v := &views[i]
		for next < len(ids) && ids[next] != v.ID {
			next++
		}
		size := v.Bytes()
		match := v.State == s.p.State && s.q.matches(v)
		if match && len(s.Views) > 0 && s.p.MaxBytes > 0 && s.found+size > s.p.MaxBytes {
			s.at, s.full = s.at+next, true
			return nil
		}
		next++
		if s.read += size; match {
			s.Views, s.found = append(s.Views, *v), s.found+size
		}
		if s.full = len(s.Views) == s.p.Max || s.read >= s.most; s.full {
			s.at += next
			return nil
		}
	}
	if len(views) == 0 { // all of them are gone: a page has at least one job
		next = len(ids)
	}
	s.at += next
	return nil
}
