package top

import "charm.land/bubbles/v2/key"

func bind(help, what string, keys ...string) key.Binding {
	return key.NewBinding(key.WithKeys(keys...), key.WithHelp(help, what))
}

var (
	keyUp       = bind("↑ k", "up", "up", "k")
	keyDown     = bind("↓ j", "down", "down", "j")
	keyPageUp   = bind("pgup", "a page up", "pgup", "ctrl+b")
	keyPageDown = bind("pgdn", "a page down", "pgdown", "ctrl+f", "space")
	keyHome     = bind("home g", "first", "home", "g")
	keyEnd      = bind("end G", "last", "end", "G")

	keyOpen      = bind("enter", "open", "enter", "right", "l")
	keyBack      = bind("esc", "back", "esc", "left", "h", "backspace")
	keyQueues    = bind("1", "queues", "1")
	keyWorkers   = bind("2", "workers", "2")
	keyDatabases = bind("3", "databases", "3")
	keyNextTab   = bind("tab", "next tab", "tab")
	keyPrevTab   = bind("shift+tab", "previous tab", "shift+tab")

	keySort    = bind("s", "sort by the next column", "s")
	keyReverse = bind("S", "reverse the order", "S")
	keyFilter  = bind("/", "filter", "/")
	keyPause   = bind("p", "pause or resume the queue", "p")
	keyRetry   = bind("r", "retry the dead job", "r")
	keyAll     = bind("R", "retry all dead jobs of the queue", "R")
	keyNext    = bind("n", "next page", "n")
	keyFirst   = bind("N", "first page", "N")
	keyHelp    = bind("?", "help", "?")
	keyQuit    = bind("q", "quit", "q", "ctrl+c")
	keySuspend = bind("ctrl+z", "suspend", "ctrl+z")
)

// short changes the help of a key for the line at the bottom.
func short(b key.Binding, what string) key.Binding {
	b.SetHelp(b.Help().Key, what)
	return b
}

// shortHelp returns the keys in the line at the bottom.
func (m *model) shortHelp() []key.Binding {
	quit := []key.Binding{keyHelp, keyQuit}
	switch m.screen {
	case queuesScreen:
		return append([]key.Binding{keyOpen, short(keySort, "sort"), keyFilter, short(keyPause, "pause/resume"), short(keyAll, "retry all dead")}, quit...)
	case workersScreen:
		return append([]key.Binding{keyOpen, keyFilter, keyQueues, keyDatabases}, quit...)
	case databasesScreen:
		return append([]key.Binding{keyOpen, keyQueues, keyWorkers}, quit...)
	case jobsScreen:
		return append([]key.Binding{keyBack, keyOpen, short(keyNextTab, "state"), short(keyRetry, "retry"), short(keyAll, "retry all"), short(keyPause, "pause")}, quit...)
	case jobScreen:
		return append([]key.Binding{keyBack, keyUp, keyDown, short(keyRetry, "retry")}, quit...)
	}
	return append([]key.Binding{keyBack, keyUp, keyDown}, quit...)
}

// fullHelp returns all keys, by column.
func fullHelp() [][]key.Binding {
	return [][]key.Binding{
		{keyUp, keyDown, keyPageUp, keyPageDown, keyHome, keyEnd, keyOpen, keyBack, keyQueues, keyWorkers, keyDatabases, keyNextTab, keyPrevTab},
		{keySort, keyReverse, keyFilter, keyPause, keyRetry, keyAll, keyNext, keyFirst, keyHelp, keyQuit, keySuspend},
	}
}
