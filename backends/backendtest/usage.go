package backendtest

import "github.com/qsidecar/qsidecar/backends"

// usageTests apply to backends that implement Metered. Other backends pass them.
var usageTests = map[string]func(*kit){
	"GrowsWithEachCall": func(k *kit) {
		m, ok := k.Backend.(backends.Metered)
		if !ok {
			return
		}
		before := m.Usage()
		k.enqueuePayloads("a")
		k.writeLosing(backends.Ack{Leases: leasesOf(k.claimOne())}, 0)
		after := m.Usage()
		if after.RoundTrips.Count < before.RoundTrips.Count+3 || after.RoundTrips.Sum <= before.RoundTrips.Sum {
			k.Errorf("an enqueue, a claim and an ack: %+v, before %+v", after.RoundTrips, before.RoundTrips)
		}
		within := uint64(0)
		for _, n := range after.RoundTrips.Within {
			within += n
		}
		if within > after.RoundTrips.Count || within < after.RoundTrips.Count/2 {
			k.Errorf("of %d round trips %d are in a bucket", after.RoundTrips.Count, within)
		}
		if after.Max > 0 && (after.InUse+after.Idle < 1 || after.InUse+after.Idle > after.Max) {
			k.Errorf("the pool: %+v", after)
		}
	},
}
