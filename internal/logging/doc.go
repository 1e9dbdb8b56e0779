// Package logging writes the log of the program through log/slog. The level and the form
// (text or JSON) can change while it runs. It limits lines that repeat, and a reader that
// doesn't read never blocks the program.
//
// Each log line of the program has a short constant message, then the key "event" with a constant
// name, then its details: log.Info("config reloaded", "event", "config_reloaded", "generation", n).
// deploy/logs.md lists the events, and a test of internal/testrules checks both.
//
// It uses only the standard library. Start reading at Log.
package logging
