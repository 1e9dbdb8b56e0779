package backends

import (
	"context"
	"time"
)

// Replica reads from a replica of a database, for answers that no guarantee rests on.
type Replica interface {
	// Stats does what Inspector.Stats does, as of the moment up to which the replica has followed its primary. database is
	// the primary's Info.Database. If the replica is unreachable, too far behind or of another database, it returns an error.
	Stats(ctx context.Context, database, queue string) ([]QueueStats, error)

	// Err returns why the last Stats failed, or nil.
	Err() error

	// Close closes all connections.
	Close() error
}

// Replicator is an Engine whose server can be a replica.
type Replicator interface {
	// Replication returns what the server reports about its replication.
	Replication(ctx context.Context) (Replication, error)
}

// Replication is what a server reports about its replication.
type Replication struct {
	Server  string         // identifies the server, or its cluster where replicas have no identity of their own; empty: not visible
	Source  string         // identifies the server that it follows, as Server does; empty: none is visible
	Running bool           // it receives and applies changes
	Lag     *time.Duration // nil: not visible
}
