// Package wiretext describes jobs, connections and databases of the wire to people, for the commands
// that show them. job.go describes jobs, status.go the rest.
package wiretext
