package web

import (
	"net/http"
	"strings"

	"github.com/qsidecar/qsidecar/protocol"
)

// found is a search in a queue and what it read.
type found struct {
	By, For string // one of criteria, and the id, key, header, text or error
	Scanned int64  // jobs that were read and compared; 0: the job was looked up
}

// criteria are the ways to search a queue.
var criteria = []string{"text", "error", "key", "header", "id"}

// find finds jobs of a queue. One job that has the id or the key is shown on its own page.
func (p *Page) find(r *http.Request, d *queueData, after string) (job *protocol.JobView, err error) {
	req := &protocol.Request{Op: protocol.OpPeek, Queue: d.Queue}
	switch d.Find.By {
	case "id":
		req.IDs = []string{d.Find.For}
	case "key":
		req.Key = d.Find.For
	default:
		return nil, p.searchState(r, d, after)
	}
	rep, err := p.do(r, req)
	switch {
	case err != nil:
		return nil, err
	case len(rep.Views) == 1:
		return &rep.Views[0], nil
	case d.Find.By == "key": // a finished job possibly has lost its key
		return nil, p.searchState(r, d, after)
	}
	return nil, nil
}

// searchState reads a page of jobs in a state that match.
func (p *Page) searchState(r *http.Request, d *queueData, after string) error {
	req := &protocol.Request{Op: protocol.OpPeek, Queue: d.Queue, State: d.State, Max: protocol.Some[int64](jobsPerPage), After: after}
	switch d.Find.By {
	case "key":
		req.Key = d.Find.For
	case "header":
		name, value, ok := strings.Cut(d.Find.For, "=")
		if !ok || name == "" {
			return protocol.Errorf(protocol.CodeBadRequest, "search for a header as name=value, such as lang=en")
		}
		req.Headers = map[string]string{name: value}
	case "error":
		req.Error = d.Find.For
	default:
		req.Text = d.Find.For
	}
	rep, err := p.do(r, req)
	if err != nil {
		return err
	}
	d.Jobs, d.Find.Scanned = rep.Views, rep.Scanned.Or(0)
	if rep.After != "" {
		d.Next = []string{rep.After}
	}
	return nil
}
