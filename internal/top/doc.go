// Package top is the terminal view of `qsidecar top`: the queues, the workers and the databases of
// one sidecar, refreshed at an interval, with keys to pause a queue and to retry dead jobs.
//
// It is a Bubble Tea program. Run connects to the sidecar and starts it. model.go has its state and
// handles messages, poll.go talks to the sidecar, view.go draws. queues.go, sessions.go and jobs.go
// are the screens. Only poll.go and action.go send requests, each in a command of Bubble Tea, so the
// model needs no lock and no terminal.
package top
