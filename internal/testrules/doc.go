// Package testrules has only tests. They check the rules of this repository: no clock in tests
// (timing_test.go), the layers of packages (layers_test.go), the pages of the guarantees (guarantees_test.go) and of the
// architecture (architecture_test.go), the events of the log (log_events_test.go), and the
// language of texts (prose_test.go).
package testrules
