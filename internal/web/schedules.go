package web

import (
	"net/http"

	"github.com/qsidecar/qsidecar/protocol"
)

// schedulesPerPage bounds the page of the schedules.
const schedulesPerPage = 100

// schedulesData is the data of the page of the schedules.
type schedulesData struct {
	Rows        []protocol.Schedule
	After, Next string // the names behind which this page and the next one begin; empty: the first, the last
	Error       string
}

// schedules lists the schedules.
func (p *Page) schedules(w http.ResponseWriter, r *http.Request) {
	d := &schedulesData{After: r.URL.Query().Get("after")}
	if rep, err := p.do(r, &protocol.Request{Op: protocol.OpSchedules, After: d.After, Max: protocol.Some[int64](schedulesPerPage)}); err != nil {
		d.Error = explain(err)
	} else {
		d.Rows, d.Next = rep.Schedules, rep.After
	}
	p.show(w, http.StatusOK, p.frame(r, "schedules", "Schedules", d))
}
