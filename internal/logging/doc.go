// Package logging writes the log of the program through log/slog. The level and the form
// (text or JSON) can change while it runs. It limits lines that repeat, and a reader that
// doesn't read never blocks the program.
//
// It uses only the standard library. Start reading at Log.
package logging
