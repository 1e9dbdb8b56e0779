package web

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

// checkTimeout bounds how long the page waits for a check. The sidecar's own limit is shorter.
const checkTimeout = 35 * time.Second

// checkData is the data of the page of the check.
type checkData struct {
	Ran      bool
	Findings []protocol.Finding // the most severe first
	Error    string
}

// check runs a check if the query has "run", and shows its findings.
func (p *Page) check(w http.ResponseWriter, r *http.Request) {
	d := &checkData{Ran: r.URL.Query().Has("run") && r.Header.Get(liveHeader) == ""}
	if d.Ran {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(checkTimeout + readTimeout)) // a writer without limits has none to extend
		ctx, cancel := context.WithTimeoutCause(r.Context(), checkTimeout, errors.New("the sidecar did not answer in time: try again"))
		defer cancel()
		if rep, err := p.opts.Do(ctx, &protocol.Request{Op: protocol.OpCheck}); err != nil {
			d.Error = explain(err)
		} else {
			d.Findings = rep.Findings
			slices.SortStableFunc(d.Findings, func(a, b protocol.Finding) int { return cmp.Compare(severity(a), severity(b)) })
		}
	}
	p.show(w, http.StatusOK, p.frame(r, "check", "Check", d))
}

func severity(f protocol.Finding) int {
	return slices.Index([]string{"error", "warning", "info"}, f.Severity)
}
