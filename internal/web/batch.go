package web

import (
	"fmt"
	"net/http"

	"github.com/qsidecar/qsidecar/protocol"
)

// batchesData is the data of the page of the batches.
type batchesData struct {
	Rows        []protocol.Batch
	All         bool   // also those that have ended
	After, Next string // the ids behind which this page and the next one begin; empty: the first, the last
	Error       string
}

// batchList lists the batches.
func (p *Page) batchList(w http.ResponseWriter, r *http.Request) {
	d := &batchesData{After: r.URL.Query().Get("after"), All: r.URL.Query().Get("all") != ""}
	if rep, err := p.do(r, &protocol.Request{Op: protocol.OpBatches, After: d.After, All: d.All}); err != nil {
		d.Error = explain(err)
	} else {
		d.Rows, d.Next = rep.Batches, rep.After
	}
	p.show(w, http.StatusOK, p.frame(r, "batches", "Batches", d))
}

// batch shows a batch, and its jobs that are not done.
func (p *Page) batch(w http.ResponseWriter, r *http.Request) {
	if b := p.readBatch(w, r, r.URL.Query().Get("id")); b != nil {
		p.show(w, http.StatusOK, p.frame(r, "batch", "Batch "+b.ID, b))
	}
}

// readBatch returns a batch. If there is none, it answers with an error and returns nil.
func (p *Page) readBatch(w http.ResponseWriter, r *http.Request, id string) *protocol.Batch {
	rep, err := p.do(r, &protocol.Request{Op: protocol.OpBatches, Batch: id})
	switch {
	case err != nil:
		p.fail(w, r, http.StatusBadGateway, explain(err))
	case len(rep.Batches) == 0:
		p.fail(w, r, http.StatusNotFound, fmt.Sprintf("There is no batch %s: it ended or expired long ago.", id))
	default:
		return &rep.Batches[0]
	}
	return nil
}
