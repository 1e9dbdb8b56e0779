package web

import (
	"net/http"
	"strconv"

	"github.com/qsidecar/qsidecar/protocol"
)

// schedulesPerPage bounds the page of the schedules.
const schedulesPerPage = 100

// schedulesData is the data of the page of the schedules.
type schedulesData struct {
	Rows          []protocol.Schedule
	All           int
	Number, Pages int // the page, from 1
	Error         string
}

// schedules lists the schedules.
func (p *Page) schedules(w http.ResponseWriter, r *http.Request) {
	d := &schedulesData{Number: 1, Pages: 1}
	if rep, err := p.do(r, &protocol.Request{Op: protocol.OpSchedules}); err != nil {
		d.Error = explain(err)
	} else {
		d.fill(rep.Schedules, r.URL.Query().Get("page"))
	}
	p.show(w, http.StatusOK, p.frame(r, "schedules", "Schedules", d))
}

func (s *schedulesData) fill(all []protocol.Schedule, page string) {
	s.All = len(all)
	s.Pages = max(1, (len(all)+schedulesPerPage-1)/schedulesPerPage)
	s.Number, _ = strconv.Atoi(page) // 0 if it isn't a number
	s.Number = min(max(s.Number, 1), s.Pages)
	s.Rows = all[(s.Number-1)*schedulesPerPage : min(s.Number*schedulesPerPage, len(all))]
}
