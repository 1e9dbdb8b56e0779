package web

import (
	"net/http"
	"strconv"

	"github.com/qsidecar/qsidecar/protocol"
)

// sidecarsPerPage bounds the page of the sidecars.
const sidecarsPerPage = 100

// sidecarsData is the data of the page of the sidecars.
type sidecarsData struct {
	Rows          []protocol.Sidecar
	All           int
	Troubled      []protocol.Sidecar // the first ones that are late or dead
	Number, Pages int                // the page, from 1
	Error         string
}

// sidecars lists the sidecars of the fleet. The sidecar reads them at most once in 5 s, however many browsers ask.
func (p *Page) sidecars(w http.ResponseWriter, r *http.Request) {
	d := &sidecarsData{}
	if rep, err := p.do(r, &protocol.Request{Op: protocol.OpFleet}); err != nil {
		d.Error = explain(err)
	} else {
		d.fill(rep.Sidecars, r.URL.Query().Get("page"))
	}
	p.show(w, http.StatusOK, p.frame(r, "sidecars", "Sidecars", d))
}

func (d *sidecarsData) fill(all []protocol.Sidecar, page string) {
	for _, s := range all {
		if (s.State == protocol.SidecarLate || s.State == protocol.SidecarDead) && len(d.Troubled) < 10 {
			d.Troubled = append(d.Troubled, s)
		}
	}
	d.All = len(all)
	d.Pages = max(1, (len(all)+sidecarsPerPage-1)/sidecarsPerPage)
	d.Number, _ = strconv.Atoi(page) // 0 if it isn't a number
	d.Number = min(max(d.Number, 1), d.Pages)
	d.Rows = all[(d.Number-1)*sidecarsPerPage : min(d.Number*sidecarsPerPage, len(all))]
}
