package backends

import "context"

// Notifier is a Backend that hears of new work which others stored.
type Notifier interface {
	// Notifications gives the names of queues in which another sidecar made jobs
	// ready, until ctx ends, and then closes the channel. They are hints: some may
	// be missing or come twice, and nothing says so. An empty name says that names
	// may have been missed. ok is false where the database, its address or its
	// configuration has none.
	Notifications(ctx context.Context) (queues <-chan string, ok bool)
}

// ChannelListener is a Notifier that hears, too, what other programs of the database notify of.
type ChannelListener interface {
	Notifier
	// Hears says why the channel cannot be listened to; nil: it can.
	CanListen(channel string) error
	// Hear is Notifications, and gives besides the queues of a channel (by its name, as
	// the server has it) at what is sent there.
	Listen(ctx context.Context, channels map[string][]string) (queues <-chan string, ok bool)
}
