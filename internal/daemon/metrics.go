package daemon

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// registry returns the metrics of the process, its build and its config. setBridge adds
// those of the bridge.
func (d *Daemon) registry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "qsidecar", Name: "build_info", Help: "1, with the version, the revision and the Go version of this build.",
		ConstLabels: prometheus.Labels{"version": d.version, "revision": d.revision, "goversion": runtime.Version()},
	})
	build.Set(1)
	gauge := func(name, help string, value func() float64) {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "qsidecar", Name: name, Help: help}, value))
	}
	gauge("config_generation", "Number of the running config, counted from 1.", func() float64 {
		d.stateMu.Lock()
		defer d.stateMu.Unlock()
		return float64(d.generation)
	})
	gauge("config_last_reload_successful", "1: the newest config runs; 0: it was rejected, and an older one runs.", func() float64 {
		d.stateMu.Lock()
		defer d.stateMu.Unlock()
		if d.reloadErr != nil {
			return 0
		}
		return 1
	})
	gauge("config_last_reload_success_timestamp_seconds", "When the running config was loaded.", func() float64 {
		d.stateMu.Lock()
		defer d.stateMu.Unlock()
		return float64(d.loadedAt.UnixMilli()) / 1000
	})
	r.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}
