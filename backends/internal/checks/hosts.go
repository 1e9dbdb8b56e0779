package checks

import (
	"fmt"
	"time"
)

// HostClocks is how far the clocks of the hosts of one address can be apart before it is an error.
const HostClocks = 300 * time.Millisecond

// Host is what a check found out about one host of an address.
type Host struct {
	Address string
	Err     error         // why the host could not be queried; nil: it was
	Cluster string        // identifies its cluster; empty: unknown
	Ahead   time.Duration // of its clock, compared with this host's
	Margin  time.Duration // Ahead is exact to ± Margin
}

// CompareHosts adds the findings about the hosts of an address together: those that are not reachable, that are of different
// clusters, and clocks that are at least limit apart.
func (e *Examination) CompareHosts(hosts []Host, limit time.Duration) {
	var first, early, late *Host
	reached := 0
	for i := range hosts {
		h := &hosts[i]
		if h.Err != nil {
			e.AddWarning("cluster", fmt.Sprintf("the host %s of the url isn't reachable: %v", h.Address, h.Err), "start it, or remove it from the url")
			continue
		}
		reached++
		switch {
		case h.Cluster == "":
		case first == nil:
			first = h
		case h.Cluster != first.Cluster:
			e.AddError("cluster", fmt.Sprintf("the hosts %s and %s of the url are of different clusters (%s and %s): after a change of the host, jobs are missing",
				first.Address, h.Address, first.Cluster, h.Cluster), "name hosts of one cluster only")
		}
		if early == nil || h.Ahead < early.Ahead {
			early = h
		}
		if late == nil || h.Ahead > late.Ahead {
			late = h
		}
	}
	if reached < 2 {
		return
	}
	apart := late.Ahead - early.Ahead
	if apart-early.Margin-late.Margin < limit {
		e.AddInfo("cluster", fmt.Sprintf("the clocks of the url's hosts are at most %v apart", max((apart+early.Margin+late.Margin).Round(time.Millisecond), time.Millisecond)))
		return
	}
	e.AddError("cluster", fmt.Sprintf("the clock of host %s is %v ahead of that of %s: after a change of the host, leases end too early, and scheduled jobs come early or late",
		late.Address, apart.Round(time.Millisecond), early.Address), "have all hosts keep their clocks by NTP")
}
