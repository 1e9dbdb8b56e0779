// Package jobevents passes on what happens to jobs: one Event for each change of a job that a sidecar causes or sees.
//
// It depends on none of our packages. The pipelines of the bridge publish events, and subscribers read them from a
// bounded buffer. Start reading at Hub.
package jobevents
