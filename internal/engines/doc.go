// Package engines is the registry of the database engines that the program serves: their
// URLs, how each database is opened, and the SQL of its migrations.
//
// It is the only package outside backends that imports an engine. It reads no config file.
// Start reading at the list engines in engines.go.
package engines
