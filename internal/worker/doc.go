// Package worker runs the jobs of `qsidecar work`: it claims jobs, runs a command for
// each, and settles the job by how the command ends.
//
// It uses clients/go and protocol. It opens no database and reads no config file.
// Start reading at Worker.Run.
package worker
