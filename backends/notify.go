package backends

import "context"

// Notifier is a Backend that is notified when other programs make jobs ready.
type Notifier interface {
	// Notifications sends the names of queues in which another sidecar made jobs ready, until ctx ends. Then it
	// closes the channel. The names are hints: some can be missing or repeated, without any sign of it. An
	// empty name means that names may have been missed. ok is false if the database, its address or its
	// configuration doesn't support notifications.
	Notifications(ctx context.Context) (queues <-chan string, ok bool)
}

// ChannelListener is a Notifier that also receives notifications from other programs of the database.
type ChannelListener interface {
	Notifier
	// CanListen returns why the channel can't be listened to. nil: it can.
	CanListen(channel string) error
	// Listen does what Notifications does. It also sends the queues of a channel when a notification arrives on
	// that channel. The keys are the channels' names, as the server spells them.
	Listen(ctx context.Context, channels map[string][]string) (queues <-chan string, ok bool)
}
